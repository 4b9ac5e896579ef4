"""Which of several models is best for the target, without a target sample.

One round's updates can be averaged with several weights at no cost in training. Clients evaluate all of these
candidates on the same held-out samples and report sums by label (`Comparison`), from which the server estimates the
target loss of each, R̂_j = Σ_y T(y) L̄_yj, as `fedpals.shift.risk` does, and the covariance of the estimates,

    C_jk = Σ_y T(y)² Cov_y(ℓ_j, ℓ_k) / n_y,     so that  (C_jj + C_kk − 2 C_jk)^½  is the error of R̂_j − R̂_k.

The samples are the same, so most of the chance in R̂_j − R̂_k cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError
from fedpals.labels import LabelCounts, Vector, as_target
from fedpals.shift.softmax import log_softmax
from fedpals.shift.tally import Counts

LARGEST_LOSS = 20.0
"""Losses count as at most this, so that a single sample does not decide, nor makes a sum infinite."""
TOLERANCE = 2.0
"""Standard errors of a difference of losses within which a larger ESS is preferred."""
_ROUNDING = 1e-6
"""Relative tolerance when sums are checked against each other."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Losses of m models on the same samples, summed by true label over K labels.

    Raises
    ------
    InputError
        For shapes that do not fit and sums that no samples can have; names field, label and value.
    """

    samples: Counts
    """(K,) number of samples of each label."""
    loss: Vector
    """(K, m) sum of each model's losses on each label's samples."""
    product: Vector
    """(K, m, m) sum of the products of the losses of two models."""

    def __post_init__(self) -> None:
        samples, loss, product = np.asarray(self.samples), np.asarray(self.loss), np.asarray(self.product)
        labels, models = loss.shape if loss.ndim == 2 else (0, 0)
        if samples.shape != (labels,) or product.shape != (labels, models, models) or not labels * models:
            raise InputError(
                f"samples, loss and product have the shapes {samples.shape}, {loss.shape} and {product.shape}; they "
                "must be (K,), (K, m) and (K, m, m)"
            )
        if samples.dtype.kind not in "ui" or samples.min() < 0:
            raise InputError(f"samples is {samples.tolist()}; it must hold whole numbers ≥ 0")
        largest = LARGEST_LOSS * samples[:, None] * (1 + _ROUNDING)
        if (wrong := ~((loss >= 0) & (loss <= largest)).all(axis=1)).any():
            y = int(wrong.argmax())
            raise InputError(
                f"loss: label {y}: {loss[y].tolist()} over {samples[y]} samples; a loss is between 0 and "
                f"{LARGEST_LOSS:g}, and 0 where there are no samples"
            )
        squares = np.diagonal(product, axis1=1, axis2=2)
        least = np.square(loss) / np.maximum(samples, 1)[:, None]
        bound = np.sqrt(squares[:, :, None] * squares[:, None, :])  # of Cauchy and Schwarz
        possible = (squares >= least * (1 - _ROUNDING)) & (squares <= LARGEST_LOSS * loss * (1 + _ROUNDING))
        possible &= (np.isfinite(product) & (product >= 0) & (product <= bound * (1 + _ROUNDING))).all(axis=2)
        if not possible.all():
            y = int((~possible).any(axis=1).argmax())
            raise InputError(f"product: label {y}: no {samples[y]} losses have these sums of products and this sum")
        object.__setattr__(self, "samples", samples.astype(np.int64))

    @classmethod
    def of(cls, y: npt.ArrayLike, logits: Sequence[Vector]) -> Self:
        """Compare m models on n samples: true labels ``y`` (n,), and the outputs of every model, (n, K).

        >>> Comparison.of([0, 1], [np.zeros((2, 2)), np.log([[0.5, 0.5], [0.75, 0.25]])]).loss.round(2).tolist()
        [[0.69, 0.69], [0.69, 1.39]]
        """
        truth, models, labels = np.asarray(y, dtype=np.int64), len(logits), logits[0].shape[1]
        losses = _losses(truth, np.asarray(logits, dtype=np.float64))
        products = (losses[:, :, None] * losses[:, None, :]).reshape(-1, models * models)
        by_label = np.eye(labels)[truth].T
        return cls(
            np.bincount(truth, minlength=labels),
            by_label @ losses,
            (by_label @ products).reshape(labels, models, models),
        )


def pooled_comparison(comparisons: Sequence[Comparison]) -> Comparison:
    """Return the comparison on the samples of all clients together."""
    return Comparison(
        np.sum([comparison.samples for comparison in comparisons], axis=0),
        np.sum([comparison.loss for comparison in comparisons], axis=0),
        np.sum([comparison.product for comparison in comparisons], axis=0),
    )


@dataclass(frozen=True, eq=False)
class CandidateLosses:
    """Estimated target losses of m candidates in ascending order of ESS."""

    value: Vector
    """(m,) estimates."""
    covariance: Vector
    """(m, m) of the estimates."""

    @classmethod
    def of(cls, comparison: Comparison, target: npt.ArrayLike) -> Self:
        """Estimate target losses; labels of the target that nobody held out count as the others do on average.

        Raises
        ------
        InputError
            If no client held out a sample of the target's labels.
        """
        n = comparison.samples
        if not n.any():
            raise InputError("no samples to compare with: at least one client must hold out samples")
        T = as_target(target, LabelCounts.of(n[None]))
        seen = (T > 0) & (n > 0)
        if not seen.any():
            raise InputError("no client held out a sample of the target's labels, so candidates cannot be compared")
        weight, n = T[seen] / T[seen].sum(), n[seen]
        mean = comparison.loss[seen] / n[:, None]
        scatter = comparison.product[seen] - n[:, None, None] * mean[:, :, None] * mean[:, None, :]
        freedom = n - 1
        average = scatter.sum(axis=0) / max(1, freedom.sum())  # stands for a label with a single sample
        within = np.where(freedom[:, None, None] > 0, scatter / np.maximum(freedom, 1)[:, None, None], average)
        return cls(weight @ mean, np.einsum("y,yjk->jk", np.square(weight) / n, within))

    @property
    def best(self) -> int:
        """The largest ESS whose loss is within `TOLERANCE` standard errors of the smallest."""
        close = self.value - self.value.min() <= TOLERANCE * self.errors
        return int(np.flatnonzero(close)[-1])

    @property
    def errors(self) -> Vector:
        """(m,) standard errors of the differences to the smallest loss."""
        variance, j = np.diag(self.covariance), int(self.value.argmin())
        return np.asarray(np.sqrt(np.maximum(variance + variance[j] - 2 * self.covariance[j], 0.0)))


def _losses(y: npt.NDArray[np.int64], logits: Vector) -> Vector:
    """Return the cross-entropy of every sample, (n, m), from logits (m, n, K)."""
    with np.errstate(invalid="ignore", over="ignore"):
        losses = -log_softmax(logits)[:, np.arange(len(y)), y].T
    return np.where(np.isnan(losses), LARGEST_LOSS, np.clip(losses, 0.0, LARGEST_LOSS))
