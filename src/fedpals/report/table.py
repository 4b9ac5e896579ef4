"""Mean ± standard deviation of finished runs, by task and method."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpals.engine.metrics import Metrics
from fedpals.shift.evaluation import Correction, Evaluation, SelectedBy
from fedpals.simulation.record import Record


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
    runs = [group[0].run for group in members]
    names = distinct_names(
        [(run.data.name, run.method.full_title) for run in runs], [{**run.keys(), "seed": 0} for run in runs]
    )
    return [_summary(group, title) for group, (_, title) in zip(members, names, strict=True)]


def distinct_names(names: Sequence[tuple[str, ...]], settings: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return names whose last part has, in brackets, the settings in which it differs from others of the same name."""
    distinct = []
    for name, own in zip(names, settings, strict=True):
        same = [other for other_name, other in zip(names, settings, strict=True) if other_name == name]
        keys = {key: None for other in same for key in other}
        differing = [key for key in keys if any(other.get(key) != own.get(key) for other in same)]
        values = ", ".join(f"{key}={own.get(key, 'unset')}" for key in differing)
        distinct.append((*name[:-1], f"{name[-1]} [{values}]" if differing else name[-1]))
    return distinct


def _summary(members: Sequence[Record], title: str) -> MethodSummary:
    held_out = all(record.run.knowledge.held_out is not None for record in members)
    rule = SelectedBy.ESTIMATE if held_out else SelectedBy.VALIDATION
    results = [record.result().selected for record in members]
    tests: dict[Correction, list[Metrics]] = {}
    for correction in Correction:
        evaluation = Evaluation(correction.value) if correction.uses_last_round else Evaluation.of(correction, rule)
        selected = [result[evaluation].test for result in results if evaluation in result]
        if len(selected) == len(results) and all(selected):
            tests[correction] = [test for test in selected if test]
    accuracy = {correction: Spread.of(test.accuracy for test in values) for correction, values in tests.items()}
    raw = tests.get(Correction.RAW)
    macro_f1 = Spread.of(test.macro_f1 for test in raw) if raw else None
    return MethodSummary(members[0].run.data.name, title, len(members), accuracy, macro_f1, rule)
