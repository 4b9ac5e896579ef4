"""What `--help` shows: panels, every default, examples as a user would type them."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo


class Command(TyperCommand):
    """A command whose positional arguments have their help.

    Some releases of typer set an argument's help before they call click, some releases of which then reset it.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if self.callback is None:
            return
        hints = get_type_hints(inspect.unwrap(self.callback), include_extras=True)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and parameter.name in hints:
                declared = getattr(hints[parameter.name], "__metadata__", ())
                parameter.help = next((info.help for info in declared if isinstance(info, ArgumentInfo)), None)


def examples(*lines: str) -> str:
    """Return the end of a command's help: examples as a user would type them."""
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(lines)
