"""`fedpals weights`: aggregation weights, coverage and advice from two CSV files."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import fedpals
from fedpals.errors import InputError
from fedpals.labels import match
from fedpals.labels.tables import read_counts, read_target
from fedpals.report.advice import advice, coverage_sentence
from fedpals.report.explorer import write_explorer
from fedpals.report.figures import check_figure_path, save_figure, weights_figure
from fedpals.report.html import check_page
from fedpals.weights import Weights

_SHOWN = 30
_BAR = 24


def weights(
    clients: Annotated[
        Path,
        typer.Argument(metavar="CLIENTS.csv", help="Label counts: a client per row, a label per column."),
    ],
    target: Annotated[
        Path,
        typer.Option(metavar="TARGET.csv", help="The target: a label and its probability or count per row."),
    ],
    ess: Annotated[
        float | None,
        typer.Option(help="Effective sample size to keep, as a fraction of all samples. Without a choice: 0.5."),
    ] = None,
    lam: Annotated[
        float | None, typer.Option(help="λ of the paper's equation instead: 0 matches best, inf is FedAvg.")
    ] = None,
    grid: Annotated[
        int | None, typer.Option(metavar="L", help="The trade-off instead: L equidistributed values of ESS.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON and nothing else.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the weights (png, svg or pdf).")] = None,
    explore: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page with a slider over the whole trade-off.")
    ] = None,
    missing_is_zero: Annotated[
        bool,
        typer.Option("--missing-is-zero", help="A label that TARGET.csv does not name has probability 0."),
    ] = False,
) -> None:
    """Aggregation weights for a target from label counts, and whether it is covered."""
    if sum(choice is not None for choice in (ess, lam, grid)) > 1:
        raise InputError("--ess, --lam and --grid are three ways to say the same: give one of them")
    if plot is not None:
        check_figure_path(plot)
    if explore is not None:
        check_page(explore)
    table = read_target(target)
    try:
        counts, T = match(
            read_counts(clients), table.shares, missing_is_zero=missing_is_zero, tolerance=table.tolerance
        )
    except InputError as error:
        if "missing labels mean 0" in str(error):
            raise InputError(f"{target}: {error} (--missing-is-zero)") from None
        raise
    if grid is not None:
        limit, fedavg = (fedpals.solve(counts, T, lam=value) for value in (0.0, math.inf))
        solutions: Sequence[Weights] = (limit, *fedpals.ess_grid(counts, T, grid), fedavg)
    elif lam is not None:
        solutions = (fedpals.solve(counts, T, lam=lam),)
    else:
        solutions = (fedpals.solve(counts, T, ess=0.5 if ess is None else ess),)
    if plot is not None:
        save_figure(weights_figure(solutions), plot)
    if explore is not None:
        write_explorer(counts, T, explore, name=f"{clients.stem} → {target.stem}", ess=solutions[0].ess)
    if as_json:
        sys.stdout.write(json.dumps(_as_json(solutions), allow_nan=False) + "\n")
        return
    console = Console()
    if table.counted:
        console.print(f"[dim]{escape(str(target))} holds counts; they were normalised to probabilities.[/dim]")
    if grid is None:
        _print_clients(console, solutions[0])
    _print_summary(console, solutions[0], tradeoff=solutions if grid is not None else ())
    if plot is not None:
        console.print(f"Figure: {escape(str(plot))}")
    if explore is not None:
        console.print(f"Explorer: {escape(str(explore))}", soft_wrap=True)


def _print_clients(console: Console, solution: Weights) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("client")
    for column in ("n", "FedAvg", "FedPALS"):
        table.add_column(column, justify="right")
    table.add_column("")
    counts, alpha, fedavg = solution.counts, solution.alpha, solution.fedavg
    shown = np.argsort(-alpha, kind="stable")[:_SHOWN]
    scale = _BAR / float(alpha.max())
    for i in sorted(shown) if alpha.size <= _SHOWN else shown:
        bar = "█" * round(float(alpha[i]) * scale) or ("▏" if alpha[i] > solution.certificate.error else "")
        table.add_row(
            escape(counts.client(i)),
            f"{counts.sizes[i]:,.0f}",
            f"{fedavg[i]:.4f}",
            f"{alpha[i]:.4f}",
            f"[blue]{bar}[/]",
        )
    console.print(table)
    if alpha.size > _SHOWN:
        rest = 1.0 - float(alpha[shown].sum())
        console.print(f"[dim]and {alpha.size - _SHOWN:,} more clients with {rest:.4f} together; --json shows all[/dim]")
    console.print()


def _print_summary(console: Console, solution: Weights, tradeoff: Sequence[Weights]) -> None:
    summary = Table(box=None, pad_edge=False, show_header=False)
    summary.add_column(style="bold")
    summary.add_column()
    summary.add_row("target", coverage_sentence(solution))
    summary.add_row("FedAvg", f"squared distance {solution.fedavg_squared_distance:.4g}")
    if not tradeoff:
        certificate = solution.certificate
        note = "  (the smallest there is: the best match keeps more than was asked for)" if solution.clamped else ""
        summary.add_row("FedPALS", f"squared distance {solution.squared_distance:.4g}")
        summary.add_row("ESS", f"{solution.ess:.1%} = {solution.effective_samples:,.0f} samples{note}")
        summary.add_row("λ", f"{solution.lam:.6g}")
        summary.add_row(
            "certificate",
            f"weights proven within {certificate.error:.0e}, gap {certificate.relative_gap:.0e}",
        )
        console.print(summary)
        console.print(f"\n{advice(solution)}")
        return
    console.print(summary)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("ESS", "samples", "λ", "squared distance", "clients with weight"):
        table.add_column(column, justify="right")
    for row in tradeoff:
        used = int(np.count_nonzero(row.alpha))
        table.add_row(
            f"{row.ess:.1%}",
            f"{row.effective_samples:,.0f}",
            f"{row.lam:.4g}",
            f"{row.squared_distance:.4g}",
            f"{used:,}",
        )
    console.print()
    console.print(table)
    console.print(
        "\nThe first row matches the target best, the last is FedAvg; choose one with --ess on validation data."
    )


def _as_json(solutions: Sequence[Weights]) -> dict[str, Any]:
    first = solutions[0]
    counts, projection = first.counts, first.projection
    return {
        "clients": counts.clients,
        "labels": counts.labels,
        "sizes": counts.sizes.astype(np.int64).tolist(),
        "target": first.target.tolist(),
        "covered": projection.covered,
        "projection": {
            "squared_distance": projection.squared_distance,
            "marginal": projection.point.tolist(),
            "margin": projection.margin,
        },
        "fedavg": {"alpha": first.fedavg.tolist(), "squared_distance": first.fedavg_squared_distance},
        "solutions": [
            {
                "lam": row.lam if math.isfinite(row.lam) else "inf",
                "ess": row.ess,
                "effective_samples": row.effective_samples,
                "clamped": row.clamped,
                "alpha": row.alpha.tolist(),
                "squared_distance": row.squared_distance,
                "marginal": row.marginal.tolist(),
                "certificate": {
                    "gap": row.certificate.gap,
                    "relative_gap": row.certificate.relative_gap,
                    "error": row.certificate.error,
                },
            }
            for row in solutions
        ],
    }
