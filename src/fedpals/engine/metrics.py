"""How good a model is: on the target's own samples where there are any, and as clients' samples estimate it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from fedpals.labels import Indices, Vector
from fedpals.shift import Tally, target_accuracy, target_loss
from fedpals.shift.evaluation import SelectedBy
from fedpals.shift.risk import Estimate, target_recalls
from fedpals.shift.softmax import log_softmax


@dataclass(frozen=True)
class Metrics:
    """What a model is worth on labelled samples; older records have the first three only."""

    accuracy: float
    macro_f1: float
    """Mean F1 over the labels that occur in the set."""
    per_label: tuple[float | None, ...]
    """Recall: share of each label's samples that are recognised; None for a label that does not occur."""
    balanced_accuracy: float | None = None
    """Mean recall over the labels that occur."""
    log_loss: float | None = None
    """Mean −log p(y|x); None where the model rules out a label that occurs."""
    auc: float | None = None
    """Area under the ROC curve, of two labels: how often a sample of label 1 scores above one of label 0."""


@dataclass(frozen=True)
class Estimated:
    """A metric in the target as clients' held-out samples estimate it."""

    value: float
    standard_error: float | None = None
    """None where there are too few samples to tell."""


@dataclass(frozen=True)
class HeldOutMetrics:
    """What the samples that clients held out say about a model."""

    accuracy: float
    """On all of them, whatever the target's labels are."""
    target_accuracy: float
    """Estimate of the accuracy in the target."""
    standard_error: float | None
    """Of that estimate; None where no label has two samples."""
    log_loss: Estimated | None = None
    """In the target; None where the model rules out a label that occurs."""
    balanced_accuracy: Estimated | None = None
    """Over the target's labels."""
    auc: Estimated | None = None
    """Of two labels; under label shift it is the same whatever T is."""
    per_label: tuple[Estimated | None, ...] = ()
    """Recall of each label; None for a label that nobody held out."""

    def estimate(self, metric: str) -> Estimated | None:
        """Return the estimate of a metric in the target by its name; None of one that has none."""
        if metric == "accuracy":
            return Estimated(self.target_accuracy, self.standard_error)
        value = getattr(self, metric, None)
        return value if isinstance(value, Estimated) else None


@dataclass(frozen=True)
class Scores:
    """What a model is worth on every set of samples that there is."""

    validation: Metrics | None = None
    test: Metrics | None = None
    clients: HeldOutMetrics | None = None

    def by(self, rule: SelectedBy) -> float | None:
        """Return the score by which a rule selects; None where its samples do not exist."""
        if rule is SelectedBy.VALIDATION:
            return None if self.validation is None else self.validation.accuracy
        if self.clients is None:
            return None
        return self.clients.target_accuracy if rule is SelectedBy.ESTIMATE else self.clients.accuracy


def metrics(y: Indices, logits: Vector) -> Metrics:
    """Compare the outputs, (n, K), with the labels, (n,)."""
    labels = logits.shape[1]
    predicted = logits.argmax(axis=1)
    confusion = np.bincount(y * labels + predicted, minlength=labels * labels).reshape(labels, labels)
    right, actual, claimed = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    occurs = actual > 0
    f1 = 2 * right[occurs] / (actual + claimed)[occurs]
    with np.errstate(invalid="ignore", over="ignore"):  # a model that is about to diverge has huge outputs
        loss = float(-log_softmax(logits)[np.arange(len(y)), y].mean()) if len(y) else math.nan
    auc = auc_and_error(y, logits) if labels == 2 else None
    return Metrics(
        accuracy=float(right.sum() / max(1, len(y))),
        macro_f1=float(f1.mean()) if f1.size else 0.0,
        per_label=tuple(float(r / n) if n else None for r, n in zip(right, actual, strict=True)),
        balanced_accuracy=float((right[occurs] / actual[occurs]).mean()) if occurs.any() else None,
        log_loss=loss if math.isfinite(loss) else None,
        auc=None if auc is None else auc.value,
    )


def held_out_metrics(y: Indices, logits: Vector, target: Vector) -> HeldOutMetrics:
    """Estimate what a model is worth in the target from samples that clients held out, of all of them together."""
    tally = Tally.of(y, logits)
    accuracy, loss = target_accuracy(tally, target), target_loss(tally, target)
    recalls = target_recalls(tally)
    wanted = [recall for recall, share in zip(recalls, target, strict=True) if share > 0 and recall is not None]
    errors = [recall.standard_error for recall in wanted]
    balanced = Estimated(
        float(np.mean([recall.value for recall in wanted])),
        _finite(math.sqrt(sum(error**2 for error in errors)) / len(wanted)),
    )
    return HeldOutMetrics(
        accuracy=float(tally.correct.sum() / tally.samples.sum()),
        target_accuracy=accuracy.value,
        standard_error=_finite(accuracy.standard_error),
        log_loss=_estimated(loss) if math.isfinite(loss.value) else None,
        balanced_accuracy=balanced,
        auc=auc_and_error(y, logits) if logits.shape[1] == 2 else None,
        per_label=tuple(None if recall is None else _estimated(recall) for recall in recalls),
    )


def auc_and_error(y: Indices, logits: Vector) -> Estimated | None:
    """Return the area under the ROC curve of two labels, with DeLong's standard error; None where one is absent."""
    with np.errstate(invalid="ignore"):
        scores = logits[:, 1] - logits[:, 0]
    positive, negative = scores[y == 1], scores[y == 0]
    if not (positive.size and negative.size) or np.isnan(scores).any():
        return None
    m, n = positive.size, negative.size
    ranks = scipy.stats.rankdata(np.concatenate([positive, negative]))
    above = (ranks[:m] - scipy.stats.rankdata(positive)) / n  # share of negatives below each positive, ties by half
    below = 1.0 - (ranks[m:] - scipy.stats.rankdata(negative)) / m
    variance = _variance(above) / m + _variance(below) / n
    return Estimated(float(above.mean()), _finite(math.sqrt(variance)))


def _variance(values: npt.NDArray[np.float64]) -> float:
    return float(values.var(ddof=1)) if values.size > 1 else math.nan


def _estimated(estimate: Estimate) -> Estimated:
    return Estimated(estimate.value, _finite(estimate.standard_error))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
