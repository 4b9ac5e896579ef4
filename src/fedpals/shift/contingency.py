"""Tests of whether all rows of a table of counts come from one distribution, valid for small counts too.

For a table O of r rows and c columns with row sums n_i, column sums C_j and total n, Pearson's statistics
of row i against all others, and of the whole table, are

    X²_i = n²/(n_i (n − n_i)) · [ Σ_j O_ij²/C_j − n_i²/n ],        X² = Σ_i (1 − n_i/n) X²_i

with c − 1 and (r − 1)(c − 1) degrees of freedom. Given the margins, the distribution of the table
under the null hypothesis is known exactly. We draw from it, unless all expected counts are at least
5: then χ² is accurate enough. With U uniform in (0, 1),

    p = [ #{drawn > observed} + U·(1 + #{drawn = observed}) ] / (1 + draws)

is exactly uniform under the null hypothesis, even for small counts. Without U, which breaks ties,
p-values of small tables would be too large, and a combination of many of them would have no power.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from fedpals.labels import Vector
from fedpals.shift.tally import Counts

_MIN_EXPECTED_COUNT = 5.0
"""Smallest expected count for which χ² is used."""
_FIRST_DRAWS = 199
"""Number of tables drawn at first."""
_MAX_EXTREME_TABLES = 10
"""Number of drawn tables as extreme as the observed one after which drawing stops: it will not be significant."""
_MIN_COLUMN_SAMPLES = 5
"""Smallest number of samples of a column; smaller columns are merged."""
_MAX_COLUMNS = 8
"""Number of the largest columns that are kept; the others are merged."""
_CHUNK_ENTRIES = 1 << 22
"""Number of entries of the tables that are drawn at a time."""
MIN_P = 1e-300
"""Smallest p-value that is reported; χ² underflows there."""


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
        """Excess at which Cramér's V is 1: min(r̃ − 1, c̃ − 1)·n with r̃ − 1 = (r − 1)(n − r)/(n − 1)."""
        n = self.samples
        return n * min((k - 1) * (n - k) / (n - 1) for k in (self.row_p.size, self.columns))


def cramers_v(tests: list[RowTest]) -> float:
    """Return Cramér's V in [0, 1], corrected for bias (Bergsma 2013), of several tables together.

    V² = Σ excess / Σ span: 0 on average if rows do not differ, 1 if the row determines the column.
    """
    span = sum(test.span for test in tests)
    return float(np.sqrt(min(1.0, max(0.0, sum(test.excess for test in tests) / span)))) if span > 0 else 0.0


def compare_rows(table: Counts, rng: np.random.Generator | None, draws: int) -> RowTest | None:
    """Test a table without empty rows; return None if it has fewer than two rows or two columns.

    All columns are merged into one, except the largest and the next 7 with at least 5 samples. This
    depends on the margins alone, so the test stays valid.

    Parameters
    ----------
    table
        (r, c) counts.
    rng
        Generator of the tables drawn under the null hypothesis; None to use χ² for any counts.
    draws
        Largest number of tables drawn. If the observed table exceeds them all, p ≤ 1/(1 + draws).
    """
    from scipy.special import chdtrc  # slow to load: only where it is used

    table = _merge_rare_columns(table)
    rows, columns = table.shape
    if rows < 2 or columns < 2:
        return None
    row_sums, column_sums = table.sum(axis=1), table.sum(axis=0)
    n = int(row_sums.sum())
    observed = _statistics(table[None].astype(np.float64), row_sums, column_sums)[0]
    if rng is None or row_sums.min() * column_sums.min() >= _MIN_EXPECTED_COUNT * n:
        freedom = np.append(np.full(rows, columns - 1), (rows - 1) * (columns - 1))
        p = chdtrc(freedom, observed)
    else:
        p = _monte_carlo_p(observed, row_sums, column_sums, rng, draws)
    p = np.maximum(p, MIN_P)
    return RowTest(n, columns, float(observed[-1]), float(p[-1]), observed[:-1], p[:-1])


def holm(p: npt.ArrayLike) -> Vector:
    """Return Holm's adjusted p-values: those ≤ a level include a false alarm with at most that probability.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate(values[order] * np.arange(values.size, 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted


def fisher(p: npt.ArrayLike) -> Vector:
    """Return p-values, (…), of n independent tests together, (…, n): −2 Σ log p is at most χ² with 2n degrees."""
    from scipy.special import chdtrc  # slow to load: only where it is used

    values = np.asarray(p, dtype=np.float64)
    return np.asarray(chdtrc(2 * values.shape[-1], -2.0 * np.log(values).sum(axis=-1)))


def _merge_rare_columns(table: Counts) -> Counts:
    sums = table.sum(axis=0)
    largest = np.argsort(-sums, kind="stable")[:_MAX_COLUMNS]
    is_large = np.zeros(sums.size, dtype=np.bool_)
    is_large[largest] = sums[largest] >= _MIN_COLUMN_SAMPLES
    is_large[largest[0]] = True
    merged = np.column_stack([table[:, is_large], table[:, ~is_large].sum(axis=1)])
    return np.asarray(merged[:, merged.any(axis=0)])


def _statistics(tables: Vector, row_sums: Counts, column_sums: Counts) -> Vector:
    """Return X²_i of each row, then X², of tables with the same margins: (tables, r + 1)."""
    n = row_sums.sum()
    share = row_sums / n
    deviation = np.square(tables) @ (1.0 / column_sums) - share * row_sums
    rows = np.maximum(deviation, 0.0) / (share * (1.0 - share))
    return np.column_stack([rows, rows @ (1.0 - share)])


def _monte_carlo_p(
    observed: Vector, row_sums: Counts, column_sums: Counts, rng: np.random.Generator, draws: int
) -> Vector:
    """Return p-values (r + 1,) from tables drawn given the margins; the last is that of X².

    The number of draws is doubled while p_k ≤ τ_k = 10/(1 + draws). The last p is uniform enough to be valid:
    since τ decreases, p ≤ t only if p_k ≤ t at the first stage with τ_k < t, which is fixed in advance.
    """
    tolerance = 1e-9 * observed  # values that are equal up to rounding count as equal
    chunk = max(1, _CHUNK_ENTRIES // (row_sums.size * column_sums.size))
    U = rng.random(observed.size)
    greater, equal = np.zeros((2, observed.size))
    count, stage = 0, _FIRST_DRAWS
    while count < stage:
        size = min(chunk, stage - count)
        tables = scipy.stats.random_table.rvs(row_sums, column_sums, size=size, random_state=rng).astype(np.float64)
        difference = _statistics(tables, row_sums, column_sums) - observed
        greater += (difference > tolerance).sum(axis=0)
        equal += (np.abs(difference) <= tolerance).sum(axis=0)
        count += size
        p = (greater + U * (1.0 + equal)) / (1.0 + count)
        if count == stage and p[-1] <= _MAX_EXTREME_TABLES / (1.0 + count):
            stage = max(stage, min(2 * stage, draws))
    return np.asarray(p)
