"""What a model is worth in the target domain, raw and with the target prior correction.

Under label shift a model trained on the mix p_α(y) = Σ α_i S_i(y) becomes the target's Bayes
classifier by p_T(y|x) ∝ p(y|x)·T(y)/p_α(y): a shift of the logits that the server can compute from T
and α alone, with no training and no target sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector


@dataclass(frozen=True)
class Metrics:
    """Accuracy, macro-F1 and accuracy per label of one set of predictions."""

    accuracy: float
    macro_f1: float
    """Mean F1 over the labels that occur in the set."""
    per_label: tuple[float | None, ...]
    """Share of each label's samples that are recognised; None for a label that does not occur."""


def metrics(y: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], labels: int) -> Metrics:
    """Compare predictions with the truth."""
    confusion = np.bincount(y * labels + predicted, minlength=labels * labels).reshape(labels, labels)
    right, actual, claimed = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    occurs = actual > 0
    f1 = 2 * right[occurs] / (actual + claimed)[occurs]
    per_label = tuple(float(r / n) if n else None for r, n in zip(right, actual, strict=True))
    return Metrics(float(right.sum() / max(1, len(y))), float(f1.mean()) if f1.size else 0.0, per_label)


def prior_shift(target: Vector, mix: Vector, samples: float) -> Vector:
    """Return log T − log p_α, (K,), to be added to the logits.

    A label that the target lacks drops out (−∞). A label that the model was not trained on
    (p_α(y) = 0) is treated as if half of one of the ``samples`` had it.

    >>> prior_shift(np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.5, 0.25]), 100).round(3).tolist()
    [0.693, 0.0, -inf]
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(target) - np.log(np.maximum(mix, 0.5 / samples)))
