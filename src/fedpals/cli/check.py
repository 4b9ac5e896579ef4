"""`fedpals check`: whether the clients of a finished run differ by more than their labels."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from fedpals.shift import Homogeneity, Tally
    from fedpals.simulation.record import Record

_SHOWN = 10
"""Rows of a table; --json has all."""
_LIGHTS = {
    "green": ("green", "label shift holds, as far as these samples tell"),
    "amber": ("yellow", "neither confirmed nor refuted so clearly that it matters"),
    "red": ("red", "this is not label shift alone"),
}


def check(
    run: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="A finished run whose clients held samples out.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON and nothing else.")] = False,
) -> None:
    """Is it label shift at all? Tests whether the model errs alike at all clients, label by label.

    RUN_FOLDER is a finished run made with --held-out.
    """
    from fedpals.shift import homogeneity
    from fedpals.simulation.record import Record  # loads slowly: only where it is used

    record = Record.at(run)
    tallies = record.tallies()
    found = homogeneity(tallies, record.run.seed, labels=record.server_view().labels)
    if as_json:
        sys.stdout.write(json.dumps(_as_json(found), allow_nan=False) + "\n")
        return
    console = Console(highlight=False)
    console.print(f"[dim]{escape(_what(record, tallies))}[/dim]\n", soft_wrap=True)
    _print_light(console, found)
    _print_breaks(console, found)
    console.print(f"\n{escape(found.advice)}", soft_wrap=True)


def _what(record: Record, tallies: Sequence[Tally]) -> str:
    run = record.run
    samples = sum(int(tally.samples.sum()) for tally in tallies)
    return f"{run.data.name}, {run.method.full_title}, seed {run.seed}: {len(tallies)} clients, {samples:,} held-out samples"


def _print_light(console: Console, found: Homogeneity) -> None:
    colour, meaning = _LIGHTS[found.light]
    summary = Table(box=None, pad_edge=False, show_header=False)
    summary.add_column(style="bold")
    summary.add_column()
    summary.add_row(f"[{colour}]●[/] {found.light}", meaning)
    summary.add_row("p", f"{found.p:.2g}  (a difference this large or larger by chance; alarm at 0.05 or less)")
    summary.add_row("effect", f"V = {found.effect:.2f}  (0: clients agree, 1: the client decides; matters from 0.1)")
    detectable = f"V ≥ {found.detectable:.2f}" if math.isfinite(found.detectable) else "nothing"
    summary.add_row("power", f"{detectable} would be found with 80 % probability")
    untested = f"; not testable: {escape(', '.join(found.untested))}" if found.untested else ""
    summary.add_row("labels", f"{len(found.labels)} tested{untested}")
    console.print(summary)


def _print_breaks(console: Console, found: Homogeneity) -> None:
    """Name who breaks the assumption, and where; nothing where nobody does."""
    clients = [test for name in found.broken_clients for test in found.clients if test.client == name]
    _print_table(
        console,
        ("client", "samples", "adjusted p", "accuracy, compared with the others on its labels"),
        [(c.client, f"{c.samples:,}", f"{c.adjusted_p:.2g}", f"{100 * c.gap:+.1f} points") for c in clients],
    )
    labels = [test for test in found.labels if test.label in found.broken_labels]
    _print_table(
        console,
        ("label", "samples", "clients", "adjusted p", "V"),
        [(y.label, f"{y.samples:,}", str(y.clients), f"{y.adjusted_p:.2g}", f"{y.effect:.2f}") for y in labels],
    )
    _print_table(
        console,
        ("client", "label", "samples", "adjusted p", "right there", "elsewhere"),
        [
            (b.client, b.label, f"{b.samples:,}", f"{b.adjusted_p:.2g}", f"{b.accuracy:.0%}", f"{b.elsewhere:.0%}")
            for b in found.breaks
        ],
    )


def _print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in {"client", "label"} else "right")
    for row in rows[:_SHOWN]:
        table.add_row(*map(escape, row))
    console.print()
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"[dim]and {len(rows) - _SHOWN} more; --json shows all[/dim]")


def _as_json(found: Homogeneity) -> dict[str, Any]:
    told = asdict(found)
    told["detectable"] = found.detectable if math.isfinite(found.detectable) else None
    return {
        **told,
        "broken_labels": found.broken_labels,
        "broken_clients": found.broken_clients,
        "advice": found.advice,
    }
