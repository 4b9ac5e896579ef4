"""The `fedpals` command: parse, call, print. One module per command."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import fedpals
from fedpals.cli.weights import weights
from fedpals.errors import FedpalsError

app = typer.Typer(
    name="fedpals",
    help="Federated learning for a place whose mix of labels is different.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fedpals {fedpals.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning for a place whose mix of labels is different."""


def examples(*lines: str) -> str:
    """Return the end of a command's help: examples as a user would type them."""
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(lines)


app.command(
    epilog=examples(
        "fedpals weights stores.csv --target new-store.csv",
        "fedpals weights stores.csv --target new-store.csv --ess 0.25 --plot weights.png",
        "fedpals weights stores.csv --target new-store.csv --grid 4",
        "fedpals weights stores.csv --target new-store.csv --lam 0 --json > weights.json",
    )
)(weights)


def main() -> None:
    """Run the command line; errors a user can mend end with code 2 and one sentence."""
    try:
        app()
    except FedpalsError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]Error:[/] {escape(str(error))}", highlight=False)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
