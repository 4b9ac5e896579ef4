"""`fedpals predict`: probabilities of a finished run's model for new inputs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from fedpals.cli.run import TRUST_HELP, need_torch
from fedpals.cli.terminal import escape, new_console
from fedpals.errors import InputError
from fedpals.files import replacing
from fedpals.labels.tables import TargetTable, read_target
from fedpals.shift.evaluation import Correction

if TYPE_CHECKING:
    from fedpals.data.dataset import Samples
    from fedpals.engine.target_model import TargetModel
    from fedpals.simulation.record import Record

_BEST_FIRST = (Correction.RECOMMENDED, Correction.CALIBRATED, Correction.PRIOR, Correction.RAW)


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="A finished run, or a saved model (.safetensors).")],
    inputs: Annotated[
        Path,
        typer.Argument(
            metavar="INPUTS",
            help="New samples: a .npz file with an array x, a .csv file with the columns of training, or a folder "
            "of images.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE.csv", help="Write probabilities there.", show_default="print the first 20"
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(metavar="TARGET.csv", help="T to predict for.", show_default="the run's"),
    ] = None,
    use: Annotated[
        str | None,
        typer.Option(
            help="Which of the run's models: recommended, calibrated, prior or raw.", show_default="the first available"
        ),
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST_HELP)] = False,
) -> None:
    """Predict labels of new inputs for the target: probabilities, the most probable label, and its probability."""
    need_torch("fedpals predict")
    from fedpals.engine.target_model import TargetModel

    path = run if run.suffix == ".safetensors" else _model_file(run, use, other_target=target is not None)
    model = TargetModel.load(path, trust=trust)
    table = None if target is None else read_target(target)
    T = None if table is None else _target(table, model)
    names, x = _read(inputs, model)
    probabilities = model.predict_proba(x, target=T)
    console = new_console()
    if table is not None and table.note:
        console.print(f"[dim]{escape(table.note)}[/dim]", soft_wrap=True)
    header = ["input", "label", "certainty", *model.labels]
    best = probabilities.argmax(axis=1)
    rows = [
        [name, model.labels[k], f"{p[k]:.4f}", *(f"{value:.6g}" for value in p)]
        for name, k, p in zip(names, best.tolist(), probabilities, strict=True)
    ]
    if out is not None:
        with replacing(out) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        console.print(f"{len(rows):,} predictions: {escape(str(out))}", soft_wrap=True)
        return
    writer = csv.writer(console.file)
    writer.writerows([header, *rows[:20]])
    if len(rows) > 20:
        console.print(f"[dim]and {len(rows) - 20:,} more; write all with -o FILE.csv[/dim]")


def _model_file(folder: Path, use: str | None, *, other_target: bool) -> Path:
    """Return the run's model to use; for another T, one whose last layer is not specific to the run's T."""
    from fedpals.simulation.record import Record

    record: Record = Record.at(folder)
    if use is not None:
        if use not in {c.value for c in Correction}:
            raise InputError(f"--use is {use!r}; give {', '.join(c.value for c in _BEST_FIRST)}")
        path = record.model(Correction(use))
        if not path.is_file():
            raise InputError(f"{folder} has no model {use!r}; it has {', '.join(_available(record))}")
        return path
    order = (Correction.PRIOR, Correction.RAW) if other_target else _BEST_FIRST
    return next(path for c in order if (path := record.model(c)).is_file())


def _available(record: Record) -> list[str]:
    return [c.value for c in _BEST_FIRST if record.model(c).is_file()]


def _target(table: TargetTable, model: TargetModel) -> dict[str, float]:
    shares = table.probabilities
    if unknown := [label for label in shares if label not in model.labels]:
        raise InputError(
            f"{table.path}: the model has no label {unknown[0]!r}; its labels are {', '.join(model.labels)}"
        )
    return shares


def _read(path: Path, model: TargetModel) -> tuple[list[str], Samples]:
    """Return names and raw inputs."""
    from fedpals.data.dataset import ImageFiles
    from fedpals.data.sources.own import read_columns, read_inputs

    if not path.exists():
        raise InputError(f"{path}: no such file or folder; give a .npz or .csv file, or a folder of images")
    if path.suffix in {".csv", ".tsv"}:
        x: Any = read_columns(path, model.facts.columns)
    else:
        x = read_inputs(path)
    if isinstance(x, ImageFiles):
        return list(x.names), x
    return [str(i) for i in np.arange(len(x))], x
