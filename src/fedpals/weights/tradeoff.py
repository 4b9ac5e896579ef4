"""λ by its effect: find the λ whose effective sample size is a given fraction of N.

With q = Σ α_i²/w_i = 1/ESS, the function 1/√(q − 1) of μ is nearly a straight line, so Newton's
method on it needs only a few solves; bisection would need dozens. The slope comes from the solve itself:

    dq/dμ = −2 [ uᵀPu − μ (Pu)ᵀ H⁻¹ Pu ],     H = G + μP.

With a cap, q is no less than that of λ = ∞ with the cap, which replaces 1 in q − 1; the slope is the same, with G over
the free clients only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedpals.errors import CertificateError
from fedpals.labels import Vector
from fedpals.weights.active_set import ActiveSet
from fedpals.weights.dual import Newton, Point
from fedpals.weights.problem import EPS, Problem
from fedpals.weights.refine import refine

_SEARCH_TOLERANCE = 1e-9
"""Relative error of the ESS, or of 1 − ESS, at which the search ends."""
_ROUNDING_TOLERANCE = 1e-11
"""Error of α, from rounding in the dual, that the search allows."""
_ESS_TOLERANCE = 1e-3
"""Largest relative error of the ESS that is returned; near λ = 0 the ESS is not more accurate than this."""
ROUNDING = 1e-14
"""Relative difference of two ESS that is rounding."""
_MAX_SOLVES = 100
_NEAR_ZERO_MU = 1e-5
"""μ below which the search first checks that the requested ESS can be reached at all."""


def excess(problem: Problem, point: Point) -> float:
    """Return q less that of λ = ∞, without cancellation: q − 1 = Σ w_i (v_i₊ − 1)² without a cap.

    With one, the weights at λ = ∞ are α'_i = w_i x'_i with x'_i = min(t, cap/w_i), and the difference is

        Σ w_i (x_i − x'_i)² + 2 Σ w_i (cap/w_i − x_i)(t − cap/w_i)₊
    """
    p, x = problem, problem.clip(point.v)
    if p.cap is None:
        return float(p.w @ np.square(x - 1.0))
    least, capped, missing = p.least_uneven
    excess = float(p.w @ np.square(x - least))
    if capped.size:
        excess += 2.0 * float(missing @ (p.w[capped] * p.below_cap(x[capped], capped)))
    return excess


def initial_mu(problem: Problem, ess: float) -> float:
    """Return the μ with ESS ``ess`` if no other weight came to 0 or the cap; 0 if T is the pooled marginal."""
    p = problem
    scores = p.scores(p.T - p.mix(p.fedavg))
    spread = _spread(scores, p.w)
    if p.cap is not None and p.fedavg is not p.w:  # near λ = ∞ only the clients below the cap can move
        free = p.w * (p.fedavg < p.cap)
        of_free = _spread(scores, free, float(free.sum()) or 1.0)
        if of_free > _ROUNDING_TOLERANCE * spread:  # unless they are alike: they move only if others leave the cap
            spread = of_free
    return spread / math.sqrt(1.0 / ess - 1.0 / p.highest_ess)


def _spread(scores: Vector, w: Vector, total: float = 1.0) -> float:
    """Return √(Σ w_i (s_i − s̄)²), with s̄ = Σ w_i s_i / total the mean of the scores."""
    return math.sqrt(float(w @ np.square(scores - w @ scores / total)))


def _solve(newton: Newton | ActiveSet, mu: float, start: Vector | None) -> Point:
    """Return the dual optimum for μ, with all its digits if float64 leaves α fewer than the search needs."""
    point = newton.solve(mu, start)
    if max(EPS * float(np.abs(point.u).max()), point.residual) > _ROUNDING_TOLERANCE:
        return refine(newton.problem, mu, point.u)
    return point


def mu_for_ess(
    newton: Newton | ActiveSet, ess: float, limit_ess: Callable[[], float], start: tuple[float, Vector] | None = None
) -> tuple[float, Point] | None:
    """Find the μ with ESS(μ) = ``ess``, less than that of μ = ∞; None if it is larger, or the same, for μ → 0⁺.

    Parameters
    ----------
    newton, ess
        The problem, and the requested fraction of N.
    limit_ess
        Returns the ESS at μ → 0⁺; called only if the search comes near 0.
    start
        A (μ, u) to start from, such as the previous value of a grid.
    """
    p = newton.problem
    mu, u = start or (initial_mu(p, ess), None)
    highest = p.highest_ess
    least_q = 1.0 / highest
    goal = 1.0 / math.sqrt(1.0 / ess - least_q)
    low, high, last = 0.0, math.inf, (0.0, 0.0, math.inf)
    point: Point | None = None
    reachable = False
    for _ in range(_MAX_SOLVES):
        if mu < _NEAR_ZERO_MU and not reachable:
            if ess <= limit_ess() * (1.0 + ROUNDING):
                return None
            reachable = True
        point = _solve(newton, mu, u if point is None else point.u)
        q1 = excess(p, point)
        if abs(1.0 / (least_q + q1) - ess) <= _SEARCH_TOLERANCE * min(ess, highest - ess) or high - low <= EPS * low:
            break
        value = 1.0 / math.sqrt(q1) if q1 > _ROUNDING_TOLERANCE**2 else math.inf
        low, high = (mu, high) if value < goal else (low, mu)
        last_mu, last_value, last_error = last
        error = abs(value - goal)
        if error > 0.1 * last_error and mu != last_mu:  # rounding has spoilt the slope: use the last two points
            slope = (value - last_value) / (mu - last_mu)
        else:
            slope = newton.ess_slope(mu, point) * value**3 if value < math.inf else 0.0
        step = mu + (goal - value) / slope if slope > 0 else low
        if not low < step < high:
            step = 0.1 * high if low == 0.0 else 10.0 * low if high == math.inf else math.sqrt(low * high)
        last = mu, value, error
        mu = step
    assert point is not None
    closest = 1.0 / (least_q + excess(p, point))
    if abs(closest - ess) > _ESS_TOLERANCE * ess:
        raise CertificateError(f"no lam was found whose ess is {ess:g}: the closest is {closest:g}; use that")
    return mu, point
