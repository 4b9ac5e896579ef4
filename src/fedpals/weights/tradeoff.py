"""λ by its effect: the λ whose effective sample size is a wanted fraction of N.

With q = Σ α_i²/w_i = 1/ESS, the function 1/√(q − 1) of μ is nearly a straight line, so Newton's
method on it needs few solves where bisection needs dozens. Its slope comes from the solve itself:

    dq/dμ = −2 [ uᵀPu − μ (Pu)ᵀ H⁻¹ Pu ],     H = G + μP.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedpals.errors import CertificateError
from fedpals.labels import Vector
from fedpals.weights.dual import Newton, Point, centred
from fedpals.weights.problem import EPS, Problem

_TOLERANCE = 1e-9
_AMISS = 1e-3
"""An ESS that differs from the wanted one by such a share is another; next to λ = 0 it has no more digits than that."""
_MAX_SOLVES = 100
_NEAR_ZERO = 1e-4
"""Below this μ it is worth knowing whether the wanted ESS can be had at all."""


def excess(problem: Problem, point: Point) -> float:
    """Q − 1 = Σ w_i (v_i₊ − 1)², without cancellation near FedAvg."""
    return float(problem.w @ np.square(np.maximum(point.v, 0.0) - 1.0))


def initial_mu(problem: Problem, ess: float) -> float:
    """μ at which ESS is ``ess`` if no weight has to be cut off at 0; 0 where T is the pooled marginal."""
    p = problem
    gain = p.scores(p.T - p.mix(p.w))
    spread = math.sqrt(float(p.w @ np.square(gain - p.w @ gain)))
    return spread / math.sqrt(1.0 / ess - 1.0)


def mu_for_ess(
    newton: Newton, ess: float, lowest: Callable[[], float], start: tuple[float, Vector] | None = None
) -> tuple[float, Point] | None:
    """Find the μ with ESS(μ) = ``ess`` < 1; None where even μ → 0⁺ keeps more than that.

    Parameters
    ----------
    newton, ess
        The problem, and the wanted fraction of N.
    lowest
        Yields the ESS at μ → 0⁺; asked only if the search goes near 0.
    start
        A neighbouring (μ, u), such as the last value of a grid.
    """
    p = newton.problem
    mu, u = start or (initial_mu(p, ess), None)
    wanted = 1.0 / math.sqrt(1.0 / ess - 1.0)
    low, high, last = 0.0, math.inf, (0.0, 0.0, math.inf)
    point: Point | None = None
    reachable = False
    for _ in range(_MAX_SOLVES):
        if mu < _NEAR_ZERO and not reachable:
            if ess <= lowest():
                return None
            reachable = True
        point = newton.solve(mu, u if point is None else point.u)
        q1 = excess(p, point)
        if abs(1.0 / (1.0 + q1) - ess) <= _TOLERANCE * min(ess, 1.0 - ess) or high - low <= EPS * low:
            break
        value = 1.0 / math.sqrt(q1) if q1 > 0 else math.inf
        low, high = (mu, high) if value < wanted else (low, mu)
        last_mu, last_value, last_miss = last
        miss = abs(value - wanted)
        if miss > 0.1 * last_miss:  # a slope that rounding has spoilt: of the last two points then
            slope = (value - last_value) / (mu - last_mu)
        else:
            pu = centred(point.u)
            bend = float(pu @ pu) - mu * float(pu @ newton.inverse(newton.gram(point.v, mu), mu, pu))
            slope = bend * value**3 if q1 > 0 else 0.0
        step = mu + (wanted - value) / slope if slope > 0 else low
        if not low < step < high:
            step = 0.1 * high if low == 0.0 else 10.0 * low if high == math.inf else math.sqrt(low * high)
        last = mu, value, miss
        mu = step
    assert point is not None
    found = 1.0 / (1.0 + excess(p, point))
    if abs(found - ess) > _AMISS * ess:
        raise CertificateError(f"no lam was found whose ess is {ess:g}: next to it there is {found:g}; ask for that")
    return mu, point
