"""λ > 0: semismooth Newton on the dual, K unknowns however many clients there are.

At the optimum there is a z ∈ R^K with

    α_i = w_i (s_i·z)₊        and        Sᵀα + μPz = T,      P = I − 11ᵀ/K,

the zero of the gradient of a convex, piecewise quadratic function; Σα = 1 follows, because the
rows of S and T sum to 1. We work in u = z − 1: u = 0 is FedAvg, so a huge λ loses no digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector
from fedpals.weights.problem import EPS, Precision, Problem

_MAX_STEPS = 200
_DIRECT = 1e-5
"""Below this μ Newton is led there in stages; above it starts at once."""
_STAGE = 0.03
_SKETCHED = 4e-3
"""Accuracy of a sketch's solution: it is a start, and as a sample no better than this."""
_NEAR = 1e4
"""Within so many roundings of zero, steps that no longer halve F are the end of what can be had."""
_SKETCH = 1024
"""Rows of a sketch that is solved first where there are several times as many clients, to start from."""
_COARSE = 2e-4
"""From such an F a Newton step leads to one that all digits of Sᵀα are needed for."""


@dataclass(frozen=True, eq=False)
class Point:
    """A dual point and what follows from it."""

    u: Vector
    v: Vector
    """s_i·z = 1 + s_i·u, per client; α = w·v₊."""
    marginal: Vector
    """Sᵀα."""
    F: Vector
    """Sᵀα + μP(u − centre) − T: zero at the optimum."""

    @property
    def residual(self) -> float:
        """Largest entry of F."""
        return float(np.abs(self.F).max())


def centred(u: Vector) -> Vector:
    """P·u = u − mean(u)."""
    return np.asarray(u - u.mean())


