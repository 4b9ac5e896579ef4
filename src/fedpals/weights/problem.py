"""The paper's equation (8) as an object, and the three products with S that every algorithm needs.

    min over the simplex  ‖T − Sᵀα‖² + μ Σ α_i²/w_i,     w = n/N,  μ = λ/N

S is M×K, usually with M ≫ K, dense or sparse, and never formed: with the table C of counts it is
diag(1/n)·C, and a product with S is a product with the integers C and one multiplication per client.
With a cap the constraints α_i ≤ cap are added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedpals.labels import LabelCounts, Matrix, Vector, row_blocks
from fedpals.labels.counts import is_sparse
from fedpals.weights.cap import capped_fedavg
from fedpals.weights.sparse_gram import sparse_gram

Precision: TypeAlias = type[np.float32] | type[np.float64]

EPS = float(np.finfo(np.float64).eps)
_SHARED_BLOCK = 1 << 19
"""Entries of a block that BLAS threads share: four megabytes, enough to make up for waking them."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Label counts C of the clients, their sizes n (the row sums of C) and the target T."""

    C: Matrix
    n: Vector
    T: Vector
    cap: float | None = None
    """Largest weight that a client may have; None: no limit."""
    N: float = field(init=False)
    """Number of samples of all clients."""
    w: Vector = field(init=False)
    """FedAvg's weights n/N."""
    _divisors: Vector = field(init=False)
    """n, or 1 for a client without samples."""
    _inverse_n: Vector = field(init=False)
    score_rounding: float = field(init=False)
    """Bound on the relative rounding error of s_i·u, including that of s_i itself: n·ε for n terms."""
    mix_rounding: float = field(init=False)
    """Bound on the relative rounding error of Sᵀα; blocked sums have smaller errors than one long sum."""
    _most: Vector = field(init=False)
    """cap/w, the largest weight of a sample at each client (∞ for one without samples); not there without a cap."""

    def __post_init__(self) -> None:
        N, divisors = float(np.add.reduce(self.n)), np.maximum(self.n, 1.0)
        rows = self.n.size
        # A frozen instance is set up through its dictionary.
        self.__dict__.update(
            N=N,
            w=self.n / N,
            _divisors=divisors,
            _inverse_n=1.0 / divisors,
            score_rounding=EPS * (4 + self.T.size),
            mix_rounding=EPS * (4 + min(rows, 512 + rows // 512)),
        )
        if self.cap is not None:
            self.__dict__["_most"] = most = self.cap * N / divisors
            if not self.n.all():
                most[self.n == 0] = np.inf

    @classmethod
    def of(cls, counts: LabelCounts, target: Vector, cap: float | None = None) -> Problem:
        """Build the problem of validated counts, target and cap."""
        return cls(counts.table, counts.sizes, target, cap)

    @cached_property
    def fedavg(self) -> Vector:
        """The weights of largest ESS, those at λ = ∞: w, or `capped_fedavg`."""
        return self.w if self.cap is None else capped_fedavg(self.w, self.cap)

    @cached_property
    def least_uneven(self) -> tuple[Vector, npt.NDArray[np.intp], Vector]:
        """x', the weights of a sample at λ = ∞; the clients that have the cap there; and by how much their x' is less.

        Without the cap they would have what a sample at the others has, t.
        """
        x = self.per_sample(self.fedavg)
        at_cap = np.zeros(x.shape, dtype=np.bool_) if self.cap is None else self.fedavg >= self.cap
        t = float(x[~at_cap].max(initial=0.0))
        rows = np.flatnonzero(at_cap) if t else np.zeros(0, dtype=np.intp)
        return x, rows, t - x[rows]

    @cached_property
    def highest_ess(self) -> float:
        """ESS at λ = ∞: 1, or less with a cap below the largest client's share of the samples."""
        return 1.0 if self.fedavg is self.w else self.ess(self.fedavg)

    @property
    def has_contiguous_rows(self) -> bool:
        """Whether rows of C are contiguous in memory, which makes them cheap to select."""
        return isinstance(self.C, np.ndarray) and self.C.flags.c_contiguous

    def scores(self, u: Vector) -> Vector:
        """Return S·u, one number per client."""
        scores = np.asarray(self.C.dot(u))  # of little vectors, in half the time that @ takes
        scores *= self._inverse_n
        return scores

    def mix(self, alpha: Vector) -> Vector:
        """Return Sᵀα, the label marginal that the weights imply."""
        return self.mix_samples(self.per_sample(alpha))

    def mix_samples(self, x: Vector) -> Vector:
        """Return Sᵀα for α = w·x, from the weight x_i of a sample at each client; needs no client sizes."""
        return np.asarray(self.C.T.dot(x)) / self.N

    def clip(self, v: Vector, rows: slice = slice(None)) -> Vector:
        """Return α/w for scores v of ``rows``: v₊, or min(v₊, cap/w) with a cap."""
        x = np.maximum(v, 0.0)
        return x if self.cap is None else np.minimum(x, self._most[rows], out=x)

    def above_cap(self, v: Vector) -> Vector:
        """Return (v − cap/w)₊ for scores v."""
        return np.maximum(v - self._most, 0.0)

    def below_cap(self, x: Vector, rows: npt.NDArray[np.intp]) -> Vector:
        """Return cap/w − x for the weights x of a sample at the clients ``rows``: exactly 0 at the cap."""
        return self._most[rows] - x

    def is_free(self, v: Vector) -> npt.NDArray[np.bool_]:
        """Return which clients have a weight that changes with v: neither 0 nor the cap."""
        free = v > 0
        if self.cap is not None:
            free &= v < self._most
        return free

    def is_at_cap(self, v: Vector) -> npt.NDArray[np.bool_]:
        """Return which clients have the cap for scores v."""
        return np.zeros(v.shape, dtype=np.bool_) if self.cap is None else v >= self._most

    def exceeds_cap(self, v: Vector) -> bool:
        """Return whether scores v give any client the cap or more."""
        return self.cap is not None and bool(self.is_at_cap(v).any())

    def mix_at_cap(self, v: Vector) -> Vector:
        """Return the part of Sᵀα that clients at the cap contribute."""
        assert self.cap is not None
        rows = np.flatnonzero(v >= self._most)
        return self.cap * np.asarray(self._inverse_n[rows] @ self.C[rows])

    def response(self, u: Vector, offset: float) -> tuple[Vector, Vector]:
        """Return v = offset + S·u and Sᵀα for α = w·clip(v); a block of C serves both products while in the cache."""
        if is_sparse(self.C):
            v = self.scores(u)
            v += offset
            return v, self.mix_samples(self.clip(v))
        v, total = np.empty_like(self.n), np.zeros_like(u)
        for block in row_blocks(v.size, u.size, _SHARED_BLOCK):
            C_block, v_block = self.C[block], v[block]
            np.matmul(C_block, u, out=v_block)
            v_block *= self._inverse_n[block]
            v_block += offset
            total += self.clip(v_block, block) @ C_block
        return v, total / self.N

    def marginals(self, rows: npt.NDArray[np.intp] | slice) -> Vector:
        """Return ``rows`` of S as a dense array."""
        counts = self.C[rows]
        counts = counts.toarray() if is_sparse(counts) else counts
        return np.asarray(counts / self._divisors[rows][:, None])

    def gram(
        self, weights: Vector, rows: npt.NDArray[np.intp] | None = None, precision: Precision = np.float64
    ) -> Vector:
        """Return Sᵀ·diag(weights)·S over ``rows`` (all unless given), K×K."""
        K = self.T.size
        inverse_n = self._inverse_n if rows is None else self._inverse_n[rows]
        if is_sparse(self.C):
            return sparse_gram(self.C, weights * inverse_n * inverse_n, rows)
        total = np.zeros((K, K))
        roots = (np.sqrt(np.abs(weights)) * inverse_n).astype(precision)[:, None]
        signs = np.sign(weights).astype(precision)[:, None] if weights.min(initial=0.0) < 0 else None
        for block in row_blocks(weights.size, K):
            part: npt.NDArray[Any] = self.C[block] if rows is None else self.C.take(rows[block], axis=0)
            part = part.astype(precision)
            part *= roots[block]
            total += part.T @ (part if signs is None else signs[block] * part)
        return total

    def kernel(self) -> Vector:
        """Return SSᵀ, M×M."""
        products: Any = self.C @ self.C.T
        Q = np.asarray(products if isinstance(products, np.ndarray) else products.toarray())
        Q *= self._inverse_n
        Q *= self._inverse_n[:, None]
        return Q

    def per_sample(self, alpha: Vector) -> Vector:
        """Return α_i/w_i, the weight of a sample at each client: 1 for FedAvg; 0 for a client without samples."""
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
        """Return a smaller problem with nearly the same solution, to start from.

        It has the largest clients as they are, and every k-th of the others, scaled up to represent its neighbours.
        """
        is_large = self.w > 2.0 / rows  # fewer than half of the rows, since Σw = 1
        large, small = np.flatnonzero(is_large), np.flatnonzero(~is_large & (self.n > 0))
        sample = small[:: max(1, small.size // (rows - large.size))]
        sample_factor = self.n[small].sum() / max(1.0, self.n[sample].sum())
        clients = np.concatenate([large, sample])
        factors = np.repeat([1.0, sample_factor], [large.size, sample.size])
        C: Any = self.C[clients]
        if is_sparse(C):
            C = C.multiply(factors[:, None]).tocsr()
        else:
            C *= factors[:, None]
        return Problem(C, factors * self.n[clients], self.T)
