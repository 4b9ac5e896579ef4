"""Do the rows of a table of counts come from one distribution? Tests that hold for small counts, too.

For a table O of r rows and c columns with row sums n_i, column sums C_j and n in all, row i against
all others has Pearson's statistic, and the table that of the rows together:

    X²_i = n²/(n_i (n − n_i)) · [ Σ_j O_ij²/C_j − n_i²/n ],        X² = Σ_i (1 − n_i/n) X²_i

with c − 1 and (r − 1)(c − 1) degrees of freedom. Given the margins, the distribution of the table
under the null hypothesis is known exactly. We draw from it, unless all expected counts are at least
5, where χ² does as well. With U uniform in (0, 1),

    p = [ #{drawn > observed} + U·(1 + #{drawn = observed}) ] / (1 + draws)

is exactly uniform under the null hypothesis however small the counts are. Without U, which decides
ties, p-values of small tables would be too large, and many of them together would find nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, random_table

from fedpals.labels import Vector
from fedpals.shift.tally import Counts

_ENOUGH = 5.0
"""Smallest expected count with which χ² is used."""
_FIRST_DRAWS = 199
_SETTLED = 10
"""Once about so many drawn tables reached the observed one, more draws would not make it significant."""
_RARE = 5
"""Columns with fewer samples are merged."""
_COLUMNS = 8
"""So many of the largest columns are kept, and the others merged."""
_CHUNK = 1 << 22
"""Entries of the tables that are drawn at a time."""
_TINY = 1e-300
"""Smallest p-value told; χ² underflows there."""


@dataclass(frozen=True, eq=False)
class RowTest:
    """Pearson's test of one table, and of each of its rows against the others."""

    samples: int
    columns: int
    """c."""
    statistic: float
    """X²."""
    p: float
    row_statistics: Vector
    """(r,) X²_i."""
    row_p: Vector

    @property
    def freedom(self) -> int:
        """Degrees of freedom (r − 1)(c − 1)."""
        return (self.row_p.size - 1) * (self.columns - 1)

    @property
    def excess(self) -> float:
        """X² − E[X²] under the null hypothesis, where given the margins E[X²] = n/(n − 1) (r − 1)(c − 1)."""
        return self.statistic - self.samples / (self.samples - 1) * self.freedom

    @property
    def span(self) -> float:
        """Value of the excess at which Cramér's V is 1, min(r̃ − 1, c̃ − 1)·n with r̃ − 1 = (r − 1)(n − r)/(n − 1)."""
        n = self.samples
        return n * min((k - 1) * (n - k) / (n - 1) for k in (self.row_p.size, self.columns))


def cramers_v(tests: list[RowTest]) -> float:
    """Cramér's V in [0, 1], corrected for bias (Bergsma 2013), of several tables taken together.

    V² = Σ excess / Σ span: 0 on average where rows do not differ, 1 where the row tells the column.
    """
    span = sum(test.span for test in tests)
    return float(np.sqrt(min(1.0, max(0.0, sum(test.excess for test in tests) / span)))) if span > 0 else 0.0


def compare_rows(table: Counts, rng: np.random.Generator | None, draws: int) -> RowTest | None:
    """Test a table without empty rows; None where there are not two rows and two columns to compare.

    Columns are merged into one, but for the largest, and the next 7 with at least 5 samples. The
    margins alone decide that, so the test stays valid.

    Parameters
    ----------
    table
        (r, c) counts.
    rng
        What null tables are drawn with; None for χ² whatever the counts are.
    draws
        How many are drawn at the most. Where the observed table exceeds them all, p ≤ 1/(1 + draws).
    """
    table = _merge_rare_columns(table)
    rows, columns = table.shape
    if rows < 2 or columns < 2:
        return None
    row_sums, column_sums = table.sum(axis=1), table.sum(axis=0)
    n = int(row_sums.sum())
    observed = _statistics(table[None].astype(np.float64), row_sums, column_sums)[0]
    if rng is None or row_sums.min() * column_sums.min() >= _ENOUGH * n:
        freedom = np.append(np.full(rows, columns - 1), (rows - 1) * (columns - 1))
        p = chi2.sf(observed, freedom)
    else:
        p = _drawn_p(observed, row_sums, column_sums, rng, draws)
    p = np.maximum(p, _TINY)
    return RowTest(n, columns, float(observed[-1]), float(p[-1]), observed[:-1], p[:-1])


def holm(p: npt.ArrayLike) -> Vector:
    """Holm's adjusted p-values: those ≤ a level contain a false alarm with at most that probability.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate(values[order] * np.arange(values.size, 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted


def fisher(p: npt.ArrayLike) -> float:
    """P-value of independent tests taken together: −2 Σ log p is at most χ² with two degrees for each."""
    values = np.asarray(p, dtype=np.float64)
    return float(chi2.sf(-2.0 * np.log(values).sum(), 2 * values.size))


def _merge_rare_columns(table: Counts) -> Counts:
    sums = table.sum(axis=0)
    largest = np.argsort(-sums, kind="stable")[:_COLUMNS]
    kept = np.zeros(sums.size, dtype=np.bool_)
    kept[largest] = sums[largest] >= _RARE
    kept[largest[0]] = True
    merged = np.column_stack([table[:, kept], table[:, ~kept].sum(axis=1)])
    return np.asarray(merged[:, merged.any(axis=0)])


def _statistics(tables: Vector, row_sums: Counts, column_sums: Counts) -> Vector:
    """(tables, r + 1): X²_i of each row, then X², of tables with the same margins."""
    n = row_sums.sum()
    share = row_sums / n
    deviation = np.square(tables) @ (1.0 / column_sums) - share * row_sums
    rows = np.maximum(deviation, 0.0) / (share * (1.0 - share))
    return np.column_stack([rows, rows @ (1.0 - share)])


def _drawn_p(observed: Vector, row_sums: Counts, column_sums: Counts, rng: np.random.Generator, draws: int) -> Vector:
    """P-values (r + 1,) by tables drawn given the margins, X²'s own last.

    Draws are doubled while p_k ≤ τ_k = 10/(1 + draws). The last p is uniform enough to be valid:
    since τ falls, it is ≤ t only if p_k ≤ t at the first stage with τ_k < t, which is a fixed one.
    """
    slack = 1e-9 * observed  # what is equal on paper is equal
    chunk = max(1, _CHUNK // (row_sums.size * column_sums.size))
    coin = rng.random(observed.size)
    above, level = np.zeros((2, observed.size))
    drawn, stage = 0, _FIRST_DRAWS
    while drawn < stage:
        size = min(chunk, stage - drawn)
        tables = random_table.rvs(row_sums, column_sums, size=size, random_state=rng).astype(np.float64)
        difference = _statistics(tables, row_sums, column_sums) - observed
        above += (difference > slack).sum(axis=0)
        level += (np.abs(difference) <= slack).sum(axis=0)
        drawn += size
        p = (above + coin * (1.0 + level)) / (1.0 + drawn)
        if drawn == stage and p[-1] <= _SETTLED / (1.0 + drawn):
            stage = max(stage, min(2 * stage, draws))
    return np.asarray(p)
