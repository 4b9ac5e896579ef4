"""The paper's equation in hundreds of bits, for thousands of clients: the reference of the fuzz.

Nothing is shared with the package. Counts, sizes and T are exact; S, and all that follows from it, has ``BITS`` bits.
The weights to be checked are only a hint where to start: what is returned satisfies the optimality conditions.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt

BITS = 500
_ONE = 1 << BITS
_TINY = mpmath.mpf(10) ** -50
_MAX_STEPS = 400

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[Any]
"""Python integers: numbers with BITS bits behind the point."""


class Reference:
    """min over the simplex ‖T − Sᵀα‖² + μ Σ α_i²/w_i, and its limit for μ → 0⁺."""

    def __init__(self, counts: Any, target: Array) -> None:
        sizes = np.asarray(counts).sum(axis=1)
        self.kept = np.flatnonzero(sizes)
        self.C: Whole = np.asarray(counts)[self.kept].astype(np.int64).astype(object)
        self.n: Whole = self.C.sum(axis=1)
        self.N = int(self.n.sum())
        self.S: Whole = self.C * _ONE // self.n[:, None]
        shares = [Fraction(float(t)) for t in target]
        self.T = np.array([int(t * _ONE / sum(shares)) for t in shares], dtype=object)
        self.w = np.array([int(n) / self.N for n in self.n])

    def projection(self, hint: Array | None = None) -> Whole:
        """Return the point of Conv(S) closest to T, by Wolfe's algorithm."""
        rows = [] if hint is None else np.flatnonzero(hint[self.kept]).tolist()
        if not 0 < len(rows) <= self.T.size:
            rows = [int(np.argmin(((self.S - self.T) ** 2).sum(axis=1)))]
        weights = [mpmath.mpf(1) / len(rows)] * len(rows)
        for _ in range(_MAX_STEPS):
            rows, weights, point = self._nearest(rows, weights)
            r = self.T - point
            if _real(int(np.abs(r).max())) <= _TINY:
                return self.T
            price = self.S.dot(r)
            best = int(np.argmax(price))
            # Prices are products of two numbers with BITS bits behind the point.
            if _real(price[best] - max(price[rows])) / _ONE <= _TINY * _real(int(np.abs(r).max())) or best in rows:
                return np.asarray(point)
            rows, weights = [*rows, best], [*weights, mpmath.mpf(0)]
        raise AssertionError("the reference found no projection")

    def _nearest(self, rows: list[int], weights: list[Any]) -> tuple[list[int], list[Any], Whole]:
        while True:
            edges = self.S[rows[1:]] - self.S[rows[0]]
            to_target = self.T - self.S[rows[0]]
            shares = []
            if len(rows) > 1:
                gram = edges.dot(edges.T)
                rhs = edges.dot(to_target)
                shares = list(_solve(gram, rhs))
            nearest = [1 - mpmath.fsum(shares), *shares]
            leaving = [i for i, x in enumerate(nearest) if x <= 0]
            if not leaving:
                point = self.S[rows[0]] + np.array([_whole(x) for x in shares], dtype=object).dot(edges) // _ONE
                return rows, nearest, point
            t, gone = min((weights[i] / (weights[i] - nearest[i]) if weights[i] else weights[i], i) for i in leaving)
            weights = [x + t * (y - x) for x, y in zip(weights, nearest, strict=True)]
            rows, weights = (
                [x for i, x in enumerate(rows) if i != gone],
                [x for i, x in enumerate(weights) if i != gone],
            )

    def optimum(self, target: Whole, mu: Fraction, hint: Array) -> list[Any]:
        """Return α for ``target`` and μ; for μ = 0 the α with Sᵀα = target and the least Σα²/w."""
        K = self.T.size
        nu = mpmath.mpf(10) ** -45
        pull = mpmath.mpf(mu.numerator) / mu.denominator
        active = hint[self.kept] > 0
        z = centre = mpmath.matrix([0] * K)
        T = mpmath.matrix([_real(t) for t in target])
        P = mpmath.eye(K) - mpmath.ones(K) / K
        scores = self._scores(z)
        for step in range(_MAX_STEPS):
            G = self._gram(active) + pull * P
            best = mpmath.lu_solve(G + nu * mpmath.eye(K), T + nu * centre)
            best_scores = self._scores(best)
            if ((best_scores > 0) == active).all():
                z = best
                if max(abs(x) for x in T - G * z) <= _TINY:
                    return self._weights(best_scores)
                centre, scores = z, best_scores
                continue
            t = 1.0 if step == 0 else self._line_minimum(scores, best_scores, z, best, T, pull, nu, centre)
            z = z + t * (best - z)
            scores = self._scores(z)
            active = scores > 0
        raise AssertionError("the reference found no optimum")

    def q(self, alpha: list[Any]) -> Any:
        """Return Σ α_i²/w_i."""
        return mpmath.fsum(a * a * self.N / int(n) for a, n in zip(alpha, self.n, strict=True) if a)

    def objective(self, alpha: list[Any], mu: Fraction) -> Any:
        r = self.T - self.mix(alpha)
        return _real(int((r * r).sum())) / _ONE + mpmath.mpf(mu.numerator) / mu.denominator * self.q(alpha)

    def mix(self, alpha: list[Any]) -> Whole:
        """Return Sᵀα."""
        return np.asarray(np.array([_whole(x) for x in alpha], dtype=object).dot(self.S) // _ONE)

    def exact(self, alpha: Array) -> list[Any]:
        """Return α/Σα of float64 weights."""
        found = [mpmath.mpf(float(a)) for a in alpha[self.kept]]
        total = mpmath.fsum(found)
        return [a / total for a in found]

    def _gram(self, active: npt.NDArray[np.bool_]) -> Any:
        G = (self.C[active] * (_ONE // self.n[active])[:, None]).T.dot(self.C[active])
        return mpmath.matrix([[_real(x) / self.N for x in row] for row in G])

    def _scores(self, z: Any) -> Whole:
        """Return n_i·s_i·z."""
        return np.asarray(self.C.dot(np.array([_whole(x) for x in z], dtype=object)))

    def _weights(self, scores: Whole) -> list[Any]:
        return [_real(x) / self.N if x > 0 else mpmath.mpf(0) for x in scores]

    def _line_minimum(
        self, scores: Whole, best_scores: Whole, z: Any, best: Any, T: Any, pull: Any, nu: Any, centre: Any
    ) -> Any:
        """Return where on the way to ``best`` the dual function is smallest, by bisection of its slope."""
        d = best - z
        mean = mpmath.fsum(d) / len(d)
        bend = pull * mpmath.fsum((x - mean) ** 2 for x in d) + nu * mpmath.fsum(x * x for x in d)
        z_mean = mpmath.fsum(z) / len(z)
        start = pull * mpmath.fsum((x - mean) * (y - z_mean) for x, y in zip(d, z, strict=True))
        start += nu * mpmath.fsum(x * (y - c) for x, y, c in zip(d, z, centre, strict=True))
        start -= mpmath.fsum(x * t for x, t in zip(d, T, strict=True))
        change = best_scores - scores

        def slope(t: Any) -> Any:
            scale = _whole(t)
            at = scores * _ONE + change * scale
            terms = [a * b // int(n) for a, b, n in zip(at, change, self.n, strict=True) if a > 0]
            return start + bend * t + mpmath.mpf(sum(terms)) / _ONE / _ONE / _ONE / self.N

        low, high = mpmath.mpf(0), mpmath.mpf(1)
        exponent = 1
        while slope(mpmath.mpf(2) ** -exponent) > 0:
            exponent, high = 2 * exponent, mpmath.mpf(2) ** -exponent
        low = mpmath.mpf(2) ** -exponent
        while high > low * (1 + mpmath.mpf(2) ** -12):
            t = mpmath.sqrt(low * high)
            low, high = (t, high) if slope(t) < 0 else (low, t)
        return high


def largest(vector: Whole) -> float:
    """Return the largest absolute entry; 0 below 10⁻⁵⁰."""
    size = _real(int(np.abs(vector).max()))
    return float(size) if size > _TINY else 0.0


def l1_distance(a: list[Any], b: list[Any]) -> float:
    return float(mpmath.fsum(abs(x - y) for x, y in zip(a, b, strict=True)))


def _real(x: Any) -> Any:
    with mpmath.workprec(BITS + 100):
        return mpmath.mpf(int(x)) / _ONE


def _whole(x: Any) -> int:
    return int(mpmath.floor(x * _ONE))


def _solve(gram: Whole, rhs: Whole) -> Any:
    A = mpmath.matrix([[_real(x) / _ONE for x in row] for row in gram])
    b = mpmath.matrix([_real(x) / _ONE for x in rhs])
    return mpmath.lu_solve(A, b)


mpmath.mp.prec = BITS
