"""Reproduce an experiment: tune, choose, compute the reported runs, and store compact results."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from fedpals.engine.server import DivergedError
from fedpals.errors import FedpalsError, InputError
from fedpals.experiments.experiment import (
    ChosenPoints,
    Experiment,
    PlannedRun,
    Point,
    View,
    cells,
    choose_points,
    choosing_evaluations,
    grid_points,
    reported_runs,
    rows_tuned_for,
    tuning_runs,
)
from fedpals.experiments.results import Results, Summary
from fedpals.experiments.selection import ALL, Selection
from fedpals.shift.evaluation import Evaluation
from fedpals.simulation.event import Event
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings
from fedpals.simulation.sweep import sweep

_UNTUNED = "not computed, because its tuning runs failed; the same command tries them again"

Display: TypeAlias = Callable[[str, Sequence[Run]], AbstractContextManager[Callable[[Event], None]]]
"""Function that opens a progress display for a phase and its runs."""


@dataclass(frozen=True, eq=False)
class Reproduced:
    """Outcome of an experiment."""

    failed: tuple[tuple[str, FedpalsError], ...]
    """Names of runs and cases that failed, with their errors."""
    left: int
    """Number of runs that are not computed yet, if it was stopped."""
    stopped: signal.Signals | None = None
    """The signal that stopped it, if any."""
    out_of_time: bool = False
    """Whether the deadline stopped it."""


def reproduce(
    experiment: Experiment,
    scale: str,
    results: Results,
    settings: SweepSettings,
    display: Display,
    selection: Selection = ALL,
) -> Reproduced:
    """Count every case and compute every selected run of the experiment that has no result yet."""
    failed = _count(experiment, results, settings)
    planned = tuning_runs(experiment, scale)
    needed = {run.key for run in planned if selection.tunes(experiment, run.row, run.method)}
    tuning = _Phase("tuning", "tuning.jsonl", planned, needed)
    outcome = _compute(tuning, experiment, results, settings, display)
    failed += outcome.titled
    if outcome.stopped or outcome.out_of_time:
        return Reproduced(failed, outcome.left, outcome.stopped, outcome.out_of_time)
    untuned = _untuned(experiment, tuning.planned, results, outcome.failed)
    untuned = [cell for cell in untuned if selection.includes(*cell)]
    failed += tuple((f"{row}, {method}", FedpalsError(_UNTUNED)) for row, method in untuned)
    planned = reported_runs(experiment, scale, chosen_points(experiment, results.tuning()))
    planned = [run for run in planned if (run.row, run.method) not in untuned]
    needed = {run.key for run in planned if selection.includes(run.row, run.method, run.run.seed)}
    runs = _Phase("runs", "runs.jsonl", planned, needed, experiment.show)
    outcome = _compute(runs, experiment, results, settings, display)
    return Reproduced(failed + outcome.titled, outcome.left, outcome.stopped, outcome.out_of_time)


def chosen_points(experiment: Experiment, tuning: Iterable[Summary]) -> ChosenPoints:
    """Return the points of every (row, method), chosen on validation in tuning runs."""
    scores: dict[tuple[str, str, Evaluation], list[tuple[Point, float]]] = defaultdict(list)
    evaluations = {method.name: choosing_evaluations(experiment, method) for method in experiment.method}
    for summary in tuning:
        for evaluation in evaluations[summary.method]:
            score = 0.0 if summary.diverged else summary.selected[evaluation].score
            scores[summary.row, summary.method, evaluation].append((summary.point, score))
    return choose_points(experiment, scores)


def _untuned(
    experiment: Experiment,
    planned: Sequence[PlannedRun],
    results: Results,
    failed: Sequence[tuple[PlannedRun, FedpalsError]],
) -> list[tuple[str, str]]:
    """Return every (row, method) whose point cannot be chosen: tuning runs are missing, or none of them has a result.

    One that diverged in its first round has no result, and is not missing: it would diverge again, and counts as 0.
    """
    finished = {summary.key for summary in results.tuning()}
    known = finished | {run.key for run, error in failed if isinstance(error, DivergedError)}
    untuned = []
    for row, method in cells(experiment):
        rows = rows_tuned_for(experiment, row)
        runs = [run.key for run in planned if run.method == method.name and run.row in rows]
        several = len(grid_points(experiment, row, method)) > 1
        if several and not (known.issuperset(runs) and finished.intersection(runs)):
            untuned.append((row.name, method.name))
    return untuned


def _count(experiment: Experiment, results: Results, settings: SweepSettings) -> tuple[tuple[str, FedpalsError], ...]:
    """Count the cases that are not in the results yet; return those whose files are missing."""
    cases, failed = [], []
    for case in experiment.case:
        try:
            cases.append(results.case(case) or case.counted(settings.data_folder))
        except InputError as error:
            failed.append((case.name, error))
    results.keep_cases(cases)
    return tuple(failed)


@dataclass(frozen=True, eq=False)
class _Phase:
    name: str
    file: str
    planned: list[PlannedRun]
    needed: set[tuple[str, str, str]]
    """Keys of the runs to compute; the results of others are kept."""
    show: Sequence[View] = ()
    """Views that the summaries are for."""


@dataclass(frozen=True, eq=False)
class _Computed:
    """Outcome of a phase."""

    failed: list[tuple[PlannedRun, FedpalsError]]
    left: int
    stopped: signal.Signals | None
    out_of_time: bool

    @property
    def titled(self) -> tuple[tuple[str, FedpalsError], ...]:
        return tuple((run.title, error) for run, error in self.failed)


def _compute(
    phase: _Phase, experiment: Experiment, results: Results, settings: SweepSettings, display: Display
) -> _Computed:
    results.keep(phase.file, phase.planned, phase.show)
    finished = {summary.key for summary in results.read(phase.file)}
    pending = [planned for planned in phase.planned if planned.key in phase.needed - finished]
    runs = [planned.run for planned in pending]
    with display(f"{experiment.title}: {phase.name}", runs) as show:

        def watch(event: Event) -> None:
            if event.kind == "finished":
                planned = pending[event.run]
                record = Record(planned.run, settings.out)
                results.add(phase.file, Summary.of(planned, record, metric=experiment.metric, show=phase.show))
            show(event)

        outcome = sweep(runs, settings, watch)
    results.keep(phase.file, phase.planned, phase.show)
    failed = [(pending[position], error) for position, error in sorted(outcome.failed.items())]
    left = sum(not record.finished for record in outcome.records) - len(failed)
    incomplete = outcome.out_of_time and left > 0  # the last run may have ended just in time
    return _Computed(failed, left if outcome.stopped or incomplete else 0, outcome.stopped, incomplete)
