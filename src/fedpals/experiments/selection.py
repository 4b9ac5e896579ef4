"""Selection of single cells of an experiment, by row, method and seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedpals.config import did_you_mean
from fedpals.errors import InputError
from fedpals.experiments.experiment import Experiment, rows_tuned_for


@dataclass(frozen=True)
class Selection:
    """Rows, methods and seeds to compute; all of them where none is named."""

    rows: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()

    def check(self, experiment: Experiment) -> None:
        """Raise `InputError` for rows and methods that the experiment does not have."""
        _check_names("row", self.rows, [row.name for row in experiment.row])
        _check_names("method", self.methods, [method.name for method in experiment.method])

    def includes(self, row: str, method: str, seed: int | None = None) -> bool:
        """Return whether a cell is selected; without a seed, whether some of its seeds may be."""
        return (
            (not self.rows or row in self.rows)
            and (not self.methods or method in self.methods)
            and (seed is None or not self.seeds or seed in self.seeds)
        )

    def tunes(self, experiment: Experiment, row: str, method: str) -> bool:
        """Return whether a tuning run of a row and method helps to choose the point of a selected cell."""
        selected = (one for one in experiment.row if self.includes(one.name, method))
        return any(row in rows_tuned_for(experiment, one) for one in selected)


ALL = Selection()
"""The whole experiment."""


def _check_names(what: str, given: Iterable[str], known: list[str]) -> None:
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"; it has {', '.join(known)}"
            raise InputError(f"--{what} is {name!r}, which this experiment does not have{hint}")
