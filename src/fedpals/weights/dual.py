"""λ > 0: semismooth Newton on the dual, with K unknowns for any number of clients.

At the optimum there is a z ∈ R^K with

    α_i = w_i (s_i·z)₊        and        Sᵀα + μPz = T,      P = I − 11ᵀ/K,

the zero of the gradient of a convex, piecewise quadratic function. Σα = 1 follows, because the
rows of S and T sum to 1. The code works with u = z − 1: u = 0 is FedAvg, so a huge λ loses no digits.

With a cap, α_i = min(w_i (s_i·z)₊, cap): the function is then linear in s_i·z beyond the cap, where a client is as
little active as below 0. Iterations that never come to the cap take the same steps, to the bit, as without one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector
from fedpals.weights.problem import EPS, Precision, Problem

_MAX_STEPS = 200
_DIRECT_MU = 1e-5
"""Smallest μ that is solved directly; a smaller one is approached in stages."""
_STAGE_FACTOR = 0.03
"""Ratio of μ between one stage and the previous one."""
_SKETCH_ACCURACY = 4e-3
"""Accuracy of a sketch's solution. It is only a start, and a sample of the clients is no more accurate than this."""
_STALL_ROUNDINGS = 1e4
"""Size of F, in roundings, below which a step that does not halve F counts as a stall."""
_SKETCH_ROWS = 1024
"""Clients of a sketch, which is solved first to start from if there are several times as many clients."""
_MIN_SKETCH_MU = 1e-9
"""Smallest μ that starts from a sketch: below it a sample of the clients has a solution far from theirs."""
_GRAM_RESIDUAL = 2e-4
"""Size of F below which, after one more Newton step, all digits of Sᵀα are needed."""


@dataclass(frozen=True, eq=False)
class Point:
    """A dual point with the quantities that follow from it."""

    u: Vector
    v: Vector
    """s_i·z = 1 + s_i·u per client; α = w·v₊, at most the cap."""
    marginal: Vector
    """Sᵀα."""
    F: Vector
    """Sᵀα + μP(u − centre) − T, which is zero at the optimum."""
    score_error: float | None = None
    """Bound on the error of v before its last rounding; None if v is a product in float64."""

    @cached_property
    def residual(self) -> float:
        """Largest absolute entry of F."""
        return float(np.abs(self.F).max())

    def weights(self, problem: Problem) -> tuple[Vector, Vector]:
        """Return α and Sᵀα, scaled to Σα = 1; with a cap only the free clients' weights are scaled."""
        alpha, cap = problem.clip(self.v), problem.cap
        alpha *= problem.w
        if cap is None or not problem.exceeds_cap(self.v):
            total = float(alpha.sum())
            alpha /= total
            if cap is not None:
                np.minimum(alpha, cap, out=alpha)  # above it by rounding only
            return alpha, self.marginal / total
        free = problem.is_free(self.v)
        at_cap = ~free & (alpha > 0)
        alpha[at_cap] = cap
        total = float(alpha @ free)
        if total > 0:
            alpha[free] *= (1.0 - cap * np.count_nonzero(at_cap)) / total
            np.minimum(np.maximum(alpha, 0.0, out=alpha), cap, out=alpha)
        return alpha, problem.mix(alpha)


def subtract_mean(u: Vector) -> Vector:
    """Return P·u = u − mean(u)."""
    return np.asarray(u - mean(u))


def mean(u: Vector) -> float:
    """Return the mean of u, as ``u.mean()`` does in three times the time."""
    return float(np.add.reduce(u)) / u.size


