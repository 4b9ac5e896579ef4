"""`fedpals tune`: choose the effective sample size by the clients' estimate of target accuracy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedpals.cli.flags import OUTPUT, CheckpointEvery, DataFolder, Device, Resume
from fedpals.cli.run import (
    CONFIG_HELP,
    check_device,
    exit_unless_finished,
    naming_file,
    need_torch,
    read_config,
    sweep_with_progress,
)
from fedpals.cli.terminal import escape, new_console
from fedpals.errors import InputError
from fedpals.shift.evaluation import Correction
from fedpals.simulation.settings import SweepSettings

if TYPE_CHECKING:
    from fedpals.simulation.ess_search import Candidate

_OUT = Path("runs")


class Use(StrEnum):
    """How the model will be used: the corrections that a round can be selected with."""

    raw = Correction.RAW.value
    prior = Correction.PRIOR.value
    calibrated = Correction.CALIBRATED.value


def tune(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help=CONFIG_HELP)] = None,
    grid: Annotated[int, typer.Option(metavar="L", min=1, help="Evenly spaced values of ESS besides 100 %.")] = 4,
    correction: Annotated[Use, typer.Option(help="How the model will be used and compared.")] = Use.prior,
    workers: Annotated[int, typer.Option(min=1, help="Processes.", rich_help_panel=OUTPUT)] = 1,
    out: Annotated[Path, typer.Option(help="Folder of runs.", rich_help_panel=OUTPUT)] = _OUT,
    data_folder: DataFolder = None,
    device: Device = "cpu",
    resume: Resume = True,
    checkpoint_every: CheckpointEvery = 1,
    **flags: Any,
) -> None:
    """Choose the ESS of FedPALS without target samples: one run per ESS, compared by the clients' estimate."""
    given = {key: value for key, value in flags.items() if value is not None}
    settings = {**read_config(config), **given}
    if settings.pop("seeds", 1) != 1:
        raise InputError("seeds: each seed has its own clients, and so its own best ESS; give one --seed")
    need_torch("fedpals tune")
    from fedpals.simulation.ess_search import best_candidate, candidate, ess_runs, unseen

    if device != "cpu":
        check_device(device)
    with naming_file(config, given):
        runs = ess_runs(settings, grid, data_folder)
    console = new_console()
    outcome = sweep_with_progress(
        runs, SweepSettings(out, workers, data_folder, device, resume, checkpoint_every), console
    )
    exit_unless_finished(outcome, runs, console)
    candidates = [candidate(record, Correction(correction.value)) for record in outcome.records]
    best = best_candidate(candidates)
    console.print(_table(candidates, best))
    console.print(
        f"[dim]Target accuracy in %, {_MEANING[correction]}, at the round that the estimate selects. "
        "Validation and test accuracy are known only in a simulation: they are shown, but not used to choose.[/dim]",
    )
    labels, share = unseen(outcome.records[best])
    if labels:
        console.print(
            f"[yellow]No client held out samples of {escape(', '.join(labels))}, {share:.0%} of the target: "
            "the estimate covers only the other labels.[/]",
            soft_wrap=True,
        )
    chosen = {**given, "held_out": runs[best].knowledge.held_out, "ess": candidates[best].ess}
    chosen |= {key: value for key, value in (("out", out), ("data_folder", data_folder)) if value not in (None, _OUT)}
    command = ["fedpals", "run", *([str(config)] if config else []), *_flags(chosen)]
    console.print(f"\nChosen: ESS {candidates[best].ess:.1%}. The run is finished; this command shows it again:")
    console.print(shlex.join(command), soft_wrap=True, markup=False)


_MEANING: Mapping[Use, str] = {
    Use.raw: "as trained",
    Use.prior: "with the target prior correction",
    Use.calibrated: "calibrated",
}


def _flags(keys: Mapping[str, Any]) -> list[str]:
    return [word for key, value in keys.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def _table(candidates: Sequence[Candidate], best: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("ESS", "λ", "estimate", "round", "(validation)", "(test)"):
        table.add_column(column, justify="right")
    table.add_column("")
    for number, c in enumerate(candidates):
        error = "?" if c.standard_error is None else f"{100 * c.standard_error:.1f}"
        cells = [
            f"{c.ess:.1%}",
            f"{c.lam:.4g}",
            f"{100 * c.estimate:.1f} ± {error}",
            str(c.round),
            *("" if value is None else f"[dim]{100 * value:.1f}[/dim]" for value in (c.validation, c.test)),
        ]
        table.add_row(*cells, "← chosen" if number == best else "", style="bold" if number == best else None)
    return table
