"""Double-double arithmetic: vectors with twice the digits of float64, for products whose terms cancel.

Near λ = 0 the dual z is large and v = S·z small: with z of 10⁷ and more, float64 leaves v few correct digits and
α = w·v₊ none. Here z is the sum of two float64 vectors. Counts are whole numbers, so C·z is computed exactly with
ordinary matrix products: z is cut into slices of so few bits that no product and no sum is ever rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpals.labels import Vector
from fedpals.weights.problem import Problem

_BITS = 110
"""Bits of z that a product takes into account, counted from the leading bit of its largest entry."""
_SCORE_ROUNDING = 2.0**-98
"""Bound on the error of a score, relative to the largest entry of z, before it is rounded to float64."""
_MAX_SIZE_BITS = 40
"""Bits of a client's size up to which slices of z are wide enough; larger counts are cut as well."""
_LOW_COUNT = 2.0**27


@dataclass(frozen=True, eq=False)
class DoubleDouble:
    """A vector as the sum of two: ``high``, and ``low`` with what rounding has cut off."""

    high: Vector
    low: Vector

    @classmethod
    def of(cls, values: Vector) -> DoubleDouble:
        """Return ``values`` with no more digits than they have."""
        return cls(values, np.zeros_like(values))

    def plus(self, step: Vector) -> DoubleDouble:
        """Return the sum with a float64 vector."""
        high, low = _two_sum(self.high, step)
        return DoubleDouble(*_two_sum(high, low + self.low))

    def minus(self, other: DoubleDouble) -> Vector:
        """Return the difference, rounded once."""
        return (self.high - other.high) + (self.low - other.low)

    def without_mean(self) -> Vector:
        """Return P·z = z − mean(z)."""
        difference = (self.high - self.high[0]) + (self.low - self.low[0])
        return np.asarray(difference - difference.mean())


def exact_scores(problem: Problem, z: DoubleDouble) -> tuple[Vector, float]:
    """Return S·z, rounded to float64, and a bound on its error before that rounding."""
    scores, rest = np.zeros_like(problem.n), np.zeros_like(problem.n)
    for counts, unit, bits in _count_parts(problem):
        products = np.asarray(counts @ _slices(z, bits)) * unit
        for column in range(products.shape[1]):
            scores, rounding = _two_sum(scores, products[:, column])
            rest += rounding
    scores += rest
    scores /= np.maximum(problem.n, 1.0)
    return scores, _SCORE_ROUNDING * float(np.abs(z.high).max())


def _count_parts(problem: Problem) -> list[tuple[Any, float, int]]:
    """Return C as a sum of tables of small whole numbers: (table, its unit, bits of a slice of z)."""
    size_bits = math.ceil(math.log2(max(2.0, float(problem.n.max()))))
    if size_bits <= _MAX_SIZE_BITS:
        return [(problem.C, 1.0, 53 - size_bits)]
    C: Any = problem.C
    high = C.copy()
    entries = high if isinstance(high, np.ndarray) else high.data
    np.floor(entries / _LOW_COUNT, out=entries)
    row_bits = max(27 + math.ceil(math.log2(max(2, problem.T.size))), size_bits - 27)
    return [(high, _LOW_COUNT, 53 - row_bits), (C - _LOW_COUNT * high, 1.0, 53 - row_bits)]


def _slices(z: DoubleDouble, bits: int) -> Vector:
    """Return vectors, as columns, that sum to z; in each, entries are multiples of a unit and below 2^bits of it."""
    high, low = z.high, z.low
    exponent = math.frexp(float(np.abs(high).max()))[1]
    columns = []
    for _ in range(math.ceil(_BITS / bits)):
        exponent -= bits
        unit = math.ldexp(1.0, exponent)
        column = np.rint(high / unit) * unit
        columns.append(column)
        high, low = _two_sum(high - column, low)
    return np.stack(columns, axis=1)


def _two_sum(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """Return a + b, rounded, and the rounding error, which is a float64 number itself (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
