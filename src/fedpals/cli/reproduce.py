"""`fedpals reproduce`: compute an experiment of the paper, and show our numbers next to the paper's."""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedpals.cli.run import RAY_HELP, check_device, need_torch
from fedpals.cli.terminal import escape, new_console
from fedpals.errors import InputError
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings
from fedpals.study.progress import SweepProgress

if TYPE_CHECKING:
    from fedpals.experiments.results import Results
    from fedpals.experiments.verify import Verification

_VERDICT_STYLES = {"better": "green", "equal": "dim", "worse": "red"}


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="An experiment; see --list.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show what is computed, under way and missing, and exit.")
    ] = False,
    row: Annotated[list[str] | None, typer.Option(help="Compute this row only; may be given several times.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Compute this method only; likewise.")] = None,
    seed: Annotated[list[int] | None, typer.Option(min=0, help="Compute this seed only; likewise.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Train what is stored again, compare, and store nothing.")
    ] = False,
    scale: Annotated[
        str | None,
        typer.Option(
            help="desk, for a small machine, or paper, as in the paper.",
            show_default="that of the stored results, else the experiment's first",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 2,
    hours: Annotated[
        float | None, typer.Option(min=0, help="Stop after so many hours; the same command continues.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs, shared by all experiments.")] = Path("runs"),
    results: Annotated[Path, typer.Option(help="Folder for compact results, from which tables are built.")] = Path(
        "results"
    ),
    experiments: Annotated[Path | None, typer.Option(help="Folder of experiments; by default the paper's.")] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Folder to search for data first.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda if available.")] = "cpu",
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help=RAY_HELP)] = None,
) -> None:
    """Run an experiment of the paper; an interrupted one continues, and finished runs are never repeated."""
    from fedpals.experiments.experiment import DEFINITIONS  # slow to import, so only here

    folder = experiments or DEFINITIONS
    console = new_console()
    if status:
        console.print(_status(folder, name, results, out))
        return
    if list_ or name is None:
        console.print(_overview(folder))
        return
    need_torch("fedpals reproduce")
    from fedpals.experiments.experiment import read_experiment
    from fedpals.experiments.reproduce import reproduce as compute
    from fedpals.experiments.results import Results
    from fedpals.experiments.selection import Selection
    from fedpals.experiments.verify import verify as train_again

    selection = Selection(tuple(row or ()), tuple(method or ()), tuple(seed or ()))
    experiment, stored = read_experiment(name, folder), Results(results / name)
    scale = scale or stored.scale_of(experiment)
    experiment.at(scale)
    # What is stored may be of an earlier definition, whose names its tables have.
    selection.check(stored.experiment if verify and stored.runs() else experiment)
    if device != "cpu" and ray is None:
        check_device(device)
    if hours is not None and not math.isfinite(hours):
        raise InputError(f"--hours is {hours:g}; it must be a number ≥ 0, for instance 2.5")
    deadline = None if hours is None else time.monotonic() + 3600 * hours
    settings = SweepSettings(out, workers, data_folder, device, checkpoint_every=10, ray=ray, deadline=deadline)

    @contextmanager
    def display(title: str, runs: Sequence[Run]) -> Iterator[Any]:
        if runs:
            console.print(f"{escape(title)}: {len(runs)} to compute", soft_wrap=True)
        with SweepProgress(runs, console) as progress:
            yield progress

    if verify:
        _print_verification(console, stored, train_again(stored, selection, settings, display))
        return
    # Neither folders, which are this machine's, nor workers, which change nothing.
    stored.begin(folder / f"{name}.toml", scale, shlex.join(["fedpals", "reproduce", name, "--scale", scale]))
    outcome = compute(experiment, scale, stored, settings, display, selection)
    stored.keep_hours()
    if stored.runs():
        console.print(_table(stored))
        console.print(
            "[dim]Test metric in %, mean ± std over seeds, at the round selected on validation unless it says no "
            "target data; paired difference to FedAvg ± its standard error; equal: within two standard errors."
        )
    diverged = Counter((summary.row, summary.method) for summary in stored.runs() if summary.diverged)
    for cell, number in diverged.items():
        message = f"{', '.join(cell)}: {number} of its runs; their results are those of the best round before that"
        console.print(f"[bold yellow]diverged:[/] {escape(message)}", soft_wrap=True)
    for error, titles in _by_reason(outcome.failed).items():
        more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        console.print(f"[bold red]failed:[/] {escape(f'{titles[0]}{more}: {error}')}", soft_wrap=True)
    if outcome.stopped:
        console.print(f"Stopped; {outcome.left} runs of this phase are left. The same command continues.")
        raise typer.Exit(128 + outcome.stopped)
    if outcome.out_of_time:
        console.print(f"Stopped after {hours:g} hours; {outcome.left} runs of this phase are left.")
        console.print("The same command continues; fedpals reproduce --status shows what is left.")
        return
    path = escape(str(stored.path))
    console.print(f"Results: {path}; see them with: fedpals report {path}", soft_wrap=True)
    if outcome.failed:
        raise typer.Exit(1)


