"""The table of a study: mean ± std over seeds, and paired differences with their standard errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpals.report.majority import Majority, typical_error
from fedpals.report.paired import Paired
from fedpals.report.table import Spread
from fedpals.report.text_table import html_table, text_table
from fedpals.shift.evaluation import Correction

_TITLES = {
    Correction.RAW: "as trained",
    Correction.PRIOR: "+prior",
    Correction.CALIBRATED: "calibrated",
    Correction.RECOMMENDED: "recommended",
}


@dataclass(frozen=True)
class Value:
    """A metric of one run."""

    value: float
    error: float | None = None
    """Its standard error, because samples are few."""
    balanced_accuracy: float | None = None


@dataclass(frozen=True)
class TableCell:
    """A metric over seeds, and how it differs from the baseline's, seed by seed."""

    mean: float
    std: float
    seeds: int
    paired: Paired | None = None
    """Difference to the baseline; None for the baseline itself."""
    sampling_error: float | None = None
    """Standard error of one seed's value, because samples are few (root mean square over seeds)."""
    balanced_accuracy: float | None = None
    """Mean over seeds."""

    @property
    def difference(self) -> float | None:
        """Mean of the differences to the baseline; None for the baseline itself."""
        return None if self.paired is None else self.paired.difference

    @property
    def error(self) -> float | None:
        """Standard error of ``difference``; None with one seed."""
        return None if self.paired is None else self.paired.error


@dataclass(frozen=True)
class StudyTable:
    """Rows of methods, columns of uses; prints as text, and as HTML in a notebook."""

    metric: str
    estimated: bool
    """Whether numbers are the clients' estimates, because the target has no test samples."""
    baseline: str
    uses: tuple[str, ...]
    cells: Mapping[tuple[str, str], TableCell]
    """By method and use."""
    majority: Majority
    """What always predicting the target's most frequent label would score."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Titles of the methods, in their order."""
        return tuple(dict.fromkeys(method for method, _ in self.cells))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row per method and use, ready for ``pandas.DataFrame``."""
        return [
            {
                "method": method,
                "use": use,
                "mean": cell.mean,
                "std": cell.std,
                "seeds": cell.seeds,
                f"difference to {self.baseline}": cell.difference,
                "standard error": cell.error,
                "verdict": self.verdict(cell),
                "balanced accuracy": cell.balanced_accuracy,
            }
            for (method, use), cell in self.cells.items()
        ]

    def verdict(self, cell: TableCell) -> str | None:
        """Return whether a cell is better, equal or worse than the baseline; None for the baseline itself."""
        return None if cell.paired is None else cell.paired.verdict(lower_is_better=self.metric == "log_loss")

    @property
    def caption(self) -> str:
        """What the numbers are."""
        unit = "" if self.metric == "log_loss" else " in %"
        where = (
            "as estimated from samples that clients held out (the target has no test samples)"
            if self.estimated
            else "on the target's test samples, which chose nothing"
        )
        return (
            f"{self.metric.replace('_', ' ')}{unit} {where}: mean ± std over seeds; in brackets the paired difference "
            f"to {self.baseline} ± its standard error; equal: within two standard errors"
        )

    @property
    def notes(self) -> list[str]:
        """What accuracies are to be compared with: the score of a constant guess, and the models that are no better."""
        if self.metric != "accuracy":
            return []
        guesses = [f"{method} {', '.join(uses)}" for method in self.methods if (uses := self._no_better(method))]
        return [self.majority.sentence, *([self.majority.warning(guesses)] if guesses else [])]

    def _no_better(self, method: str) -> list[str]:
        """Return the uses of a method that are no better than a constant guess."""
        cells = {use: cell for (m, use), cell in self.cells.items() if m == method}
        return [use for use, cell in cells.items() if not self.majority.beaten_by(cell.mean, cell.sampling_error)]

    def __str__(self) -> str:
        return "\n".join([text_table(self._texts()), self.caption, *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self._texts(), [self.caption, *self.notes])

    def _texts(self) -> list[list[str]]:
        rows = [["method", *self.uses]]
        for method in self.methods:
            cells = [self.cells.get((method, use)) for use in self.uses]
            rows.append([method, *("" if cell is None else self._text(cell) for cell in cells)])
        if self.metric == "accuracy" and any(cell.balanced_accuracy is not None for cell in self.cells.values()):
            rows.append(["balanced accuracy:", *("" for _ in self.uses)])
            rows += [[method, *(self._balanced(method, use) for use in self.uses)] for method in self.methods]
        return rows

    def _balanced(self, method: str, use: str) -> str:
        cell = self.cells.get((method, use))
        return "" if cell is None or cell.balanced_accuracy is None else f"{100 * cell.balanced_accuracy:.1f}"

    def _text(self, cell: TableCell) -> str:
        scale, digits = (1, 3) if self.metric == "log_loss" else (100, 1)
        text = f"{scale * cell.mean:.{digits}f} ± {scale * cell.std:.{digits}f}"
        if cell.paired is None:
            return text
        verdict = f", {word}" if (word := self.verdict(cell)) else ""
        return f"{text} ({cell.paired.text(scale, digits)}{verdict})"


def build_table(
    values: Mapping[tuple[str, int, Correction], Value],
    metric: str,
    baseline: str,
    *,
    estimated: bool,
    majority: Majority,
) -> StudyTable:
    """Make the table of values by method, seed and use; ``baseline`` is a method's title, or begins one."""
    methods = list(dict.fromkeys(method for method, _, _ in values))
    reference = next((method for method in methods if method == baseline), methods[0])
    cells = {}
    for method in methods:
        for use, title in _TITLES.items():
            if not (own := _by_seed(values, method, use)):
                continue
            theirs = None if method == reference else _plain(_by_seed(values, reference, use))
            cells[method, title] = _cell(own, theirs)
    uses = tuple(title for title in _TITLES.values() if any(use == title for _, use in cells))
    return StudyTable(metric, estimated, reference, uses, cells, majority)


def _cell(own: Mapping[int, Value], baseline: Mapping[int, float] | None) -> TableCell:
    spread = Spread.of(value.value for value in own.values())
    balanced = [value.balanced_accuracy for value in own.values() if value.balanced_accuracy is not None]
    return TableCell(
        spread.mean,
        spread.std,
        spread.seeds,
        None if baseline is None else Paired.of(_plain(own), baseline),
        typical_error(value.error for value in own.values()),
        sum(balanced) / len(balanced) if balanced else None,
    )


def _by_seed(values: Mapping[tuple[str, int, Correction], Value], method: str, use: Correction) -> dict[int, Value]:
    return {seed: value for (m, seed, u), value in values.items() if (m, u) == (method, use)}


def _plain(values: Mapping[int, Value]) -> dict[int, float]:
    return {seed: value.value for seed, value in values.items()}
