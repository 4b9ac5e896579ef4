"""Help of every command: arguments, options and defaults as a user reads them."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from fedpals.cli import app
from tests.cli.test_weights import run


def commands(command: Any, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return every command that can be typed, by its words."""
    inner = getattr(command, "commands", None)
    if inner is None:
        return {words: command}
    return {key: value for name, one in inner.items() for key, value in commands(one, (*words, name)).items()}


ALL = commands(typer.main.get_command(app))


@pytest.mark.parametrize("words", ALL, ids="-".join)
def test_every_argument_and_option_is_explained(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    shown = " ".join(run(*words, "--help").stdout.split())
    for parameter in ALL[words].params:
        if not getattr(parameter, "hidden", False):
            assert parameter.help, f"{parameter.name} has no help"
            assert " ".join(parameter.help.split())[:40] in shown, parameter.name


def test_positional_arguments_have_their_help() -> None:
    assert "Folders of results, or of runs of fedpals run." in run("report", "--help").stdout
    assert "Label counts" in run("weights", "--help").stdout
