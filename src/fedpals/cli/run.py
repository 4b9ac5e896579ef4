"""`fedpals run`: train any method on any task."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpals.cli.flags import OUTPUT, TRAINING, CheckpointEvery, DataFolder, Device, Resume
from fedpals.cli.terminal import escape, new_console
from fedpals.config import did_you_mean, read_toml
from fedpals.errors import InputError, MissingExtraError
from fedpals.labels.tables import read_target
from fedpals.methods import option_keys, options_of
from fedpals.shift.evaluation import Correction, SelectedBy
from fedpals.simulation.run import DEFAULT_METHOD, Run, run_keys
from fedpals.simulation.settings import SweepSettings
from fedpals.study.progress import SweepProgress

if TYPE_CHECKING:
    from fedpals.report.table import MethodSummary, Spread
    from fedpals.simulation.record import Record
    from fedpals.simulation.sweep import Outcome

_SWEEP_KEYS = ("seeds",)
CONFIG_HELP = "TOML file of settings; flags given as well take precedence."
TRUST_HELP = "Run the code of a network package.module:function that the folder or file names."
RAY_HELP = "Compute on an existing Ray cluster, such as HOST:6379, whose nodes have fedpals and the data."


def run(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help=CONFIG_HELP)] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of seeds, counting up from --seed.",
            show_default="1",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(min=1, help="Processes: for runs, or for the clients of one run.", rich_help_panel=OUTPUT),
    ] = 1,
    out: Annotated[Path, typer.Option(help="Folder of runs.", rich_help_panel=OUTPUT)] = Path("runs"),
    data_folder: DataFolder = None,
    device: Device = "cpu",
    resume: Resume = True,
    checkpoint_every: CheckpointEvery = 1,
    tracker: Annotated[
        list[str] | None,
        typer.Option(
            help="Also send metrics to tensorboard or mlflow.", show_default="neither", rich_help_panel=OUTPUT
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help=RAY_HELP, show_default="this machine", rich_help_panel=OUTPUT),
    ] = None,
    **flags: Any,
) -> None:
    """Train methods on a task; ends with a table of mean ± std over seeds."""
    given = {key: value for key, value in flags.items() if value is not None}
    settings = {**read_config(config), **given}
    in_file = settings.pop("seeds", 1)
    if device != "cpu" and ray is None:
        check_device(device)
    with naming_file(config, given):
        runs = expand(settings, seeds or in_file)
    need_torch("fedpals run", here=ray is None and (workers == 1 or len(runs) == 1))
    console = new_console()
    if isinstance(target := settings.get("target"), str) and (note := read_target(Path(target).expanduser()).note):
        console.print(f"[dim]{escape(note)}[/dim]", soft_wrap=True)
    compute(
        runs,
        SweepSettings(out, workers, data_folder, device, resume, checkpoint_every, tuple(tracker or ()), ray),
        console,
    )


def expand(settings: Mapping[str, Any], seeds: int) -> list[Run]:
    """Return a run per method and seed; ``method`` may name several, separated by commas.

    Options of one method, such as ``ess``, apply to the methods that have them; an option that none has is an error.
    """
    methods = [name.strip() for name in str(settings.get("method", DEFAULT_METHOD)).split(",")]
    options = settings.keys() & option_keys().keys()
    taken = {key for name in methods for key in options_of(name)}
    if len(methods) > 1 and (unused := sorted(options - taken)):
        raise InputError(f"{unused[0]} is not an option of any of the methods {', '.join(methods)}")
    first = Run.of({"seed": settings.get("seed")}).seed
    runs = []
    for name in methods:
        dropped = options - set(options_of(name)) if len(methods) > 1 else set()
        keys = {key: value for key, value in settings.items() if key not in dropped}
        runs += [Run.of({**keys, "method": name, "seed": first + i}) for i in range(seeds)]
    return runs


def need_torch(command: str, *, here: bool = True) -> None:
    """Raise an error that names the extra to install if torch is missing, and load it if it is to compute ``here``."""
    with suppress(ImportError):  # where the import of torch is blocked, so is the look for it
        if not here and find_spec("torch") is not None:
            return
    gc.disable()  # what is loaded stays: looking for garbage in it, now and while numba loads, takes long
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtraError(command, "learn") from None
    finally:
        gc.freeze()
        gc.enable()


def check_device(device: str) -> None:
    """Raise an error if torch does not have the device, before anything is computed."""
    import torch

    try:
        if torch.device(device).type == "cpu" and device != "cpu":
            raise InputError(f"device is {device!r}; there is one cpu: use cpu")
        torch.ones(1, device=device).item()  # which some devices that can be named cannot do
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r} cannot be used ({str(error).splitlines()[0]}); use cpu") from None


def compute(runs: Sequence[Run], settings: SweepSettings, console: Console) -> Sequence[Record]:
    """Compute runs with a progress display, print the table, and end with code 1 if any run failed."""
    from fedpals.report.table import summarise

    outcome = sweep_with_progress(runs, settings, console)
    finished = [record for record in outcome.records if record.finished]
    own = [record for record in finished if record.run.data.own_clients]
    rows = summarise(record for record in finished if not record.run.data.own_clients)
    if own:
        _print_study(own, console)
        console.print(f"[dim]Records: {escape(str(settings.out))}[/dim]", soft_wrap=True)
    if rows:
        console.print(results_table(rows))
        selected = {
            SelectedBy.VALIDATION: "on validation data of the target",
            SelectedBy.ESTIMATE: "by the clients' estimate, without a target sample",
        }
        rules = " or ".join(selected[rule] for rule in dict.fromkeys(row.selected_by for row in rows))
        console.print(f"[dim]Test accuracy and macro-F1 in %, mean ± std, at the round selected {rules}.")
        if any(Correction.RECOMMENDED in row.accuracy for row in rows):
            console.print(
                "[dim]recommended: the last model with a last layer for the target, computed from the clients' sums of "
                "features and held-out samples."
            )
        console.print(f"[dim]Records: {escape(str(settings.out))}[/dim]", soft_wrap=True)
    print_choices(finished, console)
    print_privacy(finished, console)
    warn_of_outliers(finished, console)
    warn_of_divergence(outcome.records, console)
    exit_unless_finished(outcome, runs, console)
    return outcome.records


def print_choices(records: Sequence[Record], console: Console) -> None:
    """Say which ESS the runs chose that choose it while training, and why."""
    from fedpals.study.study import Study

    for task in dict.fromkeys(record.run.data.name for record in records):
        study = Study(tuple(record for record in records if record.run.data.name == task))
        for title, sentence in study.choices().items():
            console.print(f"[dim]{escape(title)}: {sentence}[/dim]", soft_wrap=True)


def print_privacy(records: Sequence[Record], console: Console) -> None:
    """Say how private the models of runs with noise for privacy are."""
    for record in records:
        if record.run.protection.private and (spent := (lines := record.lines())[-1].privacy) is not None:
            console.print(
                f"[dim]{escape(record.run.name)}: ε = {spent.epsilon:.2f} at δ = {spent.delta:g} after {len(lines)} "
                f"rounds, for the client that spent most (client {spent.client})[/dim]",
                soft_wrap=True,
            )


def warn_of_outliers(records: Sequence[Record], console: Console) -> None:
    """Name the clients of runs whose updates were far longer than the others'."""
    for record in records:
        rounds = [line for line in record.lines() if line.outliers]
        if rounds:
            clients = sorted({outlier.client for line in rounds for outlier in line.outliers})
            done = {"refuse": "refused", "clip": "clipped"}.get(record.run.protection.outliers or "", "kept")
            console.print(
                f"[bold yellow]far updates:[/] {escape(record.run.name)}: client {', '.join(map(str, clients))} in "
                f"{len(rounds)} rounds, first in round {rounds[0].round}: {rounds[0].outliers[0]}; {done}",
                soft_wrap=True,
            )


