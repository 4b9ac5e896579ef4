"""The proof that comes with every answer.

For λ > 0, any y ∈ R^K and c ∈ R bound the optimum from below. With v = Sy + c and r = T − Sᵀα,

    f(α) − min f  ≤  gap = ‖r − μy‖² + μ Σ [ (α_i − w_i v_i₊)²/w_i + 2 α_i v_i₋ ]

a sum of non-negative terms, zero at the optimum where y = r/μ. Because f is strongly convex,
Σ|α_i − α*_i| ≤ √(gap/μ). All terms are enlarged by what rounding can have hidden, so the bound
holds for the numbers in memory and not only on paper. α stands for α/Σα, which differs from α by
one rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedpals.errors import CertificateError
from fedpals.labels import Vector
from fedpals.weights.problem import Problem

GOOD = 1e-9
"""A larger relative gap is worth trying another way."""
_WORST = 1e-6
"""Largest relative gap an answer may have. Usual is less than 1e-20; it takes a λ near 0, or clients
that differ in the ninth digit, to come close."""


@dataclass(frozen=True)
class Certificate:
    """How far from the optimum an answer can be at the most."""

    gap: float
    """Bound on objective(α) − minimum."""
    relative_gap: float
    """The same as a fraction of the objective."""
    error: float
    """Bound on Σ|α_i − α*_i|, the total weight that may sit on the wrong client."""

    def checked(self) -> Certificate:
        """Return itself, or raise where the answer is not proven."""
        if not self.relative_gap <= _WORST:
            raise CertificateError(
                f"the weights could not be proven optimal (relative gap {self.relative_gap:.1e}); "
                "ask for a larger lam or ess, or for the limit lam=0"
            )
        return self


EXACT = Certificate(0.0, 0.0, 0.0)


def certify_primal(problem: Problem, alpha: Vector, mu: float) -> Certificate:
    """Certificate of any ``alpha`` for μ > 0 by the dual point that it suggests itself.

    That is y = r/μ, and the c for which α_i = w_i v_i holds on average over α.
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
    """Certificate of ``alpha`` for μ > 0 by the dual point (y, c), with Sᵀα and v = Sy + c at hand."""
    p = problem
    r = p.T - marginal
    x = p.per_sample(alpha)
    slip = p.score_rounding * (abs(c) + float(np.abs(y).max()))
    miss = np.abs(np.maximum(v, 0.0) - x) + (slip + p.mix_rounding * x)
    below = np.maximum(slip - v, 0.0)
    residual = np.abs(r - mu * y) + p.mix_rounding * (marginal + p.T)
    gap = float(residual @ residual) + mu * float(p.w @ (miss * miss) + 2.0 * (alpha @ below))
    objective = float(r @ r) + mu * float(alpha @ x)
    return Certificate(gap, gap / objective, math.sqrt(gap / mu) + p.mix_rounding)
