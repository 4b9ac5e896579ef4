"""What is printed: names as they are, whatever they contain, on any terminal."""

from __future__ import annotations

import sys

from rich import markup
from rich.console import Console


def new_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is: ``a:smile:b`` is a name, not a picture."""
    return Console(stderr=stderr, emoji=False, highlight=False)


def escape(text: str) -> str:
    r"""Return text to be printed as it is: brackets are no markup, and control characters do nothing to a terminal.

    >>> escape("[red]x\x1b[31m")
    '\\[red]x\\x1b[31m'
    """
    shown = (c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return markup.escape("".join(shown))


def print_anything() -> None:
    """Let characters that the terminal does not know appear as question marks, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not of a captured or replaced stream
            stream.reconfigure(errors="replace")