def _print_study(records: Sequence[Record], console: Console) -> None:
    """Print the target accuracy of runs on a user's own clients, with every correction, and its uncertainty."""
    from fedpals.study.study import Study

    result = Study(tuple(records)).table()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("method", "use"):
        table.add_column(column, overflow="fold")
    several = len(result.methods) > 1
    for column in (result.metric, *([f"difference to {result.baseline}"] if several else []), "seeds"):
        table.add_column(column, justify="right", no_wrap=True)
    previous = None
    for (method, use), cell in result.cells.items():
        error = "" if cell.error is None else f" ± {100 * cell.error:.1f}"
        difference = "" if cell.difference is None else f"{100 * cell.difference:+.1f}{error}"
        mean = f"{100 * cell.mean:.1f} ± {100 * cell.std:.1f}"
        cells = [mean, *([difference] if several else []), str(cell.seeds)]
        table.add_row("" if method == previous else escape(method), use, *cells)
        previous = method
    console.print(table)
    where = (
        "estimated on the clients' held-out samples, without target samples" if result.estimated else "on test samples"
    )
    paired = ", paired difference ± standard error" if several else ""
    console.print(
        f"[dim]Target accuracy in %, {where}; mean ± std over seeds{paired}. Rounds are selected by the clients' "
        "estimate; no target sample is used to choose anything.[/dim]"
    )


