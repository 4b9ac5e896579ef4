"""`fedpals data`: list and download data sets, and show how they are divided among clients."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated, Any

import numpy as np
import typer
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

import fedpals
from fedpals.cli.terminal import escape, new_console
from fedpals.config import did_you_mean, validated
from fedpals.data import SOURCES, Federation, Task, available, load
from fedpals.data import get as get_files
from fedpals.errors import InputError
from fedpals.labels import Vector
from fedpals.report.advice import coverage_sentence
from fedpals.report.figures import check_figure_path, save_figure
from fedpals.report.heatmap import marginals_figure
from fedpals.weights import Weights

_SHOWN_CLIENTS = 30
"""Number of clients in the table."""
_SHOWN_LABELS = 20
"""Number of labels in the table."""
_CELL_WIDTH = 4
"""Characters of a cell with "100" and a space; the space is dropped if the terminal is narrow."""
_OTHER_WIDTH = 17
"""Characters of a row outside its cells: client, n, and the rest of the labels."""
_SHADES = ("black on #d9f0b2", "black on #7fcdbb", "white on #1d84b5", "white on #24398f")
"""Styles from small to large shares, in the colours of the heat map."""

Folder = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Folder to search first, and to download to."),
]


def overview(context: typer.Context, folder: Folder = None) -> None:
    """List the known data sets and where they are; get one, or show how it is divided."""
    if context.invoked_subcommand is not None:
        # "fedpals data --folder PATH show …" is the same as "fedpals data show … --folder PATH".
        context.default_map = {context.invoked_subcommand: {"folder": folder}}
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for line in available(folder):
        where = escape(line.where) if line.where else f"[red]not found:[/red] {escape(line.remedy)}"
        table.add_row(line.name, f"{escape(line.description)}\n[dim]{where}[/dim]")
    new_console().print(table)


def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set that `fedpals data` lists.")],
    folder: Folder = None,
) -> None:
    """Download a data set if it is missing, and check its files."""
    if name not in SOURCES:
        raise InputError(f"{name!r} is not a known data set ({', '.join(SOURCES)}){did_you_mean(name, SOURCES)}")
    root = get_files(name, folder)
    # Reading the files checks them.
    data = load(name, folder)
    where = "no files needed" if root is None else str(root)
    typer.echo(f"{name}: {where}; read {len(data.y):,} samples of {len(data.labels)} labels")


def show(
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="A known data set, a .npz file, or a folder of images by label."),
    ],
    labels_per_client: Annotated[
        int | None, typer.Option(metavar="C", help="Sparsity sampling: number of random labels per client.")
    ] = None,
    beta: Annotated[
        float | None, typer.Option(metavar="β", help="Dirichlet sampling: the smaller, the more clients differ.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(metavar="N", help="Number of clients; in both samplings the last is the target.")
    ] = None,
    samples_per_client: Annotated[
        int | None, typer.Option(metavar="n", help="Samples of each client; by default as many as possible.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(metavar="δ", help="Synthetic task: how far its target is from covered, 0 to 1.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 0,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Redraw the clients with the target's label shares: no shift.")
    ] = False,
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON and nothing else.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the label marginals (png, svg or pdf).")
    ] = None,
) -> None:
    """Show how a data set is divided: labels of all clients and of the target, and whether the target is covered."""
    if labels_per_client is not None and beta is not None:
        raise InputError("--labels-per-client and --beta are two ways to divide a data set; give one of them")
    if plot is not None:
        check_figure_path(plot)
    if task not in SOURCES and not Path(task).expanduser().exists():
        raise InputError(
            f"{task!r} is neither a known data set ({', '.join(SOURCES)}) nor an existing file or folder"
            + did_you_mean(task, SOURCES)
        )
    keys = {
        "task": task,
        "labels_per_client": labels_per_client,
        "beta": beta,
        "clients": clients,
        "samples_per_client": samples_per_client,
        "delta": delta,
    }
    settings = validated(Task, keys)
    federation = settings.federation(seed, oracle=oracle, folder=folder)
    limit = fedpals.solve(federation.counts, federation.target, lam=0)
    title = _title(federation.dataset.name, settings, seed, oracle=oracle)
    if plot is not None:
        save_figure(marginals_figure(federation.counts, federation.target, title=title), plot)
    if as_json:
        arguments = {"task": settings.keys(), "seed": seed, "oracle": oracle}
        sys.stdout.write(json.dumps({**arguments, **_as_json(federation, limit)}, allow_nan=False) + "\n")
        return
    console = new_console()
    console.print(f"[bold]{escape(title)}[/bold]\n")
    _print_marginals(console, federation)
    _print_summary(console, federation, limit)
    if plot is not None:
        console.print(f"\nFigure: {escape(str(plot))}", soft_wrap=True)


def _title(name: str, task: Task, seed: int, *, oracle: bool) -> str:
    """Return the title, with the symbols of the paper."""
    symbols = {"C": task.labels_per_client, "β": task.beta, "δ": task.delta}
    settings = [f"{symbol} = {value:g}" for symbol, value in symbols.items() if value is not None]
    return ", ".join([name, *settings, f"seed {seed}", *(["oracle"] if oracle else [])])


@dataclass(frozen=True, eq=False)
class _Excerpt:
    """The part of a federation that fits a terminal: the first clients and the most common labels."""

    labels: list[str]
    sizes: list[str]
    """Sizes n of the clients, as text."""
    shares: Vector
    """Label shares: a row per client, then the target; a column per label."""
    rest: Vector
    """Share of all other labels, by row."""

    @classmethod
    def of(cls, federation: Federation) -> _Excerpt:
        counts, target = federation.counts, federation.target
        S = np.asarray(counts.marginals)
        frequency = counts.sizes / counts.total @ S + target
        common = np.sort(np.argsort(-frequency, kind="stable")[:_SHOWN_LABELS])
        rows = np.vstack([S[:_SHOWN_CLIENTS], target])
        return cls(
            [federation.dataset.labels[k] for k in common],
            [f"{n:,.0f}" for n in counts.sizes[:_SHOWN_CLIENTS]],
            rows[:, common],
            np.delete(rows, common, axis=1).sum(axis=1),
        )


def _print_marginals(console: Console, federation: Federation) -> None:
    """Print the label shares of the clients and of the target, with a legend."""
    excerpt = _Excerpt.of(federation)
    widths = [max(_CELL_WIDTH, cell_len(name) + 1) for name in excerpt.labels]
    room = console.width - _OTHER_WIDTH
    if sum(widths) <= room:
        console.print(_heat_table(excerpt, excerpt.labels, widths))
    else:
        letters = ascii_lowercase[: len(widths)]
        width = _CELL_WIDTH if _CELL_WIDTH * len(letters) <= room else _CELL_WIDTH - 1
        console.print(_heat_table(excerpt, letters, [width] * len(letters)), "")
        legend = zip(letters, excerpt.labels, strict=True)
        console.print(Columns([f"[bold]{letter}[/bold] {escape(name)}" for letter, name in legend], padding=(0, 2)))
    clients, labels = federation.counts.shape
    notes = ["label shares in %"]
    if clients > _SHOWN_CLIENTS:
        notes.append(f"the first {_SHOWN_CLIENTS} of {clients:,} clients")
    if labels > _SHOWN_LABELS:
        notes.append(f"the {_SHOWN_LABELS} most common of {labels:,} labels")
    more = "; --json shows all" if len(notes) > 1 else ""
    console.print(f"\n[dim]{', '.join(notes)}{more}[/dim]\n")


def _heat_table(excerpt: _Excerpt, headings: Sequence[str], widths: Sequence[int]) -> Table:
    """Return a table of the shares, without gaps between the shades."""
    table = Table(box=None, padding=0, header_style="bold")
    table.add_column("client", min_width=7)
    table.add_column("n", justify="right", min_width=5)
    table.add_column(width=1)
    for heading, width in zip(headings, widths, strict=True):
        table.add_column(Text(f"{heading.rjust(2):^{width}}"), width=width, no_wrap=True)
    table.add_column("rest" if excerpt.rest.any() else "", justify="right")
    for client, size in enumerate(excerpt.sizes):
        table.add_row(str(client), size, "", *_cells(excerpt, client, widths))
    table.add_row()
    table.add_row("[bold]target[/bold]", "", "", *_cells(excerpt, -1, widths))
    return table


def _cells(excerpt: _Excerpt, row: int, widths: Sequence[int]) -> list[Text]:
    """Return the shares as text on their shades; without colours, the numbers remain."""
    darkest = len(_SHADES) - 1
    levels = np.floor(excerpt.shares[row] / excerpt.shares.max() * len(_SHADES)).clip(max=darkest).astype(int)
    cells = [
        Text(f"{_percent(share).rjust(2):^{width}}", style=_SHADES[level] if share else "dim")
        for share, level, width in zip(excerpt.shares[row], levels, widths, strict=True)
    ]
    rest = _percent(excerpt.rest[row]) if excerpt.rest.any() else ""
    return [*cells, Text(rest)]


def _percent(share: float) -> str:
    if share == 0:
        return "·"
    return f"{100 * share:.0f}" if share >= 0.005 else "<1"


def _print_summary(console: Console, federation: Federation, limit: Weights) -> None:
    summary = Table(box=None, pad_edge=False, show_header=False)
    summary.add_column(style="bold")
    summary.add_column()
    clients = len(federation.clients)
    summary.add_row("clients", f"{clients:,} to train on, N = {limit.counts.total:,.0f} samples in total")
    summary.add_row(
        "evaluation", f"{federation.validation.size:,} samples for validation, {federation.test.size:,} for test"
    )
    summary.add_row("target", coverage_sentence(limit))
    summary.add_row("FedAvg", f"squared distance {limit.fedavg_squared_distance:.4g}")
    ess = f"ESS {limit.ess:.1%} = {limit.effective_samples:,.0f} samples"
    summary.add_row("best match", f"squared distance {limit.squared_distance:.4g} at λ → 0⁺, {ess}")
    console.print(summary)


def _as_json(federation: Federation, limit: Weights) -> dict[str, Any]:
    counts, projection = limit.counts, limit.projection
    table = federation.table
    return {
        "labels": federation.dataset.labels,
        "counts": table.tolist(),
        "sizes": table.sum(axis=1).tolist(),
        "target": limit.target.tolist(),
        "samples": int(counts.total),
        "validation_samples": federation.validation.size,
        "test_samples": federation.test.size,
        "covered": projection.covered,
        "projection": {
            "squared_distance": projection.squared_distance,
            "marginal": projection.point.tolist(),
            "margin": projection.margin,
        },
        "fedavg": {"alpha": limit.fedavg.tolist(), "squared_distance": limit.fedavg_squared_distance},
        "best_match": {
            "alpha": limit.alpha.tolist(),
            "squared_distance": limit.squared_distance,
            "ess": limit.ess,
            "effective_samples": limit.effective_samples,
        },
    }
