"""Runs as they stand on disk, under way or finished: of `fedpals run`, of `train`, and of Flower deployments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np

from fedpals.engine.metrics import HeldOutMetrics, Metrics
from fedpals.engine.recorded import (
    ABOUT,
    METRICS,
    SERVER_VIEW,
    About,
    RoundLine,
    ServerView,
    complete_lines,
    file_states,
    read_or_none,
)
from fedpals.errors import InputError
from fedpals.shift import Tally
from fedpals.shift.evaluation import Correction, Evaluation, SelectedBy
from fedpals.simulation.record import Record, Result

USES = {
    Correction.RAW: "as trained",
    Correction.PRIOR: "+prior",
    Correction.CALIBRATED: "calibrated",
    Correction.RECOMMENDED: "recommended",
}
"""Ways to use a model that are compared, the simplest first."""
_CACHED = 1024
"""Runs that are kept in memory, so that only those under way are read again."""


@dataclass(frozen=True, eq=False)
class WatchedRun:
    """A run, as far as it is."""

    federation: str
    method: str
    """Title of the method."""
    kind: str
    """Name of the method, which decides its colour."""
    seed: int
    planned: int | None
    """Rounds that there are to be, where that is known."""
    lines: Sequence[RoundLine]
    view: ServerView | None = None
    result: Result | None = None
    tallies: Sequence[Tally] = ()
    held_out: bool = True

    @classmethod
    def of_record(cls, record: Record) -> Self:
        """Read what a run has written so far."""
        run = record.run
        result = record.result() if record.finished else None
        held_out = run.knowledge.held_out is not None
        return cls(
            run.data.name,
            run.method.full_title,
            run.method.name,
            run.seed,
            run.server.rounds,
            record.lines_so_far(),
            record.view_so_far(),
            result,
            record.tallies() if result and held_out else (),
            held_out,
        )

    @classmethod
    def of_deployment(cls, folder: Path) -> Self | None:
        """Read what a deployment has written so far to its record; None of a folder of something else."""
        about: About | None = read_or_none(folder / ABOUT, About)
        if about is None:
            return None
        metrics = folder / METRICS
        text = metrics.read_text(encoding="utf-8", errors="replace") if metrics.is_file() else ""
        view = read_or_none(folder / SERVER_VIEW, ServerView)
        return cls(folder.name, about.method, about.name, 0, about.rounds, complete_lines(text), view)

    @property
    def finished(self) -> bool:
        """Whether no further round is to come."""
        return self.result is not None or (self.planned is not None and len(self.lines) >= self.planned)

    @property
    def refused(self) -> int:
        """Number of refused updates."""
        return sum(len(line.refused) for line in self.lines)

    def worth(self, use: Correction) -> tuple[Metrics | None, HeldOutMetrics | None] | None:
        """Return what the model is worth on test samples, and as clients estimate it; None without such a use.

        It is the selected round's where the run is finished, else the last round's.
        """
        if self.result is not None:
            rule = SelectedBy.ESTIMATE if self.held_out else SelectedBy.VALIDATION
            recommended = use is Correction.RECOMMENDED
            selected = self.result.selected.get(Evaluation.RECOMMENDED if recommended else Evaluation.of(use, rule))
            return None if selected is None else (selected.test, selected.clients)
        scores = self.lines[-1].scores(use) if self.lines else None
        return None if scores is None else (scores.test, scores.clients)

    def ess(self) -> list[float]:
        """Return the effective sample size of every round, as a share of its participants' samples."""
        if self.view is None:
            return []
        sizes = np.asarray(self.view.counts, dtype=np.float64).sum(axis=1)
        values = []
        for line in self.lines:
            n, alpha = sizes[list(line.weights.participants)], np.asarray(line.weights.alpha)
            spread = float(np.square(alpha[alpha > 0]) @ (1.0 / n[alpha > 0]))
            values.append(1.0 / (spread * float(n.sum())) if spread else 0.0)
        return values


def watched(paths: Iterable[Path]) -> list[WatchedRun]:
    """Return all runs below folders as they stand; none of an empty folder."""
    runs: list[WatchedRun] = []
    for path in paths:
        if not path.is_dir():
            remedy = "start the run first, and give its folder of runs, or the record= of a Flower strategy"
            raise InputError(f"{path}: no such folder; {remedy}")
        runs += [run for folder, state in Record.states(path).items() if (run := _run(folder, state)) is not None]
        for folder in sorted(file.parent for file in path.rglob(ABOUT)):
            if (deployment := _deployment(folder, file_states(folder, (ABOUT, METRICS, SERVER_VIEW)))) is not None:
                runs.append(deployment)
    return runs


@lru_cache(maxsize=_CACHED)
def _run(folder: Path, state: tuple[object, ...]) -> WatchedRun | None:
    """Read a run, once for every ``state`` of its files."""
    del state
    record = Record.begun(folder)
    return None if record is None else WatchedRun.of_record(record)


@lru_cache(maxsize=_CACHED)
def _deployment(folder: Path, state: tuple[object, ...]) -> WatchedRun | None:
    """Read a deployment, once for every ``state`` of its files."""
    del state
    return WatchedRun.of_deployment(folder)