def warn_of_divergence(records: Sequence[Record], console: Console) -> None:
    """Name the runs that diverged; their results are those of earlier rounds."""
    for record in records:
        if record.finished and (result := record.result()).diverged:
            console.print(
                f"[bold yellow]diverged:[/] {record.run.name} after round {result.rounds}; its results are those "
                f"of the best round before that. Try a smaller learning_rate than {record.run.plan.learning_rate:g}",
                soft_wrap=True,
            )


def sweep_with_progress(runs: Sequence[Run], settings: SweepSettings, console: Console) -> Outcome:
    """Compute runs with a progress display."""
    from fedpals.simulation.sweep import sweep

    with SweepProgress(runs, console) as progress:
        return sweep(runs, settings, progress)


def exit_unless_finished(outcome: Outcome, runs: Sequence[Run], console: Console) -> None:
    """End the command with the reason, unless all runs are finished."""
    if len(outcome.failed) == len(runs) and not outcome.stopped:
        error = outcome.failed[min(outcome.failed)]
        if isinstance(error, InputError):
            raise error  # no run is possible with these settings
    for position, error in sorted(outcome.failed.items()):
        console.print(f"[bold red]failed:[/] {escape(runs[position].name)}: {escape(str(error))}")
    if outcome.stopped:
        left = sum(not record.finished for record in outcome.records)
        console.print(f"Stopped; {left} of {len(runs)} runs are unfinished. The same command continues them.")
        raise typer.Exit(128 + outcome.stopped)
    if outcome.failed:
        raise typer.Exit(1)


def results_table(rows: Sequence[MethodSummary]) -> Table:
    """Return the rows as a table, the best mean of each column in bold (Oracle aside)."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("task", "method"):  # which wrap in a narrow terminal, so that no number is cut
        table.add_column(column, overflow="fold")
    columns = [name for name, _ in _columns(rows[0]) if any(dict(_columns(row))[name] for row in rows)]
    for column in (*columns, "seeds"):
        table.add_column(column, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        rivals = [r for r in rows if r.task == row.task and "Oracle" not in r.title]
        cells = []
        for column in columns:
            spread = dict(_columns(row))[column]
            best = max((s.mean for r in rivals if (s := dict(_columns(r))[column])), default=None)
            bold = spread is not None and row in rivals and spread.mean == best
            cells.append(f"[bold]{spread}[/bold]" if bold else str(spread or ""))
        task = row.task if row.task != previous else ""
        table.add_row(task, row.title, *cells, str(row.seeds))
        previous = row.task
    return table


def _columns(row: MethodSummary) -> list[tuple[str, Spread | None]]:
    return [
        ("accuracy", row.accuracy.get(Correction.RAW)),
        ("with prior", row.accuracy.get(Correction.PRIOR)),
        ("recommended", row.accuracy.get(Correction.RECOMMENDED)),
        ("macro-F1", row.macro_f1),
    ]


@contextmanager
def naming_file(config: Path | None, flags: Mapping[str, Any]) -> Iterator[None]:
    """Let an error about a key of the TOML file, and not of a flag, name the file."""
    try:
        yield
    except InputError as error:
        key = re.split(r"[ .]", str(error), maxsplit=1)[0]
        if config is None or key in flags or key not in read_toml(config):
            raise
        raise InputError(f"{config}: {error}") from None


def read_config(config: Path | None) -> dict[str, Any]:
    """Return the keys of a TOML file; none without a file."""
    if config is None:
        return {}
    values = read_toml(config)
    if isinstance(values.get("method"), list):
        values["method"] = ",".join(map(str, values["method"]))
    if type(seeds := values.get("seeds", 1)) is not int or seeds < 1:
        raise InputError(
            f"{config}: seeds is {seeds!r}; give how many there are to be, as 3: they count up from seed, which is 0 "
            "unless given"
        )
    known = {*(key.name for key in run_keys()), *_SWEEP_KEYS}
    if unknown := [key for key in values if key not in known]:
        raise InputError(f"{config}: {unknown[0]!r} is not a known key{did_you_mean(unknown[0], known)}")
    return values