class Newton:
    """Newton iteration for one problem; reuses its Newton matrix from solve to solve.

    The matrix is G + μP with G = Σ_active w_i s_i s_iᵀ. Between two points few clients enter or
    leave the active set, so only their terms of G are updated.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._active: npt.NDArray[np.bool_] | None = None
        self._gram: Vector = np.empty((0, 0))
        self._updates = 0
        self._precision: Precision = np.float64
        self._common_label = int(np.argmax(problem.T))
        self.met_cap = False
        """Whether a client was at the cap at any point so far."""

    def solve(self, mu: float, start: Vector | None = None, accuracy: float = 0.0) -> Point:
        """Return the optimum for μ, from a nearby ``start`` or from FedAvg."""
        if start is not None:
            return self.descend(mu, start)
        u = np.zeros_like(self.problem.T)
        sketch = max(_SKETCH_ROWS, 10 * u.size)
        if self.problem.w.size > 8 * sketch and mu >= _MIN_SKETCH_MU:
            start = Newton(self.problem.sketch(sketch)).solve(mu, accuracy=_SKETCH_ACCURACY).u
            return self.descend(mu, self.approach(mu, start))
        stage = 1e-3
        while mu < _DIRECT_MU and stage > mu:
            u = self.descend(stage, u).u
            stage = max(mu, stage * _STAGE_FACTOR)
        return self.descend(mu, u, accuracy=accuracy)

    def approach(self, mu: float, u: Vector) -> Vector:
        """Take full Newton steps that do not compute Sᵀα: it equals G·z, which is as accurate as G.

        Rows of S sum to 1, so v = S·z with z = 1 + u, and Sᵀ(w·v₊) = G·z over the active clients, to which those at
        a cap are added. Stops when a step does not help, or when G is not accurate enough to judge the next one.
        """
        p, best_u, best_residual = self.problem, u, math.inf
        while True:
            offset = mean(u)
            v = p.scores(u - offset)
            v += 1.0 + offset
            G = self.gram(v, mu)
            F = G @ (1.0 + u) + mu * subtract_mean(u) - p.T
            if p.cap is not None and p.exceeds_cap(v):
                self.met_cap = True
                F += p.mix_at_cap(v)
            residual = float(np.abs(F).max())
            if residual > 0.5 * best_residual:
                return best_u
            best_u, best_residual = u, residual
            u = u + self.solve_linear(G, mu, -F)
            if residual < _GRAM_RESIDUAL:
                return u

    def descend(self, mu: float, u: Vector, centre: Vector | float = 0.0, accuracy: float = 0.0) -> Point:
        """Take Newton steps with an exact line search until F is at most ``accuracy``, or rounding error.

        ``centre`` changes the regulariser to ½μ‖P(u − centre)‖².
        """
        point = best = self._evaluate(u, mu, centre)
        stalls = 0
        for _ in range(_MAX_STEPS):
            rounding = EPS * (1.0 + float(np.abs(best.u).max()))
            if self.met_cap:  # u is not near 0 for a large μ, and F has the rounding of μPu
                rounding *= max(1.0, mu)
            if best.residual <= max(accuracy, 4 * rounding) or stalls == 2:
                break
            point = self._search(point, self._direction(point, mu), mu, centre)
            if point.residual > 0.5 * best.residual and best.residual <= _STALL_ROUNDINGS * rounding:
                stalls += 1
            if point.residual < best.residual:
                best = point
        return best

    def _evaluate(self, u: Vector, mu: float, centre: Vector | float) -> Point:
        p = self.problem
        offset = mean(u)
        v, marginal = p.response(u - offset, 1.0 + offset)
        F = marginal - p.T
        F += mu * subtract_mean(u - centre)
        self.met_cap = self.met_cap or p.exceeds_cap(v)
        return Point(u, v, marginal, F)

    def gram(self, v: Vector, mu: float) -> Vector:
        """Return G = Σ w_i s_i s_iᵀ over free clients, in single precision if μ is far above its error."""
        p, active = self.problem, self.problem.is_free(v)
        precision: Precision = np.float32 if mu > _DIRECT_MU else np.float64
        if self._active is not None and self._precision is precision:
            changed_rows = np.flatnonzero(active != self._active)
            if changed_rows.size * 2 < active.size and self._updates < 50:
                if changed_rows.size:
                    change = np.where(active[changed_rows], 1.0, -1.0) * p.w[changed_rows]
                    self._gram = self._gram + p.gram(change, changed_rows, precision)
                    self._updates += 1
                self._active = active
                return self._gram
        rows = np.flatnonzero(active)
        if rows.size < active.size * (0.9 if p.has_contiguous_rows else 0.25):
            self._gram = p.gram(p.w[rows], rows, precision)
        else:
            self._gram = p.gram(p.w * active, precision=precision)
        self._active, self._updates, self._precision = active, 0, precision
        return self._gram

    def solve_linear(self, G: Vector, mu: float, rhs: Vector) -> Vector:
        """Solve (G + μP) x = rhs.

        For a μ far from 1, or few active clients, the system is first written in another basis. P vanishes on
        the constant vector, where only G counts, so that vector replaces the target's most common label in the
        basis. Scaling the diagonal to 1 is then enough for any μ.
        """
        j, K = self._common_label, rhs.size
        H = G - mu / K
        H.flat[:: K + 1] += mu
        if _DIRECT_MU < mu < 1.0 and G.sum() > _DIRECT_MU:
            return _solve_any(H, rhs)
        ones = G.sum(axis=1)
        H[j] = H[:, j] = ones
        H[j, j] = max(float(ones.sum()), EPS)
        b = rhs.copy()
        b[j] = rhs.sum()
        scale = 1.0 / np.sqrt(np.maximum(H.flat[:: K + 1], EPS * EPS))
        H *= scale
        H *= scale[:, None]
        b *= scale
        x = _solve_any(H, b)
        x *= scale
        constant = x[j]
        x[j] = 0.0
        return np.asarray(x + constant)

    def ess_slope(self, mu: float, point: Point) -> float:
        """Return −½ dq/dμ for q = Σ α_i²/w_i at an optimum: uᵀPu − μ (Pu)ᵀ(G + μP)⁻¹Pu."""
        pu = subtract_mean(point.u)
        return float(pu @ pu) - mu * float(pu @ self.solve_linear(self.gram(point.v, mu), mu, pu))

    def _direction(self, point: Point, mu: float) -> Vector:
        """Return the Newton step, or one that frees clients where all are at 0 or at the cap and G is 0."""
        p = self.problem
        if not self.met_cap or p.w @ p.is_free(point.v) > 0:
            return self.solve_linear(self.gram(point.v, mu), mu, -point.F)
        total = float(point.F.sum())
        reach = -point.v[point.v <= 0] if total < 0 else p.above_cap(point.v)
        return -subtract_mean(point.F) / mu - math.copysign(2.0 * float(reach.max(initial=1.0)), total)

    def _search(self, point: Point, d: Vector, mu: float, centre: Vector | float) -> Point:
        """Take the full step if it helps, otherwise go to the minimum along ``d``."""
        full_step = self._evaluate(point.u + d, mu, centre)
        if full_step.residual < 0.5 * point.residual or d @ full_step.F <= 0:
            return full_step
        curvature = mu * float(np.square(subtract_mean(d)).sum())
        t = line_minimum(self.problem, point.v, full_step.v - point.v, float(d @ point.F), curvature)
        return self._evaluate(point.u + t * d, mu, centre)


def _solve_any(H: Vector, b: Vector) -> Vector:
    """Solve H·x = b, by least squares if clients that hardly differ have made H singular."""
    # Not scipy's Cholesky: its BLAS has its own threads, which would wait for numpy's at every step.
    try:
        x = np.linalg.solve(H, b)
    except np.linalg.LinAlgError:
        x = np.linalg.lstsq(H, b)[0]
    return np.asarray(x, dtype=np.float64)


def line_minimum(
    problem: Problem, v: Vector, dv: Vector, slope: float, curvature: float, tolerance: float = 1e-12
) -> float:
    """Return the t in (0, 1) where the derivative along a step is 0; it needs no product with S.

    The derivative, slope + t·curvature + Σ w_i dv_i [clip(v_i + t dv_i) − clip(v_i)], is piecewise linear and
    increasing; ``slope`` < 0 is its value at t = 0, ``curvature`` that of the regulariser; ``tolerance`` is relative.
    """
    weighted_dv = problem.w * dv
    clipped = problem.clip(v)
    low, high, t = 0.0, 1.0, 0.5
    for _ in range(60):
        v_t = v + t * dv
        derivative = slope + t * curvature + float(weighted_dv @ (problem.clip(v_t) - clipped))
        low, high = (t, high) if derivative < 0 else (low, t)
        change = curvature + float((weighted_dv * dv) @ problem.is_free(v_t))
        step = t - derivative / change if change > 0 else low
        next_t = step if low < step < high else 0.5 * (low + high)
        if abs(next_t - t) <= tolerance * high:
            break
        t = next_t
    return t
