"""What of an experiment is computed, what is under way, and how long the rest will take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpals.engine.lock import is_locked
from fedpals.experiments.experiment import Experiment, PlannedRun, reported_runs, tuning_runs
from fedpals.experiments.reproduce import chosen_points
from fedpals.experiments.results import Results, Summary
from fedpals.simulation.record import Record


@dataclass(frozen=True)
class PhaseStatus:
    """Runs of one phase, tuning or reported."""

    planned: int
    finished: int
    running: int
    """Runs that a process is computing now."""
    seconds_left: float | None
    """Of one core, by the mean time of finished runs of the same row, else of all; None if none is finished."""

    @property
    def missing(self) -> int:
        """Runs that are neither finished nor under way."""
        return self.planned - self.finished - self.running


@dataclass(frozen=True)
class Status:
    """Both phases of an experiment."""

    tuning: PhaseStatus
    reported: PhaseStatus
    """At the points that tuning has chosen so far: they, and so these runs, may still change while runs are tuned."""


def status(experiment: Experiment, scale: str, results: Results, out: Path) -> Status:
    """Return what is computed of an experiment; ``out`` is the folder of runs, to see which are under way."""
    tuning = tuning_runs(experiment, scale)
    planned = {one.key for one in tuning}
    tuned = [summary for summary in results.tuning() if summary.key in planned]  # it may have been defined otherwise
    reported = reported_runs(experiment, scale, chosen_points(experiment, tuned))
    return Status(_phase(tuning, tuned, out), _phase(reported, results.runs(), out))


def _phase(planned: Sequence[PlannedRun], stored: Sequence[Summary], out: Path) -> PhaseStatus:
    seconds = {summary.key: summary for summary in stored}
    left = [one for one in planned if one.key not in seconds]
    finished = [seconds[one.key] for one in planned if one.key in seconds]
    running = sum(is_locked(Record(one.run, out).path) for one in left)
    return PhaseStatus(len(planned), len(finished), running, _seconds_left(left, finished))


def _seconds_left(left: Sequence[PlannedRun], finished: Sequence[Summary]) -> float | None:
    if not finished:
        return None if left else 0.0
    total = 0.0
    for one in left:
        alike = [summary.seconds for summary in finished if summary.row == one.row]
        alike = alike or [summary.seconds for summary in finished]
        total += sum(alike) / len(alike)
    return total
