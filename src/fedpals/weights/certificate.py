"""Certificates: the proof of optimality that comes with every answer.

For λ > 0, any y ∈ R^K and c ∈ R bound the optimum from below. With v = Sy + c and r = T − Sᵀα,

    f(α) − min f  ≤  gap = ‖r − μy‖² + μ Σ [ (α_i − w_i v_i₊)²/w_i + 2 α_i v_i₋ ]

a sum of non-negative terms, zero at the optimum where y = r/μ. Because f is strongly convex,
Σ|α_i − α*_i| ≤ √(gap/μ). All terms are enlarged by the largest possible rounding error, so the bound
holds for the floating-point numbers themselves. α stands for α/Σα, which differs from α by one rounding.

With a cap, α_i ≤ cap, a client whose score is above cap/w_i adds 2 (cap − α_i)(v_i − cap/w_i)₊ to its term, and v_i₊ is
min(v_i₊, cap/w_i) there. Proof of both: ‖r‖² ≥ 2μ y·r − μ²‖y‖², and Σα = 1, give

    f(α) ≥ 2μ (y·T + c) − μ²‖y‖² + μ Σ g_i(α_i),      g_i(a) = a²/w_i − 2 a v_i,

for every α in the simplex. So the minimum of f is no less than the right side with min g_i over 0 ≤ a ≤ cap in place of
g_i(α_i), which is at a_i = w_i x_i for x_i = v_i clipped to [0, cap/w_i]. f(α) exceeds that bound by
‖r − μy‖² + μ Σ [g_i(α_i) − g_i(a_i)], and

    g_i(α_i) − g_i(a_i) = (α_i − a_i)²/w_i + 2 (α_i − a_i)(x_i − v_i),

where the last product is α_i v_i₋ below 0, (cap − α_i)(v_i − cap/w_i) above the cap, and 0 in between. α stands for
the weights whose sum is exactly 1 because those below the cap are scaled.

For λ → 0⁺ the objective is q = Σ α_i²/w_i subject to Sᵀα = p*. With v = Sz for any z ∈ R^K,

    q(α) − min q  ≤  gap = Σ [ (α_i − w_i v_i₊)²/w_i + 2 α_i v_i₋ ] + 2 z·(Sᵀα − p*)

The last term may be negative, where weights that miss p* have a smaller q than any that reach it. So it counts
with its absolute value. The gap also has what it costs to make up for the miss, which is large if clients hardly
differ, and Sᵀα may differ from p* by rounding only. Otherwise weights that give too much to a label with 10⁻¹⁸ of the
target would pass for its projection, with an ESS that no weights reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedpals.errors import CertificateError
from fedpals.labels import Vector
from fedpals.weights.dual import Point, mean, subtract_mean
from fedpals.weights.problem import EPS, Problem

FALLBACK_GAP = 1e-9
"""Relative gap above which another solver is tried."""
_MAX_GAP = 1e-6
"""Largest relative gap an answer may have. It is usually below 1e-20; only a λ near 0, or clients that differ
in the ninth digit, come close."""
_RANK_TOLERANCE = 1e-13
"""Singular value, as a fraction of the largest, below which it is rounding."""
_CLEAR_EIGENVALUE = 1e-10
"""Eigenvalue of a Gram matrix, as a fraction of the largest, above which it is certainly not rounding."""
_MANY_ENTRIES = 1 << 22
"""Entries of the support's marginals beyond which a Gram matrix has to do for their singular values."""


@dataclass(frozen=True)
class Certificate:
    """Upper bounds on how far an answer is from the optimum."""

    gap: float
    """Bound on objective(α) − minimum."""
    relative_gap: float
    """The gap as a fraction of the objective."""
    error: float
    """Bound on Σ|α_i − α*_i|, the total weight that may be on the wrong client."""

    def checked(self) -> Certificate:
        """Return the certificate itself; raise an error if it does not prove the answer."""
        if not self.relative_gap <= _MAX_GAP:
            raise CertificateError(
                f"the weights could not be proven optimal (relative gap {self.relative_gap:.1e}): some clients have "
                "nearly the same labels, too similar for a lam this small; use a larger lam or ess, or merge them"
            )
        return self


