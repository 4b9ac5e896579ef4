"""Certificates: the proof of optimality that comes with every answer.

For λ > 0, any y ∈ R^K and c ∈ R bound the optimum from below. With v = Sy + c and r = T − Sᵀα,

    f(α) − min f  ≤  gap = ‖r − μy‖² + μ Σ [ (α_i − w_i v_i₊)²/w_i + 2 α_i v_i₋ ]

a sum of non-negative terms, zero at the optimum where y = r/μ. Because f is strongly convex,
Σ|α_i − α*_i| ≤ √(gap/μ). All terms are enlarged by the largest possible rounding error, so the bound
holds for the floating-point numbers themselves. α stands for α/Σα, which differs from α by one rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedpals.errors import CertificateError
from fedpals.labels import Vector
from fedpals.weights.problem import Problem

FALLBACK_GAP = 1e-9
"""Relative gap above which another solver is tried."""
_MAX_GAP = 1e-6
"""Largest relative gap an answer may have. It is usually below 1e-20; only a λ near 0, or clients that differ
in the ninth digit, come close."""


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
                f"the weights could not be proven optimal (relative gap {self.relative_gap:.1e}); "
                "use a larger lam or ess, or the limit lam=0"
            )
        return self


EXACT_CERTIFICATE = Certificate(0.0, 0.0, 0.0)
"""Certificate of weights that are known in closed form."""


def certify_primal(problem: Problem, alpha: Vector, mu: float) -> Certificate:
    """Certify any ``alpha`` for μ > 0 with the dual point that follows from α itself.

    That point is y = r/μ, with the c for which α_i = w_i v_i holds on average over α.
    """
    x = problem.per_sample(alpha)
    marginal = problem.mix_samples(x)
    y = (problem.T - marginal) / mu
    v = problem.scores(y)
    c = float(alpha @ (x - v))
    v += c
    return certify(problem, alpha, marginal, mu, y, c, v)


def certify(
    problem: Problem, alpha: Vector, marginal: Vector, mu: float, y: Vector, c: float, v: Vector
) -> Certificate:
    """Certify ``alpha`` for μ > 0 with the dual point (y, c), given ``marginal`` = Sᵀα and v = Sy + c."""
    p = problem
    r = p.T - marginal
    x = p.per_sample(alpha)
    score_error = p.score_rounding * (abs(c) + float(np.abs(y).max()))
    deviation = np.abs(np.maximum(v, 0.0) - x) + (score_error + p.mix_rounding * x)
    negative_part = np.maximum(score_error - v, 0.0)
    residual = np.abs(r - mu * y) + p.mix_rounding * (marginal + p.T)
    gap = float(residual @ residual) + mu * float(p.w @ (deviation * deviation) + 2.0 * (alpha @ negative_part))
    objective = float(r @ r) + mu * float(alpha @ x)
    return Certificate(gap, gap / objective, math.sqrt(gap / mu) + p.mix_rounding)
