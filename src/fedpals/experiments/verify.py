"""Verify stored results: train single cells again, and compare what comes out with what is stored.

On one kind of processor, with the same versions, the bits are the same. Elsewhere sums are rounded differently, which
training amplifies: a few predictions change, and with them perhaps the selected round.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Literal

from fedpals.errors import FedpalsError, InputError
from fedpals.experiments.experiment import PlannedRun
from fedpals.experiments.provenance import provenance, same_platform
from fedpals.experiments.results import Results, Summary
from fedpals.experiments.selection import Selection
from fedpals.methods.option import as_text
from fedpals.shift.evaluation import Evaluation
from fedpals.simulation.event import Event
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings
from fedpals.simulation.sweep import sweep

TOLERANCE = 0.08
"""Largest difference of a single run's metric that other processors and versions of the arithmetic are allowed.

21 stored runs of `table1` were trained again from scratch on Fashion-MNIST and CIFAR-10, by a later version of the
arithmetic and partly on other processors: plain methods and the recommended recipe, two that diverge among them.
Where a round is selected, of 82 metrics half differed by less than 0.7 points, 95 % by less than 4.9, and at most 6.4.
"""
TOLERANCE_OF_LAST_ROUND = 0.05
"""The same where the last layer is replaced after the last round: no other round can be selected.

In the same runs, of 55 such metrics half differed by less than 0.7 points, 95 % by less than 2.6, and at most 3.5.
"""


@dataclass(frozen=True)
class Comparison:
    """A metric of a cell's runs, as stored and as computed again."""

    row: str
    method: str
    point: str
    """The point of the method's grid; a cell may have two, each chosen by evaluations of its own."""
    evaluation: Evaluation
    seeds: tuple[int, ...]
    stored: tuple[float, ...]
    retrained: tuple[float, ...]
    same_platform: bool

    @property
    def difference(self) -> float:
        """Mean over the seeds of re-trained minus stored."""
        return fmean(self.retrained) - fmean(self.stored)

    @property
    def tolerance(self) -> float:
        """Largest difference that is allowed: what rounding does to single runs averages out over n seeds, by √n."""
        if self.same_platform:
            return 0.0
        single = TOLERANCE_OF_LAST_ROUND if self.evaluation.correction.uses_last_round else TOLERANCE
        return single / math.sqrt(len(self.seeds))

    @property
    def verdict(self) -> Literal["same", "close", "differs"]:
        """Whether all runs are equal, their means within the tolerance, or neither."""
        if self.retrained == self.stored:
            return "same"
        return "close" if not self.same_platform and abs(self.difference) <= self.tolerance else "differs"


@dataclass(frozen=True, eq=False)
class Verification:
    """All comparisons, and the runs that could not be computed."""

    comparisons: tuple[Comparison, ...]
    failed: tuple[tuple[str, FedpalsError], ...]
    same_platform: bool
    """Whether results were stored by the same arithmetic on the same kind of processor."""
    stopped: signal.Signals | None = None
    """The signal that stopped it, if any."""

    @property
    def verified(self) -> bool:
        """Whether all runs were computed, and agree with what is stored."""
        agree = all(comparison.verdict != "differs" for comparison in self.comparisons)
        return agree and not self.failed and self.stopped is None


def verify(
    results: Results,
    selection: Selection,
    settings: SweepSettings,
    display: Callable[[str, Sequence[Run]], AbstractContextManager[Callable[[Event], None]]],
) -> Verification:
    """Train the selected runs of stored results again, in a folder of their own, and compare test metrics.

    Raises
    ------
    InputError
        If no stored run is selected.
    """
    stored = [summary for summary in results.runs() if selection.includes(summary.row, summary.method, summary.seed)]
    if not stored:
        raise InputError(
            f"{results.path}: none of its stored runs has this row, method and seed; compute it first, without --verify"
        )
    experiment, same = results.experiment, same_platform(results.provenance, provenance("", ""))
    runs = [summary.configuration for summary in stored]
    with TemporaryDirectory(prefix="fedpals-verify-") as folder, display(f"{experiment.title}: verify", runs) as show:
        outcome = sweep(runs, replace(settings, out=Path(folder)), show)
        again = [
            (old, Summary.of(PlannedRun(old.row, old.method, old.point, record.run), record, show=experiment.show))
            for old, record in zip(stored, outcome.records, strict=True)
            if record.finished
        ]
    cells: dict[tuple[str, str, str, Evaluation], list[tuple[int, float, float]]] = {}
    for old, new in again:
        point = ", ".join(f"{key} {as_text(value)}" for key, value in old.point.items())
        for evaluation in old.selected:
            before, after = (summary.test(evaluation, experiment.metric) for summary in (old, new))
            if before is not None and after is not None:
                cells.setdefault((old.row, old.method, point, evaluation), []).append((old.seed, before, after))
    comparisons = []
    for cell, values in cells.items():
        seeds, before_all, after_all = zip(*values, strict=True)
        comparisons.append(Comparison(*cell, seeds, before_all, after_all, same))
    failed = [(f"{stored[i].row}, {stored[i].method}, seed {stored[i].seed}", e) for i, e in outcome.failed.items()]
    return Verification(tuple(comparisons), tuple(failed), same, outcome.stopped)
