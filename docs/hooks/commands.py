"""The reference of commands, from the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from fedpals.cli import app

PLACE = "<!-- commands -->"
"""What the page has where its commands go."""
_SHARED = 20
"""Number of arguments from which a command that takes those of `fedpals run` only refers to them."""


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the commands in their place."""
    del page, config, files
    return markdown.replace(PLACE, "\n".join(sections())) if PLACE in markdown else markdown


def sections() -> Iterator[str]:
    """Yield the lines of a section per command."""
    every = list(commands(typer.main.get_command(app), ("fedpals",)))
    of_run = {_row(parameter) for words, command in every if words[-1] == "run" for parameter in command.params}
    for words, command in every:
        context = command.make_context(" ".join(words), [], resilient_parsing=True)
        yield f"## {' '.join(words)}\n"
        yield f"```\n{' '.join(words)} {' '.join(command.collect_usage_pieces(context))}\n```\n"
        yield f"{_plain(command.help or '')}\n"
        shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        shared = [parameter for parameter in shown if words[-1] != "run" and _row(parameter) in of_run]
        if len(shared) > _SHARED:
            shown = [parameter for parameter in shown if parameter not in shared]
            yield "It takes these, and the settings of [`fedpals run`](#fedpals-run):\n"
        for panel, members in groupby(shown, lambda parameter: getattr(parameter, "rich_help_panel", None)):
            yield from _table(panel, list(members), context)
        if command.epilog:
            lines = [line for line in _plain(command.epilog).splitlines()[1:] if line]
            yield "```\n" + "\n".join(lines) + "\n```\n"


def commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that can be typed, with its words."""
    if getattr(command, "invoke_without_command", True) and words != ("fedpals",):
        yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


def _row(parameter: Any) -> tuple[str, str, str]:
    """Return what a row of a command's table says of an argument."""
    value = f" {parameter.metavar}" if parameter.metavar else ""
    names = ", ".join(f"`{name}{value}`" for name in [*parameter.opts, *parameter.secondary_opts])
    return names, _cell(getattr(parameter, "help", None) or ""), _cell(_default(parameter))


def _table(panel: str | None, parameters: list[Any], context: Any) -> Iterator[str]:
    if panel:
        yield f"**{panel}**\n"
    yield "| argument | meaning | default |"
    yield "|---|---|---|"
    for parameter in parameters:
        names, meaning, default = _row(parameter)
        if parameter.param_type_name == "argument":
            names = f"`{parameter.make_metavar(context)}`"
        yield f"| {names} | {meaning} | {default} |"
    yield ""


def _default(parameter: Any) -> str:
    """Return what the help says of an argument's default; nothing for flags that are off."""
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return shown
    if parameter.required:
        return "required"
    if parameter.default is None or parameter.default is False or callable(parameter.default):
        return ""
    return f"`{parameter.default}`"


def _plain(text: str) -> str:
    """Return text without rich's markup."""
    return re.sub(r"\[/?(?:bold|dim|italic|cyan|green|red|yellow)\]", "", text).strip()


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")
