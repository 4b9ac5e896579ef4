"""The paper's equation (8) as a value, and the three products with S that every algorithm needs.

    min over the simplex  ‖T − Sᵀα‖² + μ Σ α_i²/w_i,     w = n/N,  μ = λ/N

S is M×K, usually with M ≫ K, dense or sparse. Nothing here makes a second copy of S: the products
run over row blocks that fit in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedpals.labels import LabelCounts, Matrix, Vector, row_blocks

Precision: TypeAlias = type[np.float32] | type[np.float64]

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Problem:
    """Client marginals S, FedAvg weights w = n/N, target T and the sample total N."""

    S: Matrix
    w: Vector
    T: Vector
    N: float

    @classmethod
    def of(cls, counts: LabelCounts, target: Vector) -> Problem:
        """Build the problem of validated counts and target."""
        total = counts.total
        return cls(counts.marginals, counts.sizes / total, target, total)

    @cached_property
    def score_rounding(self) -> float:
        """Bound on the relative rounding error of s_i·u, that of s_i itself included: n·ε for n terms."""
        return EPS * (4 + self.T.size)

    @cached_property
    def mix_rounding(self) -> float:
        """Bound on the relative rounding error of Sᵀα; blocked sums err less than one long sum."""
        rows = self.w.size
        return EPS * (4 + min(rows, 512 + rows // 512))

    def scores(self, u: Vector) -> Vector:
        """S·u: one number per client."""
        return np.asarray(self.S @ u)

    def mix(self, alpha: Vector) -> Vector:
        """Sᵀα: the label marginal that weights imply."""
        return np.asarray(alpha @ self.S)

    def gram(
        self, weights: Vector, rows: npt.NDArray[np.intp] | None = None, precision: Precision = np.float64
    ) -> Vector:
        """Sᵀ·diag(weights)·S over ``rows`` (all of them by default), K×K; weights ≥ 0."""
        K = self.T.size
        if sparse.issparse(self.S):
            S = self.S if rows is None else self.S[rows]
            return np.asarray((S.T @ sparse.diags_array(weights) @ S).toarray())
        total = np.zeros((K, K))
        roots = np.sqrt(weights).astype(precision)[:, None]
        for block in row_blocks(weights.size, K):
            part = self.S[block if rows is None else rows[block]].astype(precision)
            part *= roots[block]
            total += part.T @ part
        return total

    @cached_property
    def _inverse_w(self) -> Vector:
        return np.divide(1.0, self.w, out=np.zeros_like(self.w), where=self.w > 0)

    def per_sample(self, alpha: Vector) -> Vector:
        """α_i/w_i: the weight of a sample at each client, 1 everywhere for FedAvg; 0 without samples."""
        return alpha * self._inverse_w

    def ess(self, alpha: Vector) -> float:
        """Effective sample size 1/Σ(α_i²/n_i) as a fraction of N; exactly 1 for FedAvg's weights."""
        return 1.0 / (1.0 + float(self.w @ np.square(self.per_sample(alpha) - 1.0)))

    def distance(self, alpha: Vector) -> float:
        """‖T − Sᵀα‖²."""
        r = self.T - self.mix(alpha)
        return float(r @ r)

    def restrict(self, rows: npt.NDArray[np.intp], weights: Vector) -> Problem:
        """Return the problem of some clients, with weights ``weights`` for w."""
        return Problem(self.S[rows], weights, self.T, self.N)

    def sketch(self, rows: int) -> Problem:
        """Return a smaller problem with nearly the same solution: a start for the whole one.

        The largest clients as they are, and every k-th of the others standing for its neighbours.
        """
        is_large = self.w > 2.0 / rows  # fewer than half of the rows, since Σw = 1
        large, small = np.flatnonzero(is_large), np.flatnonzero(~is_large)
        some = small[:: max(1, small.size // (rows - large.size))]
        weights = self.w[some]
        share = 1.0 - self.w[large].sum()
        scale = share / weights.sum() if weights.any() else 0.0
        kept = np.concatenate([large, some])
        weights = np.concatenate([self.w[large], weights * scale])
        return self.restrict(kept, weights / weights.sum())