EXACT_CERTIFICATE = Certificate(0.0, 0.0, 0.0)
"""Certificate of weights that are known in closed form."""


def certify_primal(problem: Problem, alpha: Vector, mu: float, marginal: Vector | None = None) -> Certificate:
    """Certify any ``alpha`` for μ > 0 with the dual point that follows from α itself; ``marginal`` is Sᵀα, if known.

    That point is y = r/μ, with the c for which α_i = w_i v_i holds on average over α, or its part below the cap.
    """
    p = problem
    x = p.per_sample(alpha)
    r = p.T - (p.mix_samples(x) if marginal is None else marginal)
    v = p.scores(r)
    v /= mu
    squared_distance, q = float(r.dot(r)), float(alpha.dot(x))
    below = None if p.cap is None else _BelowCap.of(alpha, x, p.cap)
    c = q - float(alpha.dot(v)) if below is None else below.offset(alpha, x, v)
    v += c
    score_error = p.score_rounding * (abs(c) + math.sqrt(squared_distance) / mu)
    # Of r − μy the rounding of Sᵀα and T is left, which are no longer than 1.
    gap = mu * _mismatch(p, alpha, x, v, score_error, q, below) + (2.0 * p.mix_rounding) ** 2
    return Certificate(gap, gap / (squared_distance + mu * q), math.sqrt(gap / mu) + p.mix_rounding)


def certify_dual(problem: Problem, alpha: Vector, mu: float, point: Point, marginal: Vector) -> Certificate:
    """Certify ``alpha`` for μ > 0 with the dual ``point`` that it comes from; ``marginal`` is Sᵀα."""
    p = problem
    y, c = subtract_mean(point.u), 1.0 + mean(point.u)
    x = p.per_sample(alpha)
    r, q = p.T - marginal, float(alpha @ x)
    score_error = point.score_error
    if score_error is None:
        score_error = p.score_rounding * (abs(c) + float(np.abs(y).max()))
    residual = np.abs(r - mu * y) + p.mix_rounding * (marginal + p.T)
    gap = float(residual @ residual) + mu * _mismatch(p, alpha, x, point.v, score_error, q)
    return Certificate(gap, gap / (float(r @ r) + mu * q), math.sqrt(gap / mu) + p.mix_rounding)


def certify_limit(problem: Problem, alpha: Vector, point: Point, marginal: Vector, target_error: float) -> Certificate:
    """Certify ``alpha`` for λ → 0⁺ on a face, with the dual ``point`` that it comes from; ``marginal`` is Sᵀα.

    The problem's T is p*, which is known up to ``target_error``. What α misses of it counts to first order in the
    bound on the error of α.
    """
    p, z = problem, 1.0 + point.u
    x = p.per_sample(alpha)
    q = float(alpha @ x)
    difference = marginal - p.T
    miss = np.abs(difference)
    rounding = np.minimum(1e-12, 2e-14 + 1e-4 * p.T)  # a label with a small share is met more closely
    if not (miss <= rounding + target_error).all():
        return Certificate(math.inf, math.inf, 2.0)
    # The rounding of Sᵀα, and of T, which stands for T/ΣT.
    miss += (p.mix_rounding + 4 * EPS) * p.T + target_error
    score_error = p.score_rounding * float(np.abs(z).max()) if point.score_error is None else point.score_error
    mismatch = _mismatch(p, alpha, x, point.v, score_error, q)
    movable = alpha > 0
    if p.cap is not None and (movable & (alpha < p.cap)).any():  # else all that have weight have the cap
        movable &= alpha < p.cap
    correction, smallest = _correction(p, movable, difference)
    gap = mismatch + 2.0 * float(np.abs(z) @ miss) + correction**2
    error = math.sqrt(mismatch) + float(np.linalg.norm(miss)) / smallest
    return Certificate(gap, gap / q, min(2.0, error + p.mix_rounding))


