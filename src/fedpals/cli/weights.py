"""`fedpals weights`: aggregation weights, coverage and advice from two CSV files."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import fedpals
from fedpals.cli.terminal import escape, new_console
from fedpals.errors import InputError
from fedpals.files import replacing, spreadsheet_safe
from fedpals.labels import match
from fedpals.labels.tables import read_counts, read_target
from fedpals.report.advice import (
    ESS_MEANING,
    advice,
    coverage_sentence,
    fedavg_mismatch,
    mismatch,
    shortage_sentence,
    used_clients,
)
from fedpals.report.explorer import write_explorer
from fedpals.report.figures import check_figure_path, save_figure, weights_figure
from fedpals.report.html import check_page
from fedpals.report.weights_figure import weights_overview
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
        typer.Option(help="Effective sample size to keep, as a fraction of all samples; 0.5 by default."),
    ] = None,
    lam: Annotated[
        float | None, typer.Option(help="Instead, λ of the paper's equation: 0 matches best, inf is FedAvg.")
    ] = None,
    grid: Annotated[
        int | None,
        typer.Option(
            metavar="L", min=1, max=1000, help="Instead, show the trade-off at L evenly spaced values of ESS."
        ),
    ] = None,
    max_weight: Annotated[
        float | None,
        typer.Option(help="Largest weight that a client may have, for instance 0.2.", show_default="no limit"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON and nothing else.")] = False,
    csv_file: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE.csv", help="Write client, n, FedAvg and FedPALS there.", show_default="no file"
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png", help="Draw weights, label mix and trade-off (png, svg or pdf).", show_default="no file"
        ),
    ] = None,
    explore: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Write a page with a slider over the whole trade-off.", show_default="no file"
        ),
    ] = None,
    missing_is_zero: Annotated[
        bool,
        typer.Option("--missing-is-zero", help="Labels that are not in TARGET.csv have probability 0."),
    ] = False,
    blank_is_zero: Annotated[
        bool,
        typer.Option("--blank-is-zero", help="Empty cells of CLIENTS.csv are counts of 0."),
    ] = False,
) -> None:
    """Aggregation weights for a target from label counts, and whether it is covered.

    Cells may be separated by comma, semicolon or tab. The target is two columns, label and probability (or
    percentage, or count), or the labels above one row of numbers.
    """
    if sum(choice is not None for choice in (ess, lam, grid)) > 1:
        raise InputError("--ess, --lam and --grid are alternatives; give only one of them")
    if max_weight is not None and explore is not None:
        raise InputError("--explore shows weights without a limit; leave out --max-weight, or use --plot")
    if plot is not None:
        check_figure_path(plot)
    if explore is not None:
        check_page(explore)
    counts = read_counts(clients, blank_is_zero=blank_is_zero)
    table = read_target(target, counts.labels)
    try:
        counts, T = match(counts, table.shares, missing_is_zero=missing_is_zero, tolerance=table.tolerance)
    except InputError as error:
        flag = " (--missing-is-zero)" if "missing labels mean 0" in str(error) else ""
        raise InputError(f"{target}: {error}{flag}") from None
    if grid is not None:
        limit, fedavg = (fedpals.solve(counts, T, lam=value, max_weight=max_weight) for value in (0.0, math.inf))
        solutions: Sequence[Weights] = (limit, *fedpals.ess_grid(counts, T, grid, max_weight=max_weight), fedavg)
    elif lam is not None:
        solutions = (fedpals.solve(counts, T, lam=lam, max_weight=max_weight),)
    else:
        solutions = (fedpals.solve(counts, T, ess=0.5 if ess is None else ess, max_weight=max_weight),)
    if plot is not None:
        save_figure(weights_figure(solutions) if grid is not None else weights_overview(solutions[0]), plot)
    if csv_file is not None:
        _write_csv(csv_file, solutions)
    if explore is not None:
        title = f"Weights of {clients.name} for the target {target.name}"
        write_explorer(counts, T, explore, name=title, ess=solutions[0].ess)
    if as_json:
        sys.stdout.write(json.dumps(_as_json(solutions), allow_nan=False) + "\n")
        return
    console = new_console()
    if table.note:
        console.print(f"[dim]{escape(table.note)}[/dim]", soft_wrap=True)
    if grid is None:
        _print_clients(console, solutions[0])
    _print_summary(console, solutions[0], tradeoff=solutions if grid is not None else ())
    if csv_file is not None:
        console.print(f"Weights: {escape(str(csv_file))}", soft_wrap=True)
    if plot is not None:
        console.print(f"Figure: {escape(str(plot))}", soft_wrap=True)
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


def _write_csv(path: Path, solutions: Sequence[Weights]) -> None:
    """Write a row per client: name, n, FedAvg's weight, and FedPALS's, a column per solution."""
    first = solutions[0]
    names = ["FedPALS"] if len(solutions) == 1 else [f"FedPALS, ESS {w.ess:.1%}" for w in solutions]
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "n", "FedAvg", *names])
        for i in range(first.alpha.size):
            weights = (float(w.alpha[i]) if w.alpha[i] > w.certificate.error else 0.0 for w in solutions)
            name = spreadsheet_safe(first.counts.client(i))
            writer.writerow([name, int(first.counts.sizes[i]), float(first.fedavg[i]), *weights])


def _print_summary(console: Console, solution: Weights, tradeoff: Sequence[Weights]) -> None:
    summary = Table(box=None, pad_edge=False, show_header=False)
    summary.add_column(style="bold")
    summary.add_column()
    summary.add_row("target", coverage_sentence(solution))
    if not tradeoff:
        certificate = solution.certificate
        note = _clamped_note(solution) if solution.clamped else ""
        before, after = fedavg_mismatch(solution), mismatch(solution.target, solution.marginal)
        summary.add_row("wrong mix", f"for {after:.1%} of samples (FedAvg {before:.1%})")
        summary.add_row(
            "squared distance", f"{solution.squared_distance:.4g} (FedAvg {solution.fedavg_squared_distance:.4g})"
        )
        summary.add_row("ESS", f"{solution.ess:.1%} = {solution.effective_samples:,.0f} samples{note}: {ESS_MEANING}")
        summary.add_row("λ", f"{solution.lam:.6g}")
        summary.add_row(
            "certificate",
            f"weights proven within {certificate.error:.0e}, gap {certificate.relative_gap:.0e}",
        )
        console.print(summary)
        for sentence in (shortage_sentence(solution), advice(solution)):
            if sentence is not None:
                console.print(f"\n{escape(sentence)}")
        return
    console.print(summary)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("ESS", "samples", "λ", "wrong mix", "squared distance", "clients with weight"):
        table.add_column(column, justify="right")
    for row in tradeoff:
        table.add_row(
            f"{row.ess:.1%}",
            f"{row.effective_samples:,.0f}",
            f"{row.lam:.4g}",
            f"{mismatch(row.target, row.marginal):.1%}",
            f"{row.squared_distance:.4g}",
            f"{used_clients(row):,}",
        )
    console.print()
    console.print(table)
    last = "FedAvg" if solution.max_weight is None else "the closest to FedAvg that --max-weight allows"
    console.print(
        f"\nThe first row matches the target best, the last is {last}; choose one with --ess on validation data."
    )


def _clamped_note(solution: Weights) -> str:
    """Say why the ESS is not the one that was asked for."""
    if solution.lam == 0:
        return " (the smallest possible: the best match keeps more than you asked for)"
    return f" (the largest possible with weights of at most {solution.max_weight:g})"


def _as_json(solutions: Sequence[Weights]) -> dict[str, Any]:
    first = solutions[0]
    counts, projection = first.counts, first.projection
    return {
        "clients": counts.clients,
        "labels": counts.labels,
        "sizes": counts.sizes.astype(np.int64).tolist(),
        "target": first.target.tolist(),
        "max_weight": first.max_weight,
        "covered": projection.covered,
        "coverage": coverage_sentence(first),
        "shortage": shortage_sentence(first),
        "projection": {
            "squared_distance": projection.squared_distance,
            "wrong_mix": mismatch(first.target, projection.point),
            "marginal": projection.point.tolist(),
            "margin": projection.margin,
        },
        "fedavg": {
            "alpha": first.fedavg.tolist(),
            "squared_distance": first.fedavg_squared_distance,
            "wrong_mix": fedavg_mismatch(first),
        },
        "solutions": [
            {
                "lam": row.lam if math.isfinite(row.lam) else "inf",
                "ess": row.ess,
                "effective_samples": row.effective_samples,
                "clamped": row.clamped,
                "alpha": row.alpha.tolist(),
                "squared_distance": row.squared_distance,
                "wrong_mix": mismatch(row.target, row.marginal),
                "advice": advice(row),
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
