"""Mean ± standard deviation of finished runs, by task and method."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpals.engine.metrics import Metrics
from fedpals.shift.evaluation import Correction, Evaluation, SelectedBy
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    std: float
    seeds: int
    """Number of seeds; 0 for the paper's values, where a standard deviation of 0 means that the paper gives none."""

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return mean and sample standard deviation (0 for a single value)."""
        array = np.array(list(values))
        return cls(float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else 0.0, array.size)

    def __str__(self) -> str:
        has_std = self.seeds or self.std
        return f"{100 * self.mean:.1f} ± {100 * self.std:.1f}" if has_std else f"{100 * self.mean:.1f}"


@dataclass(frozen=True)
class MethodSummary:
    """Results of one method with one configuration on one task, over seeds."""

    task: str
    title: str
    seeds: int
    accuracy: Mapping[Correction, Spread]
    """Test accuracy with every correction that all runs have, at the round that ``selected_by`` selects."""
    macro_f1: Spread | None
    """Macro-F1 of the model as trained."""
    selected_by: SelectedBy
    """The clients' estimate where they held samples out, else validation data of the target."""


def summarise(records: Iterable[Record]) -> list[MethodSummary]:
    """Return a summary per configuration, over the seeds of finished runs, in the order of first appearance.

    Runs that differ by more than their seed are never averaged; where their titles are the same, the settings that
    differ are added.
    """
    groups: dict[str, dict[int, Record]] = {}
    for record in records:
        if record.finished:
            keys = {key: value for key, value in record.run.keys().items() if key != "seed"}
            groups.setdefault(json.dumps(keys, sort_keys=True), {}).setdefault(record.run.seed, record)
    members = [list(by_seed.values()) for by_seed in groups.values()]
    return [_summary(group, _title(group[0].run, [other[0].run for other in members])) for group in members]


def _title(run: Run, others: Sequence[Run]) -> str:
    """Return the method's title, with the settings that tell it from others of the same title on the same task."""
    title = run.method.full_title
    same = [r for r in others if (r.data.name, r.method.full_title) == (run.data.name, title)]
    keys = run.keys()
    differing = [key for key in keys if key != "seed" and any(r.keys().get(key) != keys[key] for r in same)]
    return f"{title} [{', '.join(f'{key}={keys[key]}' for key in differing)}]" if differing else title


def _summary(members: Sequence[Record], title: str) -> MethodSummary:
    held_out = all(record.run.knowledge.held_out is not None for record in members)
    rule = SelectedBy.ESTIMATE if held_out else SelectedBy.VALIDATION
    results = [record.result().selected for record in members]
    tests: dict[Correction, list[Metrics]] = {}
    for correction in Correction:
        last = correction in (Correction.GAUSSIAN, Correction.RECOMMENDED)
        evaluation = Evaluation(correction.value) if last else Evaluation.of(correction, rule)
        selected = [result[evaluation].test for result in results if evaluation in result]
        if len(selected) == len(results) and all(selected):
            tests[correction] = [test for test in selected if test]
    accuracy = {correction: Spread.of(test.accuracy for test in values) for correction, values in tests.items()}
    raw = tests.get(Correction.RAW)
    macro_f1 = Spread.of(test.macro_f1 for test in raw) if raw else None
    return MethodSummary(members[0].run.data.name, title, len(members), accuracy, macro_f1, rule)
