"""Mean ± standard deviation of finished runs, by task and method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpals.engine.metrics import Metrics
from fedpals.shift.evaluation import Evaluation
from fedpals.simulation.record import Record


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    std: float
    seeds: int
    """0 for what the paper reports, where a standard deviation of 0 means that it gives none."""

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return mean and sample standard deviation (0 for a single value)."""
        array = np.array(list(values))
        return cls(float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else 0.0, array.size)

    def __str__(self) -> str:
        known = self.seeds or self.std
        return f"{100 * self.mean:.1f} ± {100 * self.std:.1f}" if known else f"{100 * self.mean:.1f}"


@dataclass(frozen=True)
class MethodSummary:
    """One method on one task."""

    task: str
    method: str
    title: str
    seeds: int
    accuracy: Mapping[Evaluation, Spread]
    """Test accuracy of those evaluations that every run has."""
    macro_f1: Spread | None
    """Of the model as trained."""


def summarise(records: Iterable[Record]) -> list[MethodSummary]:
    """Return a summary per task and method, over the seeds of finished runs, in the order of first appearance."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.finished:
            groups[record.run.data.name, record.run.method.full_name].append(record)
    return [_summary(task, method, members) for (task, method), members in groups.items()]


def _summary(task: str, method: str, members: list[Record]) -> MethodSummary:
    results = [record.result().selected for record in members]
    tested = {e: [r[e].test for r in results if e in r] for e in Evaluation}
    accuracy = {
        e: Spread.of(test.accuracy for test in tests if test)
        for e, tests in tested.items()
        if _complete(tests, results)
    }
    raw = tested[Evaluation.RAW]
    macro_f1 = Spread.of(test.macro_f1 for test in raw if test) if _complete(raw, results) else None
    return MethodSummary(task, method, members[0].run.method.full_title, len(members), accuracy, macro_f1)


def _complete(tests: Sequence[Metrics | None], results: Sequence[object]) -> bool:
    return len(tests) == len(results) and all(tests)
