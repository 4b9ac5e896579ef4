"""`fedpals tune`: the effective sample size, chosen by what clients held out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedpals.cli.run import check_device, insist, read_config, watched
from fedpals.errors import InputError

if TYPE_CHECKING:
    from fedpals.experiments.tuning import Candidate

_OUT = Path("runs")


class Correction(StrEnum):
    """How the model will be used."""

    raw = "raw"
    prior = "prior"
    calibrated = "calibrated"


def tune(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings; flags given as well take precedence.")
    ] = None,
    grid: Annotated[int, typer.Option(metavar="L", min=1, help="Equidistributed values of ESS besides 100 %.")] = 4,
    correction: Annotated[
        Correction, typer.Option(help="How the model will be used, hence what is compared.")
    ] = Correction.prior,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of runs.")] = _OUT,
    data_folder: Annotated[Path | None, typer.Option(help="Where to look for data first.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda where there is one.")] = "cpu",
    resume: Annotated[bool, typer.Option(help="Continue unfinished runs, or start them over.")] = True,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Rounds between checkpoints.")] = 1,
    **flags: Any,
) -> None:
    """Choose the ESS of FedPALS without a target sample: a run for each, compared by the clients' estimate."""
    given = {key: value for key, value in flags.items() if value is not None}
    settings = {**read_config(config), **given}
    if settings.pop("seeds", 1) != 1:
        raise InputError("seeds: every seed has clients of its own, hence an ESS of its own; give one --seed")
    from fedpals.experiments import Settings  # torch takes a second to load: only where it is used
    from fedpals.experiments.tuning import candidate, choose, ess_runs, unseen

    if device != "cpu":
        check_device(device)
    runs = ess_runs(settings, grid, data_folder)
    console = Console(highlight=False)
    outcome = watched(runs, Settings(out, workers, data_folder, device, resume, checkpoint_every), console)
    insist(outcome, runs, console)
    candidates = [candidate(record, correction.value) for record in outcome.records]
    best = choose(candidates)
    console.print(_table(candidates, best))
    console.print(
        f"[dim]Target accuracy in %, {_MEANING[correction]}, at the round that the estimate selects. "
        "Validation and test are the simulation's own truth: shown, not used.[/dim]",
    )
    labels, share = unseen(outcome.records[best])
    if labels:
        console.print(
            f"[yellow]Nobody held out {escape(', '.join(labels))}, {share:.0%} of the target: "
            "the estimate is about the rest alone.[/]",
            soft_wrap=True,
        )
    chosen = {**given, "held_out": runs[best].held_out, "ess": candidates[best].ess}
    chosen |= {key: value for key, value in (("out", out), ("data_folder", data_folder)) if value not in (None, _OUT)}
    command = ["fedpals", "run", *([str(config)] if config else []), *_flags(chosen)]
    console.print(f"\nChosen: ESS {candidates[best].ess:.1%}. The run is finished; this shows it again:")
    console.print(shlex.join(command), soft_wrap=True, markup=False)


_MEANING: Mapping[Correction, str] = {
    Correction.raw: "as trained",
    Correction.prior: "with the target prior correction",
    Correction.calibrated: "calibrated",
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
            f"[dim]{100 * c.validation:.1f}[/dim]",
            f"[dim]{100 * c.test:.1f}[/dim]",
        ]
        table.add_row(*cells, "← chosen" if number == best else "", style="bold" if number == best else None)
    return table