class Newton:
    """The iteration for one problem; keeps its Newton matrix from solve to solve.

    The matrix is G + μP with G = Σ_active w_i s_i s_iᵀ. Between two points few clients enter or
    leave the active set, so G is updated by those alone.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._active: npt.NDArray[np.bool_] | None = None
        self._gram: Vector = np.empty((0, 0))
        self._updates = 0
        self._precision: Precision = np.float64
        self._common = int(np.argmax(problem.T))

    def solve(self, mu: float, start: Vector | None = None, accuracy: float = 0.0) -> Point:
        """Return the optimum for μ, from a nearby ``start`` or from FedAvg."""
        if start is not None:
            return self.descend(mu, start)
        u = np.zeros_like(self.problem.T)
        sketch = max(_SKETCH, 10 * u.size)
        if self.problem.w.size > 8 * sketch:
            start = Newton(self.problem.sketch(sketch)).solve(mu, accuracy=_SKETCHED).u
            return self.descend(mu, self.approach(mu, start))
        stage = 1e-3
        while mu < _DIRECT and stage > mu:
            u = self.descend(stage, u).u
            stage = max(mu, stage * _STAGE)
        return self.descend(mu, u, accuracy=accuracy)

    def approach(self, mu: float, u: Vector) -> Vector:
        """Full Newton steps without Sᵀα: where G is at hand it is G·z, which is as exact as G is.

        Rows of S sum to 1, so that v = S·z with z = 1 + u, and Sᵀ(w·v₊) = G·z over the active clients.
        Ends with the step whose outcome G may be too coarse to judge, or that does not help.
        """
        p, best, least = self.problem, u, math.inf
        while True:
            mean = u.mean()
            v = p.scores(u - mean)
            v += 1.0 + mean
            G = self.gram(v, mu)
            F = G @ (1.0 + u) + mu * centred(u) - p.T
            residual = float(np.abs(F).max())
            if residual > 0.5 * least:
                return best
            best, least = u, residual
            u = u + self.inverse(G, mu, -F)
            if residual < _COARSE:
                return u

    def descend(self, mu: float, u: Vector, centre: Vector | float = 0.0, accuracy: float = 0.0) -> Point:
        """Newton steps with an exact line search, until F is at most ``accuracy``, or rounding.

        ``centre`` moves the regulariser to ½μ‖P(u − centre)‖².
        """
        point = best = self._at(u, mu, centre)
        stalls = 0
        for _ in range(_MAX_STEPS):
            rounding = EPS * (1.0 + float(np.abs(best.u).max()))
            if best.residual <= max(accuracy, 4 * rounding) or stalls == 2:
                break
            point = self._search(point, self.inverse(self.gram(point.v, mu), mu, -point.F), mu, centre)
            if point.residual > 0.5 * best.residual and best.residual <= _NEAR * rounding:
                stalls += 1
            if point.residual < best.residual:
                best = point
        return best

    def _at(self, u: Vector, mu: float, centre: Vector | float) -> Point:
        p = self.problem
        mean = u.mean()
        v, marginal = p.response(u - mean, 1.0 + mean)
        F = marginal - p.T
        F += mu * centred(u - centre)
        return Point(u, v, marginal, F)

    def gram(self, v: Vector, mu: float) -> Vector:
        """G = Σ w_i s_i s_iᵀ over the clients with v_i > 0; in single precision where μ dwarfs its error."""
        p, active = self.problem, v > 0
        precision: Precision = np.float32 if mu > _DIRECT else np.float64
        if self._active is not None and self._precision is precision:
            flipped = np.flatnonzero(active != self._active)
            if flipped.size * 2 < active.size and self._updates < 50:
                if flipped.size:
                    change = np.where(active[flipped], 1.0, -1.0) * p.w[flipped]
                    self._gram = self._gram + p.gram(change, flipped, precision)
                    self._updates += 1
                self._active = active
                return self._gram
        rows = np.flatnonzero(active)
        if rows.size < active.size * (0.9 if p.by_rows else 0.25):
            self._gram = p.gram(p.w[rows], rows, precision)
        else:
            self._gram = p.gram(p.w * active, precision=precision)
        self._active, self._updates, self._precision = active, 0, precision
        return self._gram

    def inverse(self, G: Vector, mu: float, rhs: Vector) -> Vector:
        """Solve (G + μP) x = rhs, for a μ far from 1 or few active clients in a basis that can take any of them.

        P vanishes on the constant vector, where only G counts, so that vector takes the place of
        the target's most common label in the basis; then scaling the diagonal to 1 is enough.
        """
        j, K = self._common, rhs.size
        H = G - mu / K
        H.flat[:: K + 1] += mu
        if _DIRECT < mu < 1.0 and G.sum() > _DIRECT:
            return np.asarray(np.linalg.solve(H, rhs), dtype=np.float64)
        ones = G.sum(axis=1)
        H[j] = H[:, j] = ones
        H[j, j] = max(float(ones.sum()), EPS)
        b = rhs.copy()
        b[j] = rhs.sum()
        scale = 1.0 / np.sqrt(np.maximum(H.flat[:: K + 1], EPS * EPS))
        H *= scale
        H *= scale[:, None]
        b *= scale
        # Not scipy's Cholesky: its BLAS has threads of its own, which would wait for numpy's at every step.
        x = np.linalg.solve(H, b)
        x *= scale
        constant = x[j]
        x[j] = 0.0
        return np.asarray(x + constant)

    def _search(self, point: Point, d: Vector, mu: float, centre: Vector | float) -> Point:
        """Take the full step where it helps, else go to the minimum along ``d``."""
        full = self._at(point.u + d, mu, centre)
        if full.residual < 0.5 * point.residual or d @ full.F <= 0:
            return full
        # The slope along d is piecewise linear: find its zero without another product with S.
        p = self.problem
        b = full.v - point.v
        weighted = p.w * b
        curvature = mu * float(np.square(centred(d)).sum())
        offset = float(d @ point.F) - float(weighted @ np.maximum(point.v, 0.0))
        low, high, t = 0.0, 1.0, 0.5
        for _ in range(60):
            at = point.v + t * b
            slope = offset + t * curvature + float(weighted @ np.maximum(at, 0.0))
            low, high = (t, high) if slope < 0 else (low, t)
            bend = curvature + float((weighted * b) @ (at > 0))
            step = t - slope / bend if bend > 0 else low
            following = step if low < step < high else 0.5 * (low + high)
            if abs(following - t) <= 1e-12 * high:
                break
            t = following
        return self._at(point.u + t * d, mu, centre)
