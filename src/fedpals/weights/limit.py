"""λ → 0⁺: among all projections of T, the one with the largest effective sample size.

The limit is unique, whereas a solver given λ = 0 returns just any projection. Two stages: project
T to p*; then, over the clients that can take part in a projection,

    min Σ α_i²/w_i   subject to   Sᵀα = p*,  α ≥ 0

by the method of multipliers around the Newton iteration of `fedpals.weights.dual`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector
from fedpals.weights.certificate import Certificate
from fedpals.weights.dual import Newton, Point
from fedpals.weights.problem import EPS, Problem
from fedpals.weights.projection import Projection

_MULTIPLIER_STEPS = 60


def limit(problem: Problem, projection: Projection) -> tuple[Vector, Certificate]:
    """Return α at λ → 0⁺ and its certificate, whose objective is Σ α_i²/w_i."""
    rows = _face(problem, projection)
    weights = problem.w[rows]
    share = float(weights.sum())
    face = Problem(problem.S[rows], weights / share, projection.point, problem.N)
    newton = Newton(face)
    point = _multipliers(newton)
    on_face = face.w * np.maximum(point.v, 0.0)
    on_face /= on_face.sum()
    alpha = np.zeros_like(problem.w)
    alpha[rows] = on_face
    return alpha, _certify(newton, point, on_face, projection.error)


def _face(p: Problem, projection: Projection) -> npt.NDArray[np.intp]:
    """Clients that may have weight in a projection of T.

    Those furthest in the direction r = T − p* (all, where T is covered), without those that have a
    label p* lacks: no other client could make up for it.
    """
    possible = p.w > 0
    if not projection.covered:
        r = p.T - projection.point
        price = np.where(possible, p.scores(r), -np.inf)
        possible = price >= price.max() - 1e-12 * float(np.abs(r).max())
    lacking = (projection.point <= 0).astype(np.float64)
    if lacking.any():
        possible &= p.scores(lacking) == 0
    rows = np.flatnonzero(possible)
    return rows if rows.size else np.flatnonzero(projection.alpha)


def _multipliers(newton: Newton) -> Point:
    """Solve Sᵀα = p*: each solve moves the regulariser's centre to the last answer, so its pull fades."""
    p = newton.problem
    mu = 1e-2
    best = newton.descend(mu, np.zeros_like(p.T))
    missed = _missed(p, best)
    centre = best.u
    stalls = 0
    for _ in range(_MULTIPLIER_STEPS):
        if missed <= 2 * EPS or stalls == 3:
            break
        mu = max(1e-8, 0.03 * mu)
        point = newton.descend(mu, centre, centre)
        centre = point.u
        now = _missed(p, point)
        stalls = 0 if now < 0.5 * missed else stalls + 1
        if now < missed:
            best, missed = point, now
    return best


def _missed(p: Problem, point: Point) -> float:
    """Largest entry of Sᵀα − p*."""
    return float(np.abs(p.mix(p.w * np.maximum(point.v, 0.0)) - p.T).max())


def _certify(newton: Newton, point: Point, alpha: Vector, drift: float) -> Certificate:
    """Bound the gap by 2 z·(Sᵀα − p*), and the error in α by the residual in the metric of G⁺."""
    p = newton.problem
    residual = np.abs(p.mix(alpha) - p.T) + p.mix_rounding * p.T
    size = float(np.linalg.norm(residual)) + drift
    q = float(alpha @ p.per_sample(alpha))
    z = 1.0 + point.u
    slip = p.score_rounding * float(np.abs(z).max())
    gap = 2.0 * float(np.linalg.norm(z)) * size + slip * slip
    eigenvalues = np.linalg.eigvalsh(newton.gram(point.v))
    kept = eigenvalues[eigenvalues > 1e-13 * eigenvalues[-1]]
    error = size / math.sqrt(float(kept[0])) + slip
    return Certificate(gap, gap / q, error)
