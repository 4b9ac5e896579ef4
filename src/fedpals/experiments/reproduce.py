"""Reproduce an experiment: tune, choose, compute the reported runs, and store compact results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from fedpals.errors import FedpalsError, InputError
from fedpals.experiments.experiment import Experiment, PlannedRun, Point, choose_points, reported_runs, tuning_runs
from fedpals.experiments.results import Results, Summary
from fedpals.simulation.computing import Event, SweepSettings
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.sweep import sweep

Display: TypeAlias = Callable[[str, Sequence[Run]], AbstractContextManager[Callable[[Event], None]]]
"""Function that opens a progress display for a phase and its runs."""


@dataclass(frozen=True, eq=False)
class Reproduced:
    """Outcome of an experiment."""

    failed: tuple[tuple[str, FedpalsError], ...]
    """Names of runs and cases that failed, with their errors."""
    left: int
    """Number of runs that are not computed yet, if it was stopped."""


def reproduce(
    experiment: Experiment, scale: str, results: Results, settings: SweepSettings, display: Display
) -> Reproduced:
    """Count every case and compute every run of the experiment that has no result yet."""
    failed = _count(experiment, results, settings)
    tuning = _Phase("tuning", "tuning.jsonl", tuning_runs(experiment, scale), whole=False)
    outcome = _compute(tuning, experiment, results, settings, display)
    failed += outcome.failed
    if outcome.left:
        return Reproduced(failed, outcome.left)
    reported = _Phase(
        "runs", "runs.jsonl", reported_runs(experiment, scale, chosen_points(experiment, results)), whole=True
    )
    outcome = _compute(reported, experiment, results, settings, display)
    return Reproduced(failed + outcome.failed, outcome.left)


def chosen_points(experiment: Experiment, results: Results) -> dict[tuple[str, str], Point]:
    """Return the point of every (row, method), chosen on validation."""
    validation: dict[tuple[str, str], list[tuple[Point, float]]] = defaultdict(list)
    rules = {method.name: method.chosen_by for method in experiment.method}
    for summary in results.tuning():
        accuracy = 0.0 if summary.diverged else summary.selected[rules[summary.method]].score
        validation[summary.row, summary.method].append((summary.point, accuracy))
    return choose_points(experiment, validation)


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
    whole: bool
    """Whether the summaries include curves and federation."""


def _compute(
    phase: _Phase, experiment: Experiment, results: Results, settings: SweepSettings, display: Display
) -> Reproduced:
    results.keep(phase.file, phase.planned)
    finished = {summary.key for summary in results.read(phase.file)}
    pending = [planned for planned in phase.planned if planned.key not in finished]
    runs = [planned.run for planned in pending]
    with display(f"{experiment.title}: {phase.name}", runs) as show:

        def watch(event: Event) -> None:
            if event.kind == "finished":
                planned = pending[event.run]
                record = Record(planned.run, settings.out)
                results.add(phase.file, Summary.of(planned, record, metric=experiment.metric, whole=phase.whole))
            show(event)

        outcome = sweep(runs, settings, watch)
    results.keep(phase.file, phase.planned)
    failed = tuple((pending[position].title, error) for position, error in sorted(outcome.failed.items()))
    left = sum(not record.finished for record in outcome.records) - len(failed)
    return Reproduced(failed, left if outcome.stopped else 0)
