"""`fedpals run`: train any method on any task. The typed configuration is the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedpals.data.validation import read_toml, validated
from fedpals.errors import InputError
from fedpals.methods import option_keys, options_of
from fedpals.run import Run

if TYPE_CHECKING:
    from fedpals.experiments import Outcome
    from fedpals.record import Record

_SWEEP_KEYS = ("seeds",)
RAY_HELP = "Compute on an existing Ray cluster, such as HOST:6379, whose nodes have fedpals and the data."


def run(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings; flags given as well take precedence.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Run with so many seeds, counting up from --seed.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes: over runs, or over clients if there is one run.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    data_folder: Annotated[Path | None, typer.Option(help="Where to look for data first.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda where there is one.")] = "cpu",
    resume: Annotated[bool, typer.Option(help="Continue unfinished runs, or start them over.")] = True,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Rounds between checkpoints.")] = 1,
    tracker: Annotated[list[str] | None, typer.Option(help="Send metrics to tensorboard or mlflow, too.")] = None,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help=RAY_HELP)] = None,
    **flags: Any,
) -> None:
    """Train methods on a task; ends with a table of mean ± std over seeds."""
    given = {key: value for key, value in flags.items() if value is not None}
    settings = {**read_config(config), **given}
    seeds = seeds or settings.pop("seeds", 1)
    settings.pop("seeds", None)
    from fedpals.experiments import Settings  # torch takes a second to load: only where it is used

    if device != "cpu" and ray is None:
        check_device(device)
    runs = expand(settings, seeds)
    compute(
        runs,
        Settings(out, workers, data_folder, device, resume, checkpoint_every, tuple(tracker or ()), ray),
        Console(),
    )


def expand(settings: Mapping[str, Any], seeds: int) -> list[Run]:
    """Return a run per method and seed; ``method`` may name several, separated by commas.

    Options of one method, such as ``ess``, go to the methods that take them; one that none takes is an error.
    """
    methods = [name.strip() for name in str(settings.get("method", Run.model_fields["method"].default)).split(",")]
    options = settings.keys() & option_keys().keys()
    taken = {key for name in methods for key in options_of(name)}
    if len(methods) > 1 and (unused := sorted(options - taken)):
        raise InputError(f"{unused[0]} is no option of any of the methods {', '.join(methods)}")
    first = int(settings.get("seed", 0))
    runs = []
    for name in methods:
        dropped = options - set(options_of(name)) if len(methods) > 1 else set()
        keys = {key: value for key, value in settings.items() if key not in dropped}
        runs += [validated(Run, {**keys, "method": name, "seed": first + i}) for i in range(seeds)]
    return runs


def check_device(device: str) -> None:
    """Refuse a device that torch does not have, before anything is computed."""
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r} cannot be used ({str(error).splitlines()[0]}); use cpu") from None


def compute(runs: Sequence[Run], settings: Any, console: Console) -> Sequence[Any]:
    """Compute runs with a progress display, print the table, and end with code 1 if any run failed."""
    from fedpals.report.table import summarise

    outcome = watched(runs, settings, console)
    rows = summarise(outcome.records)
    if rows:
        console.print(results_table(rows))
        console.print("[dim]Test accuracy and macro-F1 in %, mean ± std, at the round selected on validation.")
        if any(row.recommended for row in rows):
            console.print(
                "[dim]recommended: the last model, its last layer made for the target from what clients tell of their "
                "features and of samples that they held out."
            )
        console.print(f"[dim]Records: {escape(str(settings.out))}[/dim]", soft_wrap=True)
    warn(outcome.records, console)
    insist(outcome, runs, console)
    return outcome.records


def warn(records: Sequence[Record], console: Console) -> None:
    """Name the runs that diverged: their numbers are of rounds before that."""
    for record in records:
        if record.finished and (result := record.result()).get("diverged"):
            run = record.run
            console.print(
                f"[bold yellow]diverged:[/] {run.task_name} {run.method_name} seed {run.seed} after round "
                f"{result['rounds']}; its numbers are of the best round before. Try a smaller learning_rate than "
                f"{run.learning_rate:g}",
                soft_wrap=True,
            )


def watched(runs: Sequence[Run], settings: Any, console: Console) -> Outcome:
    """Compute runs with a progress display."""
    from fedpals.experiments import sweep

    with Display(runs, console) as display:
        return sweep(runs, settings, display)


def insist(outcome: Outcome, runs: Sequence[Run], console: Console) -> None:
    """End the command, saying why, unless all runs are finished."""
    if outcome.failed and len(outcome.failed) == len(runs):
        error = outcome.failed[min(outcome.failed)]
        if isinstance(error, InputError):
            raise error  # not one run could be made of these settings
    for position, error in sorted(outcome.failed.items()):
        failed = runs[position]
        console.print(
            f"[bold red]failed:[/] {failed.task_name} {failed.method_name} seed {failed.seed}: {escape(str(error))}"
        )
    if outcome.stopped:
        left = sum(not record.finished for record in outcome.records)
        console.print(f"Stopped; {left} of {len(runs)} runs are unfinished. The same command continues them.")
        raise typer.Exit(130)
    if outcome.failed:
        raise typer.Exit(1)


def results_table(rows: Sequence[Any]) -> Table:
    """Return the rows as a table, the best mean of each column in bold (Oracle aside)."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("task", "method"):  # which wrap in a narrow terminal, so that no number is cut
        table.add_column(column, overflow="fold")
    shown = {"raw": "accuracy", "prior": "with prior", "recommended": "recommended", "macro_f1": "macro-F1"}
    shown = {key: column for key, column in shown.items() if any(getattr(row, key) for row in rows)}
    for column in (*shown.values(), "seeds"):
        table.add_column(column, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        rivals = [r for r in rows if r.task == row.task and "Oracle" not in r.title]
        cells = []
        for key in shown:
            spread = getattr(row, key)
            best = spread and row in rivals and spread.mean == max(s.mean for r in rivals if (s := getattr(r, key)))
            cells.append(f"[bold]{spread}[/bold]" if best else str(spread or ""))
        task = row.task if row.task != previous else ""
        table.add_row(task, row.title, *cells, str(row.raw.seeds))
        previous = row.task
    return table


@dataclass
class Display:
    """One progress display for all runs: how many are done and failed, and where those under way are."""

    runs: Sequence[Run]
    console: Console
    _bars: dict[int, TaskID] = field(default_factory=dict)
    _features: TaskID | None = None
    _failed: int = 0

    def __enter__(self) -> Self:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self._total = self._progress.add_task("runs", total=len(self.runs), note="")
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, event: Any) -> None:
        """Show what happened to a run."""
        run = self.runs[event.run]
        if event.kind == "features":
            name, done, total = f"features of {run.task_name}", event.line["done"], event.line["total"]
            if self._features is None:
                self._features = self._progress.add_task(name, total=total, note=run.backbone)
            self._progress.update(self._features, completed=done)
            if done == total:
                self._progress.remove_task(self._features)
                self._features = None
            return
        if event.kind == "round":
            name = f"{run.task_name} {run.method_name} #{run.seed}"
            bar = self._bars.get(event.run)
            if bar is None:
                bar = self._bars[event.run] = self._progress.add_task(name, total=run.rounds, note="")
            line = event.line
            note = f"loss {line['loss']:.3f}  validation {line['raw']['validation']['accuracy']:.3f}"
            self._progress.update(bar, completed=line["round"], note=note)
            return
        if event.kind != "stopped":
            self._failed += event.kind == "failed"
            note = f"[red]{self._failed} failed" if self._failed else ""
            self._progress.update(self._total, advance=1, note=note)
        if (bar := self._bars.pop(event.run, None)) is not None:
            self._progress.remove_task(bar)


def read_config(config: Path | None) -> dict[str, Any]:
    """Return the keys of a TOML file; none where there is no file."""
    if config is None:
        return {}
    values = read_toml(config)
    if isinstance(values.get("method"), list):
        values["method"] = ",".join(map(str, values["method"]))
    known = {*Run.model_fields, *_SWEEP_KEYS}
    if unknown := [key for key in values if key not in known]:
        validated(Run, {unknown[0]: values[unknown[0]]})  # raises, and suggests the nearest key
    return values


def _options() -> list[inspect.Parameter]:
    """Return a command-line option for every key of a run."""
    parameters = []
    for key, info in Run.model_fields.items():
        kinds = [kind for kind in get_args(info.annotation) or (info.annotation,) if kind is not type(None)]
        kind: Any = kinds[0] if kinds[0] in (int, float) else str
        option = typer.Option(f"--{key.replace('_', '-')}", help=info.description or "", show_default=False)
        annotation = Annotated[kind | None, option]
        parameters.append(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return parameters


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace ``**flags`` in a command's signature by an option for every key of a run."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    own = [own[0], *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own[1:])]
    parameters = [*own[:1], *_options(), *own[1:]]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return command
