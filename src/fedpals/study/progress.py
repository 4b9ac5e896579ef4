"""One progress display for many runs: how many are done and failed, and where those under way are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedpals.simulation.record import RoundLine
from fedpals.simulation.run import Run
from fedpals.study.notebook import NotebookDisplay

if TYPE_CHECKING:
    from fedpals.simulation.event import Event


@dataclass
class SweepProgress:
    """Shows what happens to runs while they are computed; in a terminal or a notebook."""

    runs: Sequence[Run]
    console: Console
    _bars: dict[int, TaskID] = field(default_factory=dict)
    _features: TaskID | None = None
    _failed: int = 0
    _waiting: bool = False

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
        self._notebook = NotebookDisplay(self._progress) if self.console.is_jupyter else None
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        if self._notebook is not None:
            self._notebook.refresh(last=True)

    def __call__(self, event: Event) -> None:
        """Show what happened to a run."""
        if event.text is not None:
            self.console.print(f"[yellow]note:[/] {escape(event.text)}", soft_wrap=True, highlight=False)
        elif event.kind == "busy":
            self._show_waiting(self.runs[event.run])
        elif event.progress is not None:
            self._show_features(self.runs[event.run], *event.progress)
        elif event.line is not None:
            self._show_round(event.run, event.line)
        else:
            self._show_end(event)
        if self._notebook is not None:
            self._notebook.refresh()

    def _show_waiting(self, run: Run) -> None:
        """Say once that another command is at work on the same runs."""
        if not self._waiting:
            self.console.print(
                f"{escape(run.name)}: another command is computing it; this one goes on with the others, and waits.",
                soft_wrap=True,
                highlight=False,
            )
        self._waiting = True

    def _show_features(self, run: Run, done: int, total: int) -> None:
        if self._features is None:
            name = f"features of {run.data.name}"
            self._features = self._progress.add_task(name, total=total, note=run.network.backbone)
        self._progress.update(self._features, completed=done)
        if done == total:
            self._progress.remove_task(self._features)
            self._features = None

    def _show_round(self, position: int, line: RoundLine) -> None:
        run, bar = self.runs[position], self._bars.get(position)
        if bar is None:
            name = f"{run.data.name} {run.method.full_name} #{run.seed}"
            bar = self._bars[position] = self._progress.add_task(name, total=run.server.rounds, note="")
        scores = line.raw
        score = f"  validation {scores.validation.accuracy:.3f}" if scores.validation else ""
        if scores.validation is None and scores.clients is not None:
            score = f"  estimate {scores.clients.target_accuracy:.3f}"
        loss = "" if line.loss is None else f"loss {line.loss:.3f}"
        self._progress.update(bar, completed=line.round, note=f"{loss}{score}")

    def _show_end(self, event: Event) -> None:
        if event.kind != "stopped":
            self._failed += event.kind == "failed"
            note = f"[red]{self._failed} failed" if self._failed else ""
            self._progress.update(self._total, advance=1, note=note)
        if (bar := self._bars.pop(event.run, None)) is not None:
            self._progress.remove_task(bar)
