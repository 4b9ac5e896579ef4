"""`fedpals estimate-target`: estimate the target's label shares from unlabelled inputs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpals.cli.run import TRUST_HELP, need_torch
from fedpals.cli.terminal import escape, new_console
from fedpals.errors import FedpalsError, InputError
from fedpals.files import replacing

if TYPE_CHECKING:
    from fedpals.shift import TargetEstimate

_SHOWN_LABELS = 30
"""Number of labels in the table, the most frequent ones; --json has all."""


class Estimator(StrEnum):
    """Estimator of T."""

    bbse = "bbse"
    em = "em"


def estimate_target(
    run: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="A finished run whose clients held samples out.")],
    inputs: Annotated[
        Path | None,
        typer.Argument(
            metavar="[INPUTS]",
            help="Unlabelled inputs of the target: a .npz file with an array x, or a folder of images. "
            "By default the run's own test inputs, to see how good the estimate is.",
        ),
    ] = None,
    level: Annotated[float, typer.Option(help="Probability that an interval covers the true value.")] = 0.95,
    by: Annotated[Estimator, typer.Option(help="Estimate to write to TARGET.csv.")] = Estimator.bbse,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="TARGET.csv", help="Write the target, for fedpals weights."),
    ] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Folder to search for data first.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST_HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON and nothing else.")] = False,
) -> None:
    """Estimate an unknown T from the predictions of a run's model on unlabelled inputs of the target.

    RUN_FOLDER is a finished run with --held-out. INPUTS is a .npz file with an array x, or a folder of images; by
    default the run's own test inputs are used, to see how good the estimate is.
    """
    if not 0 < level < 1:
        raise InputError(f"--level is {level:g}; it must be between 0 and 1, for instance 0.95")
    need_torch("fedpals estimate-target")
    from fedpals.simulation import unlabelled  # imports torch, which is slow, so only here
    from fedpals.simulation.record import Record

    record = Record.at(run)
    record.tallies()  # raises an error if the run has none, before any prediction is computed
    data = unlabelled.own_inputs(record, data_folder) if inputs is None else unlabelled.inputs_of(inputs, record)
    logits = unlabelled.predict(record, *data, data_folder, trust=trust)
    estimates: dict[Estimator, TargetEstimate] = {}
    failed: dict[Estimator, FedpalsError] = {}
    for name, estimate in ((Estimator.bbse, unlabelled.by_bbse), (Estimator.em, unlabelled.by_em)):
        try:
            estimates[name] = estimate(record, logits, level=level)
        except FedpalsError as error:
            failed[name] = error
    if not estimates:
        raise failed[by]
    view = record.server_view()
    if out is not None:
        if by in failed:
            raise InputError(f"{failed[by]}; or write the other estimate, --by {next(iter(estimates)).value}")
        _write(out, view.labels, estimates[by])
    if as_json:
        values: dict[str, Any] = {name.value: _as_json(estimate) for name, estimate in estimates.items()}
        values |= {name.value: {"error": str(reason)} for name, reason in failed.items()}
        values = {"samples": len(logits), "labels": view.labels, **values}
        sys.stdout.write(json.dumps(values, allow_nan=False) + "\n")
        return
    console = new_console()
    where = f"{inputs}" if inputs is not None else "the run's own test set, without its labels"
    console.print(f"[dim]{len(logits):,} unlabelled inputs: {escape(where)}[/dim]\n", soft_wrap=True)
    _print_table(console, view.labels, view.target, estimates)
    for name, reason in failed.items():
        console.print(f"\n[yellow]No {name.value.upper()}: {escape(str(reason))}[/]", soft_wrap=True)
    console.print(
        "\nBBSE only needs a model that distinguishes the labels. EM is more precise, but needs calibrated "
        "probabilities, and its intervals\ndo not account for miscalibration. If the two differ by more than their "
        "intervals, trust BBSE.",
        soft_wrap=True,
    )
    if out is not None:
        console.print(f"Target ({by.value.upper()}): {escape(str(out))}", soft_wrap=True)


def _print_table(
    console: Console, labels: Sequence[str], assumed: Sequence[float], estimates: Mapping[Estimator, TargetEstimate]
) -> None:
    level = next(iter(estimates.values())).level
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("label")
    for name in estimates:
        table.add_column(name.value.upper(), justify="right")
        table.add_column(f"{level:.0%} interval", justify="right")
    table.add_column("T of the run", justify="right")
    largest = [max(assumed[y], *(float(e.target[y]) for e in estimates.values())) for y in range(len(labels))]
    indices = sorted(sorted(range(len(labels)), key=lambda y: -largest[y])[:_SHOWN_LABELS])
    for y in indices:
        cells = []
        for e in estimates.values():
            cells += ["?" if y in e.unseen else f"{e.target[y]:.3f}", f"{e.lower[y]:.3f} – {e.upper[y]:.3f}"]
        table.add_row(escape(labels[y]), *cells, f"{assumed[y]:.3f}")
    console.print(table)
    if len(labels) > _SHOWN_LABELS:
        console.print(f"[dim]the {_SHOWN_LABELS} most frequent of {len(labels):,} labels; --json shows all[/dim]")
    if unseen := sorted({y for e in estimates.values() for y in e.unseen}):
        names = ", ".join(labels[y] for y in unseen)
        console.print(
            f"[dim]? no client held out or trained on this label, so its share is unknown: {escape(names)}[/dim]"
        )


def _write(path: Path, labels: Sequence[str], estimate: TargetEstimate) -> None:
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "probability"])
        writer.writerows(zip(labels, (repr(value) for value in estimate.target.tolist()), strict=True))


def _as_json(estimate: TargetEstimate) -> dict[str, Any]:
    return {
        "target": estimate.target.tolist(),
        "lower": estimate.lower.tolist(),
        "upper": estimate.upper.tolist(),
        "level": estimate.level,
        "unseen": estimate.unseen,
    }
