"""The paper's equation solved in exact rational arithmetic, for a few clients: the referee.

Nothing is shared with the package: every possible support is tried, its optimality conditions are
solved as a linear system over the rationals, and the one that satisfies all of them is the answer.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import numpy.typing as npt


def _solve(A: list[list[Fraction]], b: list[Fraction]) -> list[Fraction] | None:
    """Gauss elimination; None where the matrix is singular."""
    n = len(b)
    rows = [[*row, rhs] for row, rhs in zip(A, b, strict=True)]
    for i in range(n):
        pivot = next((k for k in range(i, n) if rows[k][i] != 0), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for k in range(n):
            if k != i and rows[k][i] != 0:
                factor = rows[k][i]
                rows[k] = [x - factor * y for x, y in zip(rows[k], rows[i], strict=True)]
    return [row[n] for row in rows]


class Exact:
    """min over the simplex ‖T − Sᵀα‖² + μ Σ α_i²/w_i with rational data."""

    def __init__(self, counts: npt.NDArray[np.int64], target: npt.NDArray[np.float64], mu: Fraction) -> None:
        sizes = [int(n) for n in counts.sum(axis=1)]
        total = sum(sizes)
        self.clients = len(sizes)
        self.kept = [i for i, n in enumerate(sizes) if n]
        self.S = {i: [Fraction(int(c), sizes[i]) for c in counts[i]] for i in self.kept}
        self.w = {i: Fraction(sizes[i], total) for i in self.kept}
        self.T = [Fraction(float(t)) for t in target]
        self.mu = mu

    def objective(self, alpha: list[Fraction]) -> Fraction:
        r = self._residual(alpha)
        return sum((x * x for x in r), Fraction(0)) + self.mu * sum(alpha[i] ** 2 / self.w[i] for i in self.kept)

    def _residual(self, alpha: list[Fraction]) -> list[Fraction]:
        return [t - sum(alpha[i] * self.S[i][k] for i in self.kept) for k, t in enumerate(self.T)]

    def optimum(self) -> list[Fraction]:
        for size in range(1, len(self.kept) + 1):
            for support in combinations(self.kept, size):
                alpha = self._on(support)
                if alpha is not None and self._is_optimal(alpha, support):
                    return alpha
        raise AssertionError("no support satisfies the optimality conditions")

    def _on(self, support: tuple[int, ...]) -> list[Fraction] | None:
        dot = {
            (i, j): sum((a * b for a, b in zip(self.S[i], self.S[j], strict=True)), Fraction(0))
            for i in support
            for j in support
        }
        A = [[dot[i, j] + (self.mu / self.w[i] if i == j else 0) for j in support] + [Fraction(-1)] for i in support]
        A.append([Fraction(1)] * len(support) + [Fraction(0)])
        b = [sum((s * t for s, t in zip(self.S[i], self.T, strict=True)), Fraction(0)) for i in support]
        x = _solve(A, [*b, Fraction(1)])
        if x is None or min(x[:-1]) < 0:
            return None
        alpha = [Fraction(0)] * self.clients
        for i, value in zip(support, x[:-1], strict=True):
            alpha[i] = value
        return alpha

    def _is_optimal(self, alpha: list[Fraction], support: tuple[int, ...]) -> bool:
        r = self._residual(alpha)
        pull = {
            i: self.mu * alpha[i] / self.w[i] - sum(s * x for s, x in zip(self.S[i], r, strict=True)) for i in self.kept
        }
        level = pull[support[0]]
        return all(pull[i] == level if alpha[i] > 0 else pull[i] >= level for i in self.kept)
