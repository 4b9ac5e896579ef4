"""Mean ± standard deviation of finished runs, by task and method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedpals.record import Record


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
class Row:
    """One method on one task."""

    task: str
    method: str
    title: str
    raw: Spread
    """Test accuracy of the round that validation selected."""
    prior: Spread
    """The same with the target prior correction, which selects a round of its own."""
    macro_f1: Spread
    recommended: Spread | None = None
    """Test accuracy of the last model as it is best used; None where nobody held samples out."""


def summarise(records: Iterable[Record]) -> list[Row]:
    """Return a row per task and method, over the seeds of finished runs, in the order of first appearance."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.finished:
            groups[record.run.task_name, record.run.method_name].append(record)
    return [_row(task, method, members) for (task, method), members in groups.items()]


def _row(task: str, method: str, members: list[Record]) -> Row:
    results = [record.result()["selected"] for record in members]
    told = all("recommended" in r for r in results)
    return Row(
        task,
        method,
        members[0].run.title,
        Spread.of(r["raw"]["test"]["accuracy"] for r in results),
        Spread.of(r["prior"]["test"]["accuracy"] for r in results),
        Spread.of(r["raw"]["test"]["macro_f1"] for r in results),
        Spread.of(r["recommended"]["test"]["accuracy"] for r in results) if told else None,
    )
