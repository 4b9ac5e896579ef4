"""The table of a study: mean ± std over seeds, and paired differences with their standard errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from fedpals.report.paired import Paired
from fedpals.report.table import Spread
from fedpals.shift.evaluation import Correction

_TITLES = {
    Correction.RAW: "as trained",
    Correction.PRIOR: "+prior",
    Correction.CALIBRATED: "calibrated",
    Correction.RECOMMENDED: "recommended",
}


@dataclass(frozen=True)
class TableCell:
    """A metric over seeds, and how it differs from the baseline's, seed by seed."""

    mean: float
    std: float
    seeds: int
    paired: Paired | None = None
    """Difference to the baseline; None for the baseline itself."""

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

    def __str__(self) -> str:
        table = self._texts()
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        return "\n".join([*lines, self.caption])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        header, *rows = self._texts()
        head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<table><caption>{escape(self.caption)}</caption><tr>{head}</tr>{body}</table>"

    def _texts(self) -> list[list[str]]:
        rows = [["method", *self.uses]]
        for method in self.methods:
            cells = [self.cells.get((method, use)) for use in self.uses]
            rows.append([method, *("" if cell is None else self._text(cell) for cell in cells)])
        return rows

    def _text(self, cell: TableCell) -> str:
        scale, digits = (1, 3) if self.metric == "log_loss" else (100, 1)
        text = f"{scale * cell.mean:.{digits}f} ± {scale * cell.std:.{digits}f}"
        if cell.paired is None:
            return text
        verdict = f", {word}" if (word := self.verdict(cell)) else ""
        return f"{text} ({cell.paired.text(scale, digits)}{verdict})"


def build_table(
    values: Mapping[tuple[str, int, Correction], float], metric: str, baseline: str, *, estimated: bool
) -> StudyTable:
    """Make the table of values by method, seed and use; ``baseline`` is a method's title, or begins one."""
    methods = list(dict.fromkeys(method for method, _, _ in values))
    reference = next((method for method in methods if method == baseline), methods[0])
    cells = {}
    for method in methods:
        for use, title in _TITLES.items():
            own = {seed: value for (m, seed, u), value in values.items() if (m, u) == (method, use)}
            if not own:
                continue
            theirs = {seed: value for (m, seed, u), value in values.items() if (m, u) == (reference, use)}
            spread = Spread.of(own.values())
            paired = None if method == reference else Paired.of(own, theirs)
            cells[method, title] = TableCell(spread.mean, spread.std, spread.seeds, paired)
    uses = tuple(title for title in _TITLES.values() if any(use == title for _, use in cells))
    return StudyTable(metric, estimated, reference, uses, cells)