def _print_verification(console: Console, stored: Results, verification: Verification) -> None:
    """Print stored and re-trained numbers; end with code 1 where they differ."""
    from fedpals.experiments.verify import TOLERANCE, TOLERANCE_OF_LAST_ROUND

    if verification.stopped:
        console.print("Stopped; nothing is stored.")
        raise typer.Exit(128 + verification.stopped)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")
    for column in ("stored", "re-trained", "difference", ""):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    title = ""
    for c in verification.comparisons:
        if title != (title := ", ".join(filter(None, (c.row, c.method, c.point)))):
            table.add_row(Text(title, "bold"))
        several = len(c.seeds) > 1
        for seed, stored_value, retrained in zip(c.seeds, c.stored, c.retrained, strict=True) if several else ():
            table.add_row(f"  {c.evaluation.value}, seed {seed}", *_compared(stored_value, retrained))
        name = f"mean of {len(c.seeds)} seeds" if several else f"seed {c.seeds[0]}"
        verdict = Text(c.verdict, "red" if c.verdict == "differs" else "")
        table.add_row(f"  {c.evaluation.value}, {name}", *_compared(fmean(c.stored), fmean(c.retrained)), verdict)
    console.print(table)
    where = (
        "the same processor, arithmetic and versions: all bits must be the same"
        if verification.same_platform
        else "another processor, arithmetic or versions, or they do not say: rounding differs, and a difference of up "
        f"to {100 * TOLERANCE:g} points, {100 * TOLERANCE_OF_LAST_ROUND:g} with a replaced last layer, "
        "divided by √n for a mean of n seeds, is close"
    )
    console.print(f"[dim]Test metric in %. {escape(str(stored.path))} was computed with {where}.", soft_wrap=True)
    for name, error in verification.failed:
        console.print(f"[bold red]failed:[/] {escape(f'{name}: {error}')}", soft_wrap=True)
    if not verification.verified:
        raise typer.Exit(1)


def _compared(stored: float, retrained: float) -> tuple[str, str, str]:
    """Return two metrics and their difference in %."""
    return f"{100 * stored:.2f}", f"{100 * retrained:.2f}", f"{100 * (retrained - stored):+.2f}"


def _overview(folder: Path) -> Table:
    from fedpals.experiments.experiment import Experiment, choose_points, definitions, reported_runs, tuning_runs

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "in the paper", "title", "scale", "runs", "tuning runs"):
        table.add_column(column, justify="right" if column in {"runs", "tuning runs"} else "left")
    for path in definitions(folder):
        experiment = Experiment.read(path)
        for number, scale in enumerate(experiment.scale):
            cells = (path.stem, experiment.source, experiment.title) if number == 0 else ("", "", "")
            runs = len(reported_runs(experiment, scale, choose_points(experiment, {})))
            table.add_row(*map(escape, cells), scale, str(runs), str(len(tuning_runs(experiment, scale))))
    return table


def _status(folder: Path, name: str | None, results: Path, out: Path) -> Table:
    """Return a line per phase of the experiments that have results, or of one."""
    from fedpals.experiments.experiment import definitions, read_experiment
    from fedpals.experiments.results import Results
    from fedpals.experiments.status import status

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "scale", "phase"):
        table.add_column(column)
    for column in ("computed", "running", "missing", "core-hours left"):
        table.add_column(column, justify="right")
    for one in [name] if name else [path.stem for path in definitions(folder)]:
        experiment, stored = read_experiment(one, folder), Results(results / one)
        scale = stored.scale_of(experiment)
        both = status(experiment, scale, stored, out)
        for phase, counted in (("tuning", both.tuning), ("reported", both.reported)):
            if counted.planned:
                left = "?" if counted.seconds_left is None else f"{counted.seconds_left / 3600:.1f}"
                numbers = counted.finished, counted.running, counted.missing
                table.add_row(escape(one), scale, phase, *map(str, numbers), left)
    return table


def _by_reason(failed: Sequence[tuple[str, Exception]]) -> dict[str, list[str]]:
    """Group failures by their message, because missing data make many runs fail."""
    reasons: dict[str, list[str]] = {}
    for title, error in failed:
        reasons.setdefault(str(error), []).append(title)
    return reasons


def _table(results: Results) -> Table:
    """Return a line per row, evaluation and method, which fits into 80 columns: our numbers, then the paper's."""
    from fedpals.report.finished import FinishedExperiment
    from fedpals.report.views.tables import paper_value
    from fedpals.shift.evaluation import Evaluation

    finished = FinishedExperiment(results.name, results.experiment, tuple(results.runs()))
    table = Table(box=None, pad_edge=False, header_style="bold")
    baseline = f"− {finished.baseline.name}" if finished.baseline else ""
    in_paper = any(row.reported for row in finished.rows)
    table.add_column("", overflow="fold")
    for column in ("mean ± std", baseline, "", *(["in the paper"] if in_paper else [])):
        table.add_column(escape(column), justify="right" if column else "left", no_wrap=True)
    for row in finished.rows:
        for evaluation, title in finished.evaluations.items():
            lines = []
            for method in finished.methods:
                spread, paired = finished.spread(row, method, evaluation), finished.paired(row, method, evaluation)
                paper = paper_value(row.reported.get(method.name)) if evaluation is Evaluation.RAW else None
                if spread or paper:
                    ours = [str(spread or ""), paired.text() if paired else "", paired.verdict() if paired else ""]
                    lines.append([f"  {method.name}", *ours, *([str(paper or "")] if in_paper else [])])
            if lines:
                table.add_row(Text(f"{row.name}, {title}", "bold"))
            for cells in lines:
                table.add_row(*(Text(cell, _VERDICT_STYLES.get(cell, "")) for cell in cells))
    return table
