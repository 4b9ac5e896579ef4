"""The paper's equation (8) as a value, and the three products with S that every algorithm needs.

    min over the simplex  ‖T − Sᵀα‖² + μ Σ α_i²/w_i,     w = n/N,  μ = λ/N

S is M×K, usually with M ≫ K, dense or sparse, and never formed: with the table C of counts it is
diag(1/n)·C, and a product with S is one with C, whose numbers are whole, and one division per client.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedpals.labels import LabelCounts, Matrix, Vector, row_blocks

Precision: TypeAlias = type[np.float32] | type[np.float64]

EPS = float(np.finfo(np.float64).eps)
_SHARED_BLOCK = 1 << 19
"""Entries of a block that BLAS's threads share: four megabytes are worth waking them up."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Label counts C of the clients, their sizes n (the row sums of C) and the target T."""

    C: Matrix
    n: Vector
    T: Vector

    @classmethod
    def of(cls, counts: LabelCounts, target: Vector) -> Problem:
        """Build the problem of validated counts and target."""
        return cls(counts.table, counts.sizes, target)

    @cached_property
    def N(self) -> float:  # noqa: N802 -- the paper's name
        """The samples of all clients."""
        return float(self.n.sum())

    @cached_property
    def w(self) -> Vector:
        """FedAvg's weights n/N."""
        return self.n / self.N

    @cached_property
    def _inverse_n(self) -> Vector:
        return np.divide(1.0, self.n, out=np.zeros_like(self.n), where=self.n > 0)

    @property
    def by_rows(self) -> bool:
        """Whether rows of C lie in memory one after the other, which makes them cheap to pick."""
        return isinstance(self.C, np.ndarray) and self.C.flags.c_contiguous

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
        scores = np.asarray(self.C @ u)
        scores *= self._inverse_n
        return scores

    def mix(self, alpha: Vector) -> Vector:
        """Sᵀα: the label marginal that weights imply."""
        return self.mix_samples(self.per_sample(alpha))

    def mix_samples(self, x: Vector) -> Vector:
        """Sᵀα for α = w·x, given the weight x_i of a sample at each client: no client's size is needed."""
        return np.asarray(x @ self.C) / self.N

    def response(self, u: Vector, offset: float) -> tuple[Vector, Vector]:
        """v = offset + S·u, and Sᵀα for α = w·v₊: a block of C serves both products while it is in the cache."""
        if sparse.issparse(self.C):
            v = self.scores(u)
            v += offset
            return v, self.mix_samples(np.maximum(v, 0.0))
        v, total = np.empty_like(self.n), np.zeros_like(u)
        for block in row_blocks(v.size, u.size, _SHARED_BLOCK):
            part, here = self.C[block], v[block]
            np.matmul(part, u, out=here)
            here *= self._inverse_n[block]
            here += offset
            total += np.maximum(here, 0.0) @ part
        return v, total / self.N

    def marginals(self, rows: npt.NDArray[np.intp] | slice) -> Vector:
        """Return some rows of S, dense."""
        some = self.C[rows]
        some = some.toarray() if sparse.issparse(some) else some
        return np.asarray(some / np.maximum(self.n[rows], 1.0)[:, None])

    def gram(
        self, weights: Vector, rows: npt.NDArray[np.intp] | None = None, precision: Precision = np.float64
    ) -> Vector:
        """Sᵀ·diag(weights)·S over ``rows`` (all of them by default), K×K."""
        K = self.T.size
        inverse_n = self._inverse_n if rows is None else self._inverse_n[rows]
        if sparse.issparse(self.C):
            C = self.C if rows is None else self.C[rows]
            return np.asarray((C.T @ sparse.diags_array(weights * inverse_n * inverse_n) @ C).toarray())
        total = np.zeros((K, K))
        roots = (np.sqrt(np.abs(weights)) * inverse_n).astype(precision)[:, None]
        signs = np.sign(weights).astype(precision)[:, None] if weights.min(initial=0.0) < 0 else None
        for block in row_blocks(weights.size, K):
            part: npt.NDArray[Any] = self.C[block] if rows is None else self.C.take(rows[block], axis=0)
            part = part.astype(precision)
            part *= roots[block]
            total += part.T @ (part if signs is None else signs[block] * part)
        return total

    def per_sample(self, alpha: Vector) -> Vector:
        """α_i/w_i: the weight of a sample at each client, 1 everywhere for FedAvg; 0 without samples."""
        x = alpha * self._inverse_n
        x *= self.N
        return x

    def ess(self, alpha: Vector) -> float:
        """Effective sample size 1/Σ(α_i²/n_i) as a fraction of N; exactly 1 for FedAvg's weights."""
        return 1.0 / (1.0 + float(self.w @ np.square(self.per_sample(alpha) - 1.0)))

    def squared_distance(self, alpha: Vector) -> float:
        """‖T − Sᵀα‖²."""
        r = self.T - self.mix(alpha)
        return float(r @ r)

    def sketch(self, rows: int) -> Problem:
        """Return a smaller problem with nearly the same solution: a start for the whole one.

        The largest clients as they are, and every k-th of the others standing for its neighbours.
        """
        is_large = self.w > 2.0 / rows  # fewer than half of the rows, since Σw = 1
        large, small = np.flatnonzero(is_large), np.flatnonzero(~is_large & (self.n > 0))
        some = small[:: max(1, small.size // (rows - large.size))]
        standing_for = self.n[small].sum() / max(1.0, self.n[some].sum())
        kept = np.concatenate([large, some])
        times = np.repeat([1.0, standing_for], [large.size, some.size])
        C: Any = self.C[kept]
        if sparse.issparse(C):
            scale: Any = sparse.diags_array(times)
            C = scale @ C
        else:
            C *= times[:, None]
        return Problem(C, times * self.n[kept], self.T)
