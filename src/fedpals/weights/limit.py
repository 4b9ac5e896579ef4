"""λ → 0⁺: among all projections of T, the one with the largest effective sample size.

The limit is unique, whereas a solver with λ = 0 returns any one of the projections. There are two stages:
project T to p*; then, over the clients that can have weight in a projection,

    min Σ α_i²/w_i   subject to   Sᵀα = p*,  α ≥ 0

by the method of multipliers: compute α^μ for a shifted target, with the shift y chosen so that Sᵀα = p*. Where
sizes have many magnitudes that leaves too large an error, and `refine` continues with more digits.

With a cap, clients that are further in the direction T − p* than any that is free have the cap in every projection.
The second stage is over the others, with what is left of p* and of the weight.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector
from fedpals.weights.certificate import EXACT_CERTIFICATE, FALLBACK_GAP, Certificate, certify_limit
from fedpals.weights.dual import Newton, Point, subtract_mean
from fedpals.weights.problem import EPS, Problem
from fedpals.weights.projection import Projection
from fedpals.weights.refine import refine

_INDEPENDENT = 1e-8
"""Distance of a client from the space of the others, as a fraction of its length, above which it is independent."""
_MIN_MU = 1e-12
_MAX_STEPS = 80


def limit(problem: Problem, projection: Projection) -> tuple[Vector, Certificate]:
    """Return α at λ → 0⁺ and its certificate, whose objective is Σ α_i²/w_i."""
    p, point, error = problem, projection.point, projection.error
    if not projection.covered or error < 0.5 * float(np.linalg.norm(p.T - point)):
        return _limit_on(p, _face_rows(p, projection), projection, point, error)
    has_samples = p.w > 0
    candidates = has_samples & _holds_none(p, p.T <= 0)
    answers = []
    if candidates.any():
        answers.append(_limit_on(p, np.flatnonzero(candidates), projection, p.T, 0.0))
    if not answers or answers[0][1].relative_gap > FALLBACK_GAP:
        # T may be on the boundary of the hull: to reach it, rounding takes a little of labels that T does not have.
        answers.append(_limit_on(p, np.flatnonzero(has_samples), projection, point, error))
    return min(answers, key=lambda answer: answer[1].relative_gap)


def covering_limit(problem: Problem) -> tuple[Vector, Certificate] | None:
    """Return the limit if T is covered, as far as that shows without a projection; else None.

    Weights that reproduce T prove that it is covered. With many labels they are found much faster than a projection.
    """
    p = problem
    rows = np.flatnonzero((p.w > 0) & _holds_none(p, p.T <= 0))
    if rows.size == 0:
        return None
    face = Problem(p.C[rows], p.n[rows], p.T, p.cap)
    if p.cap is not None and p.cap * rows.size < 1:
        return None
    face_alpha, certificate = _certified(face, _method_of_multipliers(face), 0.0)
    if not certificate.relative_gap <= FALLBACK_GAP:
        return None
    alpha = np.zeros_like(p.w)
    alpha[rows] = face_alpha
    return alpha, certificate


def _limit_on(
    p: Problem, rows: npt.NDArray[np.intp], projection: Projection, point: Vector, point_error: float
) -> tuple[Vector, Certificate]:
    """Return the limit over the clients ``rows``, for a p* that is ``point`` up to ``point_error``."""
    alpha = np.zeros_like(p.w)
    face = Problem(p.C[rows], p.n[rows], point, p.cap)
    alpha[rows], certificate = _largest_ess(face, projection.alpha[rows], point_error)
    return alpha, certificate


def limit_below_cap(problem: Problem, projection: Projection) -> tuple[Vector, Certificate]:
    """Return α at λ → 0⁺ with a cap, for a T that no weights below the cap reach, and its certificate."""
    p, cap = problem, problem.cap
    assert cap is not None
    r, found = p.T - projection.point, projection.alpha
    price = np.where(p.w > 0, p.scores(r), -np.inf)
    noise = 1e-12 * float(np.abs(r).max()) + 8 * EPS + 2.0 * projection.error
    # No client that could have more weight has a higher price than one that could have less.
    at_cap = price > float(price[found < cap].max(initial=-np.inf)) + noise
    candidates = (price >= float(price[found > 0].min()) - noise) & _holds_none(p, projection.point <= 0)
    rows = np.flatnonzero((candidates | (found > 0)) & ~at_cap)
    alpha = np.where(at_cap, cap, 0.0)
    rest = 1.0 - cap * int(np.count_nonzero(at_cap))
    if rows.size == 0 or rest <= EPS * rows.size:
        return alpha, EXACT_CERTIFICATE
    # The rest has the rounding of all that have the cap. One client, or so many that each needs the cap, has no choice.
    if rows.size == 1 or cap * rows.size <= rest + EPS * (4 + np.count_nonzero(at_cap)):
        alpha[rows] = min(rest / rows.size, cap)
        return alpha, EXACT_CERTIFICATE
    point = (projection.point - p.mix(alpha)) / rest
    face = Problem(p.C[rows], p.n[rows], point, cap / rest)
    face_alpha, on_face = _largest_ess(face, projection.alpha[rows] / rest, (projection.error + 4 * EPS) / rest)
    alpha[rows] = np.minimum(rest * face_alpha, cap)
    # The face has a part of the weight, and its own N.
    gap = on_face.gap * rest**2 * p.N / face.N
    return alpha, Certificate(gap, gap * p.ess(alpha), rest * on_face.error)


def _face_rows(p: Problem, projection: Projection) -> npt.NDArray[np.intp]:
    """Return the clients that may have weight in a projection of T from outside.

    They are the clients furthest in the direction r = T − p*, without those that have a label absent from p*: no
    other client could compensate for it. In doubt, given the error of p*, a client is included: if it should not be,
    Sᵀα = p* gives it no weight anyway.
    """
    r = p.T - projection.point
    price = np.where(p.w > 0, p.scores(r), -np.inf)
    noise = 1e-12 * float(np.abs(r).max()) + 8 * EPS + 2.0 * projection.error
    candidates = (price >= price.max() - noise) & _holds_none(p, projection.point <= 0)
    return np.flatnonzero(candidates | (projection.alpha > 0))


def _holds_none(p: Problem, labels: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which clients have no sample of any of ``labels``."""
    return p.scores(labels.astype(np.float64)) == 0 if labels.any() else np.ones(p.w.size, dtype=np.bool_)


