"""λ → 0⁺: among all projections of T, the one with the largest effective sample size.

The limit is unique, whereas a solver with λ = 0 returns any one of the projections. There are two stages:
project T to p*; then, over the clients that can have weight in a projection,

    min Σ α_i²/w_i   subject to   Sᵀα = p*,  α ≥ 0

by the method of multipliers: compute α^μ for a shifted target, with the shift y chosen so that Sᵀα = p*.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector
from fedpals.weights.certificate import FALLBACK_GAP, Certificate
from fedpals.weights.dual import Newton, subtract_mean
from fedpals.weights.problem import EPS, Problem
from fedpals.weights.projection import MAX_LEAST_SQUARES_CLIENTS, Projection, least_squares

_LEAST_SQUARES_CLIENTS = 128
"""Number of clients up to which steps use least squares, which works for any conditioning; above it, Newton."""
_MAX_STEPS = 80
_MAX_POLISHED_CLIENTS = 4096
"""Largest support that is corrected by one dense least-squares solve."""


def limit(problem: Problem, projection: Projection) -> tuple[Vector, Certificate]:
    """Return α at λ → 0⁺ and its certificate, whose objective is Σ α_i²/w_i."""
    rows = _face_rows(problem, projection)
    face = Problem(problem.C[rows], problem.n[rows], projection.point)
    face_alpha, certificate = _largest_ess(
        face, _LeastSquaresStep if rows.size <= _LEAST_SQUARES_CLIENTS else _NewtonStep, projection.error
    )
    if certificate.relative_gap > FALLBACK_GAP and _LEAST_SQUARES_CLIENTS < rows.size <= MAX_LEAST_SQUARES_CLIENTS:
        face_alpha, certificate = _largest_ess(face, _LeastSquaresStep, projection.error)
    alpha = np.zeros_like(problem.w)
    alpha[rows] = face_alpha
    return alpha, certificate


def _largest_ess(
    face: Problem, step_type: type[_LeastSquaresStep | _NewtonStep], point_error: float
) -> tuple[Vector, Certificate]:
    """Return the weights of largest ESS with Sᵀα = p*, and a certificate that allows for ``point_error`` in p*."""
    alpha, multiplier = _method_of_multipliers(face, step_type(face))
    alpha = _polish(face, alpha)
    alpha /= alpha.sum()
    return alpha, _certify(face, alpha, multiplier, point_error)


def _face_rows(p: Problem, projection: Projection) -> npt.NDArray[np.intp]:
    """Return the clients that may have weight in a projection of T.

    They are the clients furthest in the direction r = T − p* (all clients if T is covered), without those that
    have a label absent from p*: no other client could compensate for it. In doubt, given the error of p*, a
    client is included: if it should not be, Sᵀα = p* gives it no weight anyway.
    """
    candidates = p.w > 0
    if not projection.covered:
        r = p.T - projection.point
        price = np.where(candidates, p.scores(r), -np.inf)
        rounding = 1e-12 * float(np.abs(r).max()) + 4 * p.mix_rounding * float(projection.point.max())
        noise = rounding + 2.0 * projection.error
        candidates = price >= price.max() - noise
    absent_labels = (projection.point <= 0).astype(np.float64)
    if absent_labels.any():
        candidates &= p.scores(absent_labels) == 0
    return np.flatnonzero(candidates | (projection.alpha > 0))


class _LeastSquaresStep:
    """Compute α^μ for the target p* + μy, by least squares over all clients of the face."""

    min_mu = 1e-20

    def __init__(self, face: Problem) -> None:
        self.face = face

    def __call__(self, mu: float, y: Vector) -> Vector:
        return least_squares(replace(self.face, T=self.face.T + mu * y), slice(None), mu)


class _NewtonStep:
    """Compute the same α^μ by Newton on the dual; each step starts where the previous one ended."""

    min_mu = 1e-12

    def __init__(self, face: Problem) -> None:
        self.newton = Newton(face)
        self.u = np.zeros_like(face.T)

    def __call__(self, mu: float, y: Vector) -> Vector:
        point = self.newton.descend(mu, self.u, y)
        self.u = point.u
        return self.newton.problem.w * np.maximum(point.v, 0.0)


def _method_of_multipliers(face: Problem, step: _LeastSquaresStep | _NewtonStep) -> tuple[Vector, Vector]:
    """Return (α, y): α^μ of the target p* + μy, with y such that Sᵀα = p* up to rounding."""
    mu, y = 1.0, np.zeros_like(face.T)
    best, best_size, stalls = (face.w, y), math.inf, 0
    for _ in range(_MAX_STEPS):
        mu = max(step.min_mu, 0.02 * mu)
        alpha = step(mu, y)
        residual = face.T - face.mix(alpha)
        y = subtract_mean(y + residual / mu)
        size = float(np.abs(residual).max())
        stalls = stalls + 1 if size > 0.5 * best_size else 0
        if size < best_size:
            best, best_size = (alpha, y), size
        if best_size <= 2 * EPS or stalls >= (2 if best_size < 1e-10 else 10):
            break
    return best


def _polish(p: Problem, alpha: Vector) -> Vector:
    """Correct α on its support by the smallest change, in the metric of 1/w, that gives Sᵀα = p*."""
    support = np.flatnonzero(alpha)
    if support.size > _MAX_POLISHED_CLIENTS:
        return alpha
    root = np.sqrt(p.w[support])
    B = p.marginals(support) * root[:, None]
    x = alpha[support] / root
    x += np.linalg.lstsq(B.T, p.T - x @ B, rcond=1e-13)[0]
    if x.min() < 0:
        return alpha
    polished = np.zeros_like(alpha)
    polished[support] = x * root
    return polished


def _certify(p: Problem, alpha: Vector, y: Vector, point_error: float) -> Certificate:
    """Bound the gap by 2 z·(Sᵀα − p*), and the error in α by that residual in the metric of G⁺.

    Each step solves its shifted problem exactly, so α is the optimum for its own mix Sᵀα. Only the difference
    between Sᵀα and p* matters.
    """
    residual = np.abs(p.mix(alpha) - p.T) + p.mix_rounding * p.T
    size = float(np.linalg.norm(residual)) + point_error
    ratio = p.per_sample(alpha)
    c = float(alpha @ (ratio - p.scores(y)))
    gap = 2.0 * float(np.linalg.norm(y) + abs(c)) * size
    eigenvalues = np.linalg.eigvalsh(p.gram(p.w * (alpha > 0)))
    positive = eigenvalues[eigenvalues > 1e-13 * eigenvalues[-1]]
    error = size / math.sqrt(float(positive[0])) + p.score_rounding * float(np.abs(y).max()) + p.mix_rounding
    return Certificate(gap, gap / float(alpha @ ratio), error)
