"""Target risk without a target sample.

Under label shift the samples of a label have the same distribution everywhere, so the risk of a model h
in the target is a sum that clients can estimate:

    R_T(h) = Σ_y T(y) E[ℓ | Y = y]  ≈  R̂ = Σ_y T(y) L̄_y,     L̄_y = (losses of label y at all clients) / n_y

with standard error (Σ_y T(y)² s_y²/n_y)^½. Pooling over clients weights each by its number of
samples of the label: their means all estimate the same number with variance σ_y²/n_iy, and weights
∝ n_iy are the best unbiased combination. With ℓ = [ŷ ≠ y] the same sum gives accuracy.

R̂ is unbiased if the samples were used neither for training nor to choose the model; the best of many
candidates looks better than it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError
from fedpals.labels import LabelCounts, Vector, as_target
from fedpals.shift.tally import Tally


@dataclass(frozen=True)
class Estimate:
    """An estimate of a model's loss or accuracy in the target."""

    value: float
    """Estimate over the labels that some client held out, as if the other labels were like them on average."""
    standard_error: float
    """Standard error of ``value``, from the spread within labels; NaN if no label has two samples."""
    bounds: tuple[float, float]
    """Smallest and largest value for any behaviour on the unseen labels; both are ``value`` if there are none."""
    unseen: tuple[int, ...]
    """Labels of the target that no client held out."""
    unseen_share: float
    """Σ T(y) over the unseen labels, the part of the target that the estimate does not cover."""


def target_loss(tally: Tally, target: npt.ArrayLike) -> Estimate:
    """Estimate the mean loss in the target; ∞ if the model gives probability 0 to a true label.

    >>> tally = Tally(np.array([1.0, 8.0]), np.array([0.5, 16.0]), np.array([[2, 0], [1, 3]]))
    >>> target_loss(tally, [0.5, 0.5]).value
    1.25
    """
    return _estimate(tally, target, tally.loss, tally.squared_loss, worst=np.inf)


def target_accuracy(tally: Tally, target: npt.ArrayLike) -> Estimate:
    """Estimate the accuracy in the target.

    >>> tally = Tally(np.array([1.0, 8.0]), np.array([0.5, 16.0]), np.array([[2, 0], [1, 3]]))
    >>> target_accuracy(tally, [0.5, 0.5]).value
    0.875
    """
    correct = tally.correct.astype(np.float64)
    return _estimate(tally, target, correct, correct, worst=1.0)


def target_recalls(tally: Tally) -> list[Estimate | None]:
    """Estimate, label by label, the share of its samples that are recognised; None for a label that no client held out.

    Under label shift it is the same in the target, whatever T is. The standard error is (p(1 − p)/(n − 1))^½.
    """
    recalls: list[Estimate | None] = []
    for n, correct in zip(tally.samples.tolist(), tally.correct.tolist(), strict=True):
        if not n:
            recalls.append(None)
            continue
        p = correct / n
        error = math.sqrt(p * (1.0 - p) / (n - 1)) if n > 1 else math.nan
        recalls.append(Estimate(p, error, (p, p), (), 0.0))
    return recalls


def best(candidates: Sequence[Tally], target: npt.ArrayLike, *, by: str = "accuracy") -> int:
    """Return the index of the candidate that is best for the target, each given by its pooled tally.

    ``by`` is ``accuracy`` or ``loss``; the other one breaks ties, and then the order.
    """
    if not candidates:
        raise InputError("no candidates to choose from")
    if by not in _ORDERS:
        raise InputError(f"by is {by!r}; candidates are compared by {' or '.join(_ORDERS)}")
    costs = [_ORDERS[by](-target_accuracy(c, target).value, target_loss(c, target).value) for c in candidates]
    return min(range(len(costs)), key=costs.__getitem__)


_ORDERS: Mapping[str, Callable[[float, float], tuple[float, float]]] = {
    "accuracy": lambda error, loss: (error, loss),
    "loss": lambda error, loss: (loss, error),
}


def _estimate(tally: Tally, target: npt.ArrayLike, sums: Vector, squares: Vector, *, worst: float) -> Estimate:
    """Estimate the mean under T of a quantity in [0, ``worst``] from its ``sums`` and ``squares`` by label, (K,)."""
    if not tally.samples.any():
        raise InputError("the tally is empty: at least one client must hold out samples")
    T = as_target(target, LabelCounts.of(tally.samples[None]))
    in_target = T > 0
    seen = in_target & (tally.samples > 0)
    unseen = np.flatnonzero(in_target & ~seen)
    share = float(T[unseen].sum())
    if not seen.any():
        raise InputError(
            f"no client held out a sample of the target's labels ({', '.join(map(str, unseen))}): its risk is unknown"
        )
    n, weight = tally.samples[seen], T[seen]
    weighted_sum = float(weight @ (sums[seen] / n))
    scale = 1.0 / float(weight.sum())
    error = scale * float(np.sqrt(np.square(weight) @ (_variances(n, sums[seen], squares[seen]) / n)))
    bounds = (weighted_sum, weighted_sum + share * worst) if share else (weighted_sum * scale, weighted_sum * scale)
    return Estimate(weighted_sum * scale, error, bounds, tuple(unseen.tolist()), share)


def _variances(n: npt.NDArray[np.int64], sums: Vector, squares: Vector) -> Vector:
    """Return the unbiased variance within each label; for a label with one sample, the average of the labels."""
    if not np.isfinite(squares).all():
        return np.full(n.shape, np.inf)
    scatter = np.maximum(squares - np.square(sums) / n, 0.0)
    freedom = n - 1
    average = scatter.sum() / freedom.sum() if freedom.any() else np.nan
    return np.where(freedom > 0, scatter / np.maximum(freedom, 1), average)