def _largest_ess(face: Problem, alpha: Vector, target_error: float) -> tuple[Vector, Certificate]:
    """Return the weights of largest ESS with Sᵀα = p*, from any ``alpha`` of that kind, and their certificate."""
    u = _interpolating_dual(face, alpha)
    if u is None:
        point = _method_of_multipliers(face)
        alpha, certificate = _certified(face, point, target_error)
        if certificate.relative_gap <= FALLBACK_GAP:
            return alpha, certificate
        u = point.u
    return _certified(face, refine(face, 0.0, u), target_error)


def _interpolating_dual(face: Problem, alpha: Vector) -> Vector | None:
    """Return the dual point with S·z = α/w, which proves α if clients are independent; None if they are not."""
    from scipy.linalg import solve_triangular  # slow to load: only where it is used

    if face.w.size > face.T.size:
        return None
    Q, R = np.linalg.qr(face.marginals(slice(None)).T)
    diagonal = np.abs(np.diagonal(R))
    if diagonal.min() < _INDEPENDENT * diagonal.max():
        return None
    return np.asarray(Q @ solve_triangular(R, face.per_sample(alpha), trans="T", check_finite=False)) - 1.0


def _certified(face: Problem, point: Point, target_error: float) -> tuple[Vector, Certificate]:
    alpha, marginal = point.weights(face)
    return alpha, certify_limit(face, alpha, point, marginal, target_error)


def _method_of_multipliers(face: Problem) -> Point:
    """Return the dual optimum for the target p* + μy, with y such that Sᵀα = p*, as far as float64 allows."""
    newton = Newton(face)
    mu, y, u = 1.0, np.zeros_like(face.T), np.zeros_like(face.T)
    best, best_size, stalls = None, math.inf, 0
    for _ in range(_MAX_STEPS):
        mu = max(_MIN_MU, 0.02 * mu)
        point = newton.descend(mu, u, y)
        u = point.u
        residual = face.T - point.marginal
        y = subtract_mean(y + residual / mu)
        size = float(np.abs(residual).max())
        stalls = stalls + 1 if size > 0.5 * best_size else 0
        if best is None or size < best_size:
            best, best_size = point, size
        if best_size <= 2 * EPS or stalls >= (2 if best_size < 1e-10 else 10):
            break
    assert best is not None
    return best
