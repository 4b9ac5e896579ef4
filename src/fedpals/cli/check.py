"""`fedpals check`: test whether the clients of finished runs differ by more than their labels."""

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
from rich.table import Table

from fedpals.cli.terminal import escape, new_console
from fedpals.errors import InputError

if TYPE_CHECKING:
    from fedpals.report.run_checks import CheckedRun, RunChecks
    from fedpals.shift import Homogeneity

_SHOWN_ROWS = 10
"""Number of rows of a table; --json has all."""
_LIGHTS = {
    "green": ("green", "no evidence against label shift"),
    "amber": ("yellow", "label shift is neither confirmed nor clearly refuted"),
    "red": ("red", "clients differ by more than their labels"),
}

_NUMBERS = {"seed", "p", "V", "balanced, %"}
"""Columns of the table of runs that are aligned to the right."""
_LONG_LINE = 1000
"""Characters that no line of that table has."""


def check(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_FOLDER", help="A finished run whose clients held samples out, or a folder of such runs."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON and nothing else.")] = False,
) -> None:
    """Test for label shift: whether the model makes the same errors at all clients, label by label.

    RUN_FOLDER is a finished run with --held-out, or a folder that holds several: then there is a line per run. Trust
    those whose model tells the labels apart, normally FedAvg's.
    """
    from fedpals.report.run_checks import check_run, check_runs  # slow to import, so only here
    from fedpals.simulation.record import Record

    if Record.is_run(folder):
        _show_run(check_run(Record.at(folder)), as_json=as_json)
        return
    records = {record.run.digest: record for record in Record.all_below(folder)}  # a copy counts once
    if not records:
        raise InputError(
            f"{folder}: no finished run there or below; give the folder of a run, "
            "runs/<task>/<method>/<seed>-<digest>, or one that holds several"
        )
    with new_console(stderr=True).status("Testing"):
        checks = check_runs(records.values())
    _show_runs(checks, len(records) - len(checks.runs), as_json=as_json)


def _show_run(checked: CheckedRun, *, as_json: bool) -> None:
    result = checked.test
    if as_json:
        _print_json(_as_json(checked))
        return
    console = new_console()
    console.print(f"[dim]{escape(checked.title)}[/dim]\n", soft_wrap=True)
    _print_light(console, result)
    _print_breaks(console, result)
    console.print(f"\n{escape(checked.advice)}", soft_wrap=True)


def _show_runs(checks: RunChecks, left_out: int, *, as_json: bool) -> None:
    from fedpals.report.run_checks import COLUMNS, WHICH_TO_TRUST

    if as_json:
        runs = [
            {"folder": str(run.folder), "federation": run.federation, "method": run.method, "seed": run.seed,
             "balanced_accuracy": run.balanced_accuracy, **_as_json(run)}
            for run in checks.runs
        ]  # fmt: skip
        _print_json({"runs": runs, "advice": WHICH_TO_TRUST})
        return
    console = new_console()
    console.width = max(console.width, _LONG_LINE)  # a line per run, on narrow terminals, too
    header, *rows = checks.texts()
    light = header.index("light")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, justify="right" if name in _NUMBERS else "left")
    for row in rows:
        shown = [*map(escape, row)]
        shown[light] = f"[{_LIGHTS[row[light]][0]}]●[/] {row[light]}"
        table.add_row(*shown)
    console.print(table)
    console.print(f"[dim]{COLUMNS}[/dim]\n\n{WHICH_TO_TRUST}", soft_wrap=True)
    if left_out:
        console.print(f"[dim]Left out: {left_out} runs whose clients held nothing out.[/dim]", soft_wrap=True)


def _print_light(console: Console, result: Homogeneity) -> None:
    colour, meaning = _LIGHTS[result.light]
    summary = Table(box=None, pad_edge=False, show_header=False)
    summary.add_column(style="bold")
    summary.add_column()
    summary.add_row(f"[{colour}]●[/] {result.light}", meaning)
    summary.add_row(
        "p", f"{result.p:.2g}  (probability of a difference at least this large by chance; alarm at 0.05 or less)"
    )
    summary.add_row(
        "effect",
        f"V = {result.effect:.2f}  (0: no difference, 1: predictions depend only on the client; relevant from 0.1)",
    )
    detectable = f"V ≥ {result.detectable:.2f}" if math.isfinite(result.detectable) else "nothing"
    summary.add_row("power", f"{detectable} would be detected with 80 % probability")
    untested = f"; not testable: {escape(', '.join(result.untested))}" if result.untested else ""
    summary.add_row("labels", f"{len(result.labels)} tested{untested}")
    console.print(summary)


def _print_breaks(console: Console, result: Homogeneity) -> None:
    """Print the clients and labels that break the assumption, if any."""
    clients = [test for name in result.broken_clients for test in result.clients if test.client == name]
    _print_table(
        console,
        ("client", "samples", "adjusted p", "accuracy, compared with the others on its labels"),
        [(c.client, f"{c.samples:,}", f"{c.adjusted_p:.2g}", f"{100 * c.gap:+.1f} points") for c in clients],
    )
    labels = [test for test in result.labels if test.label in result.broken_labels]
    _print_table(
        console,
        ("label", "samples", "clients", "adjusted p", "V"),
        [(y.label, f"{y.samples:,}", str(y.clients), f"{y.adjusted_p:.2g}", f"{y.effect:.2f}") for y in labels],
    )
    _print_table(
        console,
        ("client", "label", "samples", "adjusted p", "accuracy there", "elsewhere"),
        [
            (b.client, b.label, f"{b.samples:,}", f"{b.adjusted_p:.2g}", f"{b.accuracy:.0%}", f"{b.elsewhere:.0%}")
            for b in result.breaks
        ],
    )


def _print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in {"client", "label"} else "right")
    for row in rows[:_SHOWN_ROWS]:
        table.add_row(*map(escape, row))
    console.print()
    console.print(table)
    if len(rows) > _SHOWN_ROWS:
        console.print(f"[dim]and {len(rows) - _SHOWN_ROWS} more; --json shows all[/dim]")


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def _as_json(checked: CheckedRun) -> dict[str, Any]:
    result = checked.test
    fields = asdict(result)
    fields["detectable"] = result.detectable if math.isfinite(result.detectable) else None
    return {
        **fields,
        "broken_labels": result.broken_labels,
        "broken_clients": result.broken_clients,
        "advice": checked.advice,
    }
