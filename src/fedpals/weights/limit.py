"""λ → 0⁺: among all projections of T, the one with the largest effective sample size.

The limit is unique, whereas a solver given λ = 0 returns just any projection. Two stages: project
T to p*; then, over the clients that can take part in a projection,

    min Σ α_i²/w_i   subject to   Sᵀα = p*,  α ≥ 0

by the method of multipliers: α^μ for a shifted target, the shift y chosen so that Sᵀα meets p*.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector
from fedpals.weights.certificate import GOOD, Certificate
from fedpals.weights.dual import Newton, centred
from fedpals.weights.problem import EPS, Problem
from fedpals.weights.projection import AFFORDABLE, Projection, least_squares

_FEW = 128
"""Up to so many clients the steps use least squares, which stands any conditioning; above, Newton."""
_STEPS = 80
_POLISHABLE = 4096
"""Largest support whose weights are corrected by one dense least-squares solve."""


def limit(problem: Problem, projection: Projection) -> tuple[Vector, Certificate]:
    """Return α at λ → 0⁺ and its certificate, whose objective is Σ α_i²/w_i."""
    rows = _face(problem, projection)
    face = Problem(problem.C[rows], problem.n[rows], projection.point)
    on_face, certificate = _on_face(face, _LeastSquaresStep if rows.size <= _FEW else _NewtonStep, projection.error)
    if certificate.relative_gap > GOOD and _FEW < rows.size <= AFFORDABLE:
        on_face, certificate = _on_face(face, _LeastSquaresStep, projection.error)
    alpha = np.zeros_like(problem.w)
    alpha[rows] = on_face
    return alpha, certificate


def _on_face(face: Problem, kind: type[_LeastSquaresStep | _NewtonStep], drift: float) -> tuple[Vector, Certificate]:
    """Return the weights of largest ESS with Sᵀα = p*, and their certificate given that p* may be off by ``drift``."""
    alpha, multiplier = _multipliers(face, kind(face))
    alpha = _polish(face, alpha)
    alpha /= alpha.sum()
    return alpha, _certify(face, alpha, multiplier, drift)


def _face(p: Problem, projection: Projection) -> npt.NDArray[np.intp]:
    """Clients that may have weight in a projection of T.

    Those furthest in the direction r = T − p* (all, where T is covered), without those that have a
    label p* lacks: no other client could make up for it. A client that may be furthest, given how well p* is
    known, is kept: if it is not, Sᵀα = p* gives it no weight, whereas one that is left out could not have any.
    """
    possible = p.w > 0
    if not projection.covered:
        r = p.T - projection.point
        price = np.where(possible, p.scores(r), -np.inf)
        rounding = 1e-12 * float(np.abs(r).max()) + 4 * p.mix_rounding * float(projection.point.max())
        noise = rounding + 2.0 * projection.error
        possible = price >= price.max() - noise
    lacking = (projection.point <= 0).astype(np.float64)
    if lacking.any():
        possible &= p.scores(lacking) == 0
    return np.flatnonzero(possible | (projection.alpha > 0))


class _LeastSquaresStep:
    """α^μ for the target p* + μy by least squares over all clients of the face."""

    least_mu = 1e-20

    def __init__(self, face: Problem) -> None:
        self.face = face

    def __call__(self, mu: float, y: Vector) -> Vector:
        return least_squares(replace(self.face, T=self.face.T + mu * y), slice(None), mu)


class _NewtonStep:
    """The same by Newton on the dual, each step from where the last one ended."""

    least_mu = 1e-12

    def __init__(self, face: Problem) -> None:
        self.newton = Newton(face)
        self.u = np.zeros_like(face.T)

    def __call__(self, mu: float, y: Vector) -> Vector:
        point = self.newton.descend(mu, self.u, y)
        self.u = point.u
        return self.newton.problem.w * np.maximum(point.v, 0.0)


def _multipliers(face: Problem, step: _LeastSquaresStep | _NewtonStep) -> tuple[Vector, Vector]:
    """Return (α, y): α^μ of the target p* + μy, with y such that Sᵀα = p* up to rounding."""
    mu, y = 1.0, np.zeros_like(face.T)
    best, missed, stalls = (face.w, y), math.inf, 0
    for _ in range(_STEPS):
        mu = max(step.least_mu, 0.02 * mu)
        alpha = step(mu, y)
        residual = face.T - face.mix(alpha)
        y = centred(y + residual / mu)
        now = float(np.abs(residual).max())
        stalls = stalls + 1 if now > 0.5 * missed else 0
        if now < missed:
            best, missed = (alpha, y), now
        if missed <= 2 * EPS or stalls >= (2 if missed < 1e-10 else 10):
            break
    return best


def _polish(p: Problem, alpha: Vector) -> Vector:
    """Correct α on its support by the least change, in the metric of 1/w, that meets Sᵀα = p*."""
    support = np.flatnonzero(alpha)
    if support.size > _POLISHABLE:
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


def _certify(p: Problem, alpha: Vector, y: Vector, drift: float) -> Certificate:
    """Bound the gap by 2 z·(Sᵀα − p*), and the error in α by that residual in the metric of G⁺.

    Each step solves its shifted problem exactly, so that α is the optimum for its own mix Sᵀα: only how far that
    is from p* can make a difference.
    """
    residual = np.abs(p.mix(alpha) - p.T) + p.mix_rounding * p.T
    size = float(np.linalg.norm(residual)) + drift
    ratio = p.per_sample(alpha)
    c = float(alpha @ (ratio - p.scores(y)))
    gap = 2.0 * float(np.linalg.norm(y) + abs(c)) * size
    eigenvalues = np.linalg.eigvalsh(p.gram(p.w * (alpha > 0)))
    kept = eigenvalues[eigenvalues > 1e-13 * eigenvalues[-1]]
    error = size / math.sqrt(float(kept[0])) + p.score_rounding * float(np.abs(y).max()) + p.mix_rounding
    return Certificate(gap, gap / float(alpha @ ratio), error)
