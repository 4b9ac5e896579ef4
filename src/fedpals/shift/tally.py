"""What a client tells about one model on samples it held out: sums by label, and nothing about a single one.

Target risk, the test for label shift and the estimate of T are all computed from tallies. They add
up: the tally of two clients together is the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from fedpals.errors import InputError
from fedpals.labels import Vector

Counts: TypeAlias = npt.NDArray[np.int64]

_ROUNDING = 1e-6
"""How far sums of losses may contradict each other, relatively, when they were added in single precision."""


@dataclass(frozen=True, eq=False)
class Tally:
    """Losses and predictions of one model, summed by true label over K labels.

    Raises
    ------
    InputError
        Naming field, label and value, for shapes that do not fit, counts that are no whole numbers
        ≥ 0, and sums of losses that no samples can have.
    """

    loss: Vector
    """(K,) sum of the losses of each label's samples; ∞ where the model rules out a label that occurs."""
    squared_loss: Vector
    """(K,) sum of their squares."""
    confusion: Counts
    """(K, K) number of samples by true label (row) and predicted label (column)."""

    def __post_init__(self) -> None:
        confusion = np.asarray(self.confusion)
        if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1] or confusion.size == 0:
            raise InputError(f"confusion has shape {confusion.shape}; it must be K×K, true × predicted label")
        if confusion.dtype.kind not in "bui":
            raise InputError(f"confusion holds {confusion.dtype}; it must hold whole numbers of samples")
        if confusion.min() < 0:
            y, predicted = divmod(int(confusion.argmin()), len(confusion))
            raise InputError(
                f"confusion: label {y} predicted as {predicted}: {confusion.min()} samples; it must be ≥ 0"
            )
        object.__setattr__(self, "confusion", confusion.astype(np.int64))
        for name in ("loss", "squared_loss"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.shape != confusion.shape[:1]:
                raise InputError(f"{name} has shape {values.shape}; it must be ({len(confusion)},), a sum per label")
            wrong = ~(values >= 0) | ((values > 0) & (self.samples == 0))
            if wrong.any():
                y = int(wrong.argmax())
                raise InputError(
                    f"{name}: label {y}: {values[y]:g} over {self.samples[y]} samples; a sum of losses is ≥ 0, and 0 "
                    "where there are no samples"
                )
            object.__setattr__(self, name, values)
        with np.errstate(over="ignore"):
            least = np.square(self.loss) / np.maximum(self.samples, 1)
        if (short := ~(self.squared_loss >= least * (1 - _ROUNDING))).any():
            y = int(short.argmax())
            raise InputError(
                f"squared_loss: label {y}: {self.squared_loss[y]:g}, but {self.samples[y]} samples whose losses sum to "
                f"{self.loss[y]:g} have squares of {least[y]:g} at least"
            )

    @classmethod
    def of(cls, y: npt.ArrayLike, logits: npt.ArrayLike) -> Self:
        """Tally n samples: true labels ``y`` (n,) against ``logits`` (n, K), with cross-entropy as the loss.

        A sample for which the model yields no number (NaN) counts with an infinite loss.

        >>> Tally.of([0, 1, 1], [[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]).confusion.tolist()
        [[1, 0], [1, 1]]
        """
        truth, scores = np.asarray(y), np.asarray(logits, dtype=np.float64)
        if scores.ndim != 2 or truth.shape != scores.shape[:1]:
            raise InputError(
                f"logits have shape {scores.shape} for {truth.shape} labels; they must be n×K for n labels"
            )
        n, labels = scores.shape
        if n and (truth.dtype.kind not in "ui" or truth.min() < 0 or truth.max() >= labels):
            raise InputError(f"y must hold label numbers in 0…{labels - 1}, one per row of the logits")
        truth = truth.astype(np.int64)
        with np.errstate(invalid="ignore", over="ignore"):
            losses = -log_softmax(scores, axis=1)[np.arange(n), truth] if n else np.zeros(0)
            losses = np.where(np.isnan(losses), np.inf, np.maximum(losses, 0.0))
            squares = np.square(losses)
        return cls(
            np.bincount(truth, losses, labels).astype(np.float64),
            np.bincount(truth, squares, labels).astype(np.float64),
            np.bincount(truth * labels + scores.argmax(axis=1), minlength=labels * labels).reshape(labels, labels),
        )

    @property
    def samples(self) -> Counts:
        """(K,) samples of each label."""
        return np.asarray(self.confusion.sum(axis=1))

    @property
    def correct(self) -> Counts:
        """(K,) samples of each label that are recognised."""
        return np.diag(self.confusion)

    def __add__(self, other: Tally) -> Tally:
        if self.confusion.shape != other.confusion.shape:
            raise InputError(
                f"tallies of {len(self.loss)} and of {len(other.loss)} labels do not add up; all clients must use the "
                "same labels"
            )
        return Tally(self.loss + other.loss, self.squared_loss + other.squared_loss, self.confusion + other.confusion)

    def to_json(self) -> dict[str, Any]:
        """Return plain numbers and lists; the confusion as [true, predicted, samples] where there are any."""
        y, predicted = np.nonzero(self.confusion)
        return {
            "labels": len(self.loss),
            "loss": _finite_or_none(self.loss),
            "squared_loss": _finite_or_none(self.squared_loss),
            "confusion": np.column_stack([y, predicted, self.confusion[y, predicted]]).tolist(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a tally from what `to_json` returned."""
        try:
            labels = int(data["labels"])
            triples = np.array(data["confusion"], dtype=object).reshape(-1, 3)
            if any(type(n) is not int for n in triples.flat):
                raise InputError("tally: confusion must hold whole numbers: [true, predicted, samples]")
            y, predicted, samples = triples.astype(np.int64).T
            if triples.size and not (0 <= min(y.min(), predicted.min()) <= max(y.max(), predicted.max()) < labels):
                raise InputError(f"tally: confusion names a label outside 0…{labels - 1}")
            confusion = np.zeros((labels, labels), dtype=np.int64)
            np.add.at(confusion, (y, predicted), samples)
            losses = [
                np.array([np.inf if v is None else v for v in data[name]], dtype=np.float64)
                for name in ("loss", "squared_loss")
            ]
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"tally: {error!r}; it needs labels, loss, squared_loss and confusion, as Tally.to_json writes them"
            ) from None
        return cls(losses[0], losses[1], confusion)


def pooled(tallies: Sequence[Tally]) -> Tally:
    """Return the tally of all clients together."""
    if not tallies:
        raise InputError("no tallies: at least one client must evaluate the model on samples it held out")
    return reduce(add, tallies)


def _finite_or_none(values: Vector) -> list[float | None]:
    """JSON has no ∞."""
    return [float(v) if np.isfinite(v) else None for v in values]