class _BelowCap(NamedTuple):
    """The part of the weights that belongs to clients below the cap."""

    alpha: Vector
    """The weights, 0 for a client at the cap."""
    share: float
    """Their sum."""
    q: float
    """Their Σ α_i²/w_i."""

    @classmethod
    def of(cls, alpha: Vector, x: Vector, cap: float) -> _BelowCap:
        below = alpha * (alpha < cap)
        return cls(below, float(np.add.reduce(below)), float(below.dot(x)))

    def offset(self, alpha: Vector, x: Vector, v: Vector) -> float:
        """Return the c with x = v + c on average over these clients; without any, the least for those at the cap."""
        if self.share > 0:
            return (self.q - float(self.alpha.dot(v))) / self.share
        return float((x - v)[alpha > 0].max())


def _mismatch(
    p: Problem, alpha: Vector, x: Vector, v: Vector, score_error: float, q: float, below: _BelowCap | None = None
) -> float:
    """Bound the sum over clients in the gap from above, for x = α/w, q = Σ α_i²/w_i and scores v.

    Each v_i has an error of up to ``score_error`` and a rounding. The sum is Σ w_i f(v_i) with a function √f that
    changes no faster than v, and Σw = 1: so the square root of the sum changes by no more than these errors.
    """
    rounding, clipped, size = p.mix_rounding, p.clip(v), math.sqrt(q)
    deviation = clipped - x
    if p.cap is None:
        outside = float(alpha.dot(clipped - v))
    elif abs(float(np.add.reduce(alpha)) - 1.0) > rounding:
        return math.inf
    else:
        beyond = v - clipped  # negative below 0, positive above the cap
        outside = float((p.cap * (beyond > 0) - alpha).dot(beyond))
        # What the sum lacks of 1 is made up for by the clients below the cap, which may have little weight themselves.
        below = below or _BelowCap.of(alpha, x, p.cap)
        if below.share > 0:
            size += math.sqrt(below.q) / below.share
    computed = float(p.w.dot(deviation * deviation)) + 2.0 * outside
    return ((1.0 + rounding) * math.sqrt(computed) + rounding * size + score_error) ** 2


def _correction(p: Problem, support: npt.NDArray[np.bool_], difference: Vector) -> tuple[float, float]:
    """Return how far α has to move over its support so that Sᵀα changes by ``difference``, and a singular value.

    The distance is √Σ δ_i²/w_i for the shortest change δ of α. The singular value is the smallest, but for those that
    are rounding, of diag(√w)·S over the support: no change is longer than that of Sᵀα divided by it.
    """
    rows = np.flatnonzero(support)
    entries = rows.size * p.T.size
    if rows.size <= p.T.size:
        B = p.marginals(rows) * np.sqrt(p.w[rows])[:, None]
        eigenvalues, empty_labels = np.linalg.eigvalsh(B @ B.T), 0
    else:
        eigenvalues = np.linalg.eigvalsh(p.gram(p.w * support))
        empty_labels = int((p.mix(p.w * support) == 0).sum())
    unclear = int((eigenvalues < _CLEAR_EIGENVALUE * eigenvalues[-1]).sum()) > empty_labels
    if not unclear or entries > _MANY_ENTRIES:
        smallest = math.sqrt(float(eigenvalues[eigenvalues > _RANK_TOLERANCE * eigenvalues[-1]].min()))
        return float(np.linalg.norm(difference)) / smallest, smallest
    _, values, directions = np.linalg.svd(p.marginals(rows) * np.sqrt(p.w[rows])[:, None], full_matrices=False)
    kept = values > _RANK_TOLERANCE * values[0]
    return float(np.linalg.norm((directions[kept] @ difference) / values[kept])), float(values[kept].min())
