"""The projection of T onto the mixes of clients whose weights are at most a cap, with the proof of coverage.

At the projection p*, with r = T − p* and the price s_i·r of a client, there is a level: clients with a higher price
have the cap, clients with a lower price 0, and only those at the level have a weight in between. An active-set method
finds it. Minimise ‖r‖ over the weights of the free clients; where one would leave [0, cap], fix it at that bound;
otherwise free the clients whose prices contradict their bounds most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpals.errors import CertificateError
from fedpals.labels import Vector
from fedpals.weights.double_double import DoubleDouble, exact_scores
from fedpals.weights.problem import EPS, Problem
from fedpals.weights.projection import Projection

_MAX_STEPS = 5000
_RANK_TOLERANCE = 1e-12
"""Singular value of the free clients' differences, whose size is 1, below which it is rounding."""
_COVERED_ROUNDINGS = 32
"""Distance of T from the mixes, in roundings of a score, up to which it is covered."""
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class _Step:
    """Weights that minimise ‖r‖ over their free clients."""

    alpha: Vector
    free: npt.NDArray[np.bool_]
    r: Vector
    """T − Sᵀα, orthogonal to the differences of free clients."""
    error: float
    """Bound on how far Sᵀα is from the minimum over the free clients."""


def project_below_cap(problem: Problem, alpha: Vector) -> Projection:
    """Project T from any ``alpha`` in the simplex and not above the cap; the closer, the fewer the steps."""
    p, cap = problem, problem.cap
    assert cap is not None
    has_samples = p.w > 0
    step = _minimise(p, alpha, (alpha > 0) & (alpha < cap))
    visited = set()
    for _ in range(_MAX_STEPS):
        size = float(np.abs(step.r).max())
        if size <= 4 * EPS:
            break
        price = p.scores(step.r)
        slack = 8 * p.score_rounding * size
        rising = np.where(has_samples & (step.alpha < cap), price, -np.inf)
        falling = np.where(step.alpha > 0, price, np.inf)
        best, worst = int(np.argmax(rising)), int(np.argmin(falling))
        state = (step.free.tobytes(), (step.alpha >= cap).tobytes())
        if rising[best] - falling[worst] <= slack or state in visited:
            break
        visited.add(state)
        free = step.free.copy()
        free[[best, worst]] = True
        step = _minimise(p, step.alpha, free)
    else:
        raise CertificateError(f"projecting the target with a cap took more than {_MAX_STEPS} steps")
    return _decide(p, step)


def _minimise(p: Problem, alpha: Vector, free: npt.NDArray[np.bool_]) -> _Step:
    """Minimise ‖T − Sᵀα‖ over the weights of ``free`` clients, or of fewer where bounds are met; Σα is kept."""
    cap = p.cap
    assert cap is not None
    alpha, free = alpha.copy(), free.copy()
    while True:
        rows = np.flatnonzero(free)
        r = p.T - p.mix(alpha)
        if rows.size < 2:
            return _Step(alpha, free, r, 0.0)
        S = p.marginals(rows)
        basis, lengths, directions = np.linalg.svd((S[1:] - S[0]).T, full_matrices=False)
        kept = lengths > _RANK_TOLERANCE
        basis, lengths = basis[:, kept], lengths[kept]
        along = basis.T @ r
        shares = (along / lengths) @ directions[kept]
        change = np.concatenate([[-shares.sum()], shares])
        limits = np.where(change > 0, cap - alpha[rows], alpha[rows])
        ratios = limits / np.maximum(np.abs(change), _TINY)
        t = float(ratios.min())
        if t >= 1.0:
            alpha[rows] += change
            r -= basis @ along
            r -= basis @ (basis.T @ r)
            edge_error = np.abs((S[1:] - S[0]) @ r) + p.score_rounding * float(np.abs(r).max())
            error = float(np.linalg.norm(edge_error)) / float(lengths.min()) if lengths.size else 0.0
            return _Step(np.clip(alpha, 0.0, cap), free, r, error)
        alpha[rows] += t * change
        stopped = ratios <= t
        alpha[rows[stopped]] = np.where(change[stopped] > 0, cap, 0.0)
        free[rows[stopped]] = False


def _decide(p: Problem, step: _Step) -> Projection:
    """Return the projection with the proof of either verdict."""
    r, size = step.r, float(np.abs(step.r).max())
    alpha, noise = step.alpha, _COVERED_ROUNDINGS * p.score_rounding
    if size <= 4 * EPS:
        return Projection(alpha, p.T, 0.0, covered=True, margin=0.0, error=0.0)
    mix = p.mix(alpha)
    point = np.where((mix > 0) & (r < p.T), p.T - r, mix)
    margin = _margin(p, r)
    if size <= noise:
        error = step.error + (0.0 if margin > 0 else float(np.linalg.norm(r)))
        return Projection(alpha, point, 0.0, covered=True, margin=0.0, error=error)
    if not margin > 0:
        raise CertificateError(
            f"whether the target is covered below max_weight cannot be decided in double precision: it is {size:.1e} "
            "from the nearest mix, too far for rounding and too close for a proof"
        )
    return Projection(alpha, point, float(r @ r), covered=False, margin=margin, error=step.error)


def _margin(p: Problem, r: Vector) -> float:
    """Return by how much every mix below the cap stays short of T in the direction r, less rounding.

    The mix furthest in that direction gives the cap to the clients with the highest prices, and the rest to the next.
    """
    assert p.cap is not None
    scores, score_error = exact_scores(p, DoubleDouble.of(r))
    prices = np.sort(scores[p.w > 0])[::-1]
    shares = np.clip(1.0 - p.cap * np.arange(prices.size), 0.0, p.cap)
    terms = r * p.T
    reach = math.fsum(terms.tolist())
    rounding = score_error + EPS * (4 * float(np.abs(scores).max()) + float(np.abs(terms).sum()))
    rounding += abs(reach) * (EPS + abs(math.fsum(p.T.tolist()) - 1.0))
    rounding += abs(math.fsum(shares.tolist()) - 1.0) * float(np.abs(prices).max())
    return reach - math.fsum((shares * prices).tolist()) - rounding
