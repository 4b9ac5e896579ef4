"""Tallies: sums by label of one model's losses and predictions on samples that a client held out.

Target risk, the test of label shift and the estimate of T are all computed from tallies. They reveal
no single sample, and can be added: the tally of two clients together is the sum of their tallies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError
from fedpals.labels import Vector
from fedpals.shift.softmax import log_softmax

Counts: TypeAlias = npt.NDArray[np.int64]

_ROUNDING = 1e-6
"""Relative tolerance when sums of losses are checked against each other; they may be added in single precision."""


@dataclass(frozen=True, eq=False)
class Tally:
    """Losses and predictions of one model, summed by true label over K labels.

    Raises
    ------
    InputError
        For shapes that do not fit, counts that are not whole numbers ≥ 0, and sums of losses that no
        samples can have; names field, label and value.
    """

    loss: Vector
    """(K,) sum of the losses of each label's samples; ∞ if the model gives probability 0 to a true label."""
    squared_loss: Vector
    """(K,) sum of the squared losses of each label's samples."""
    confusion: Counts
    """(K, K) number of samples by true label (row) and predicted label (column)."""

    def __post_init__(self) -> None:
        confusion = np.asarray(self.confusion)
        if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1] or confusion.size == 0:
            raise InputError(f"confusion has shape {confusion.shape}; it must be K×K, true × predicted label")
        if confusion.dtype.kind not in "bui":
            raise InputError(f"confusion is {confusion.dtype}; it must hold whole numbers of samples")
        if confusion.min() < 0:
            y, predicted = divmod(int(confusion.argmin()), len(confusion))
            raise InputError(
                f"confusion: label {y} predicted as {predicted}: {confusion.min()} samples; it must be ≥ 0"
            )
        object.__setattr__(self, "confusion", confusion.astype(np.int64))
        for name in ("loss", "squared_loss"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.shape != confusion.shape[:1]:
                raise InputError(f"{name} has shape {values.shape}; it must be ({len(confusion)},), one sum per label")
            invalid = ~(values >= 0) | ((values > 0) & (self.samples == 0))
            if invalid.any():
                y = int(invalid.argmax())
                raise InputError(
                    f"{name}: label {y}: {values[y]:g} over {self.samples[y]} samples; a sum of losses is ≥ 0, and 0 "
                    "where there are no samples"
                )
            object.__setattr__(self, name, values)
        with np.errstate(over="ignore"):
            lower_bound = np.square(self.loss) / np.maximum(self.samples, 1)
        if (too_small := ~(self.squared_loss >= lower_bound * (1 - _ROUNDING))).any():
            y = int(too_small.argmax())
            raise InputError(
                f"squared_loss: label {y}: {self.squared_loss[y]:g}, but {self.samples[y]} samples whose losses sum to "
                f"{self.loss[y]:g} have squared losses that sum to at least {lower_bound[y]:g}"
            )

    @classmethod
    def of(cls, y: npt.ArrayLike, logits: npt.ArrayLike) -> Self:
        """Tally n samples: true labels ``y`` (n,) against ``logits`` (n, K), with cross-entropy as the loss.

        A sample for which the model returns NaN counts with an infinite loss.

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
            losses = -log_softmax(scores)[np.arange(n), truth] if n else np.zeros(0)
            losses = np.where(np.isnan(losses), np.inf, np.maximum(losses, 0.0))
            squares = np.square(losses)
        return cls(
            np.bincount(truth, losses, labels).astype(np.float64),
            np.bincount(truth, squares, labels).astype(np.float64),
            np.bincount(truth * labels + scores.argmax(axis=1), minlength=labels * labels).reshape(labels, labels),
        )

    @property
    def samples(self) -> Counts:
        """(K,) number of samples of each label."""
        return np.asarray(self.confusion.sum(axis=1))

    @property
    def correct(self) -> Counts:
        """(K,) number of samples of each label that are predicted correctly."""
        return np.diag(self.confusion)

    def __add__(self, other: Tally) -> Tally:
        if self.confusion.shape != other.confusion.shape:
            raise InputError(
                f"tallies of {len(self.loss)} and of {len(other.loss)} labels cannot be added; all clients must use "
                "the same labels"
            )
        return Tally(self.loss + other.loss, self.squared_loss + other.squared_loss, self.confusion + other.confusion)

    def to_json(self) -> dict[str, Any]:
        """Return plain numbers and lists; the nonzero confusions as [true, predicted, samples]."""
        y, predicted = np.nonzero(self.confusion)
        return {
            "labels": len(self.loss),
            "loss": _finite_or_none(self.loss),
            "squared_loss": _finite_or_none(self.squared_loss),
            "confusion": np.column_stack([y, predicted, self.confusion[y, predicted]]).tolist(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the tally that `to_json` was called on."""
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
    """Replace infinite values by None: JSON has no ∞."""
    return [float(v) if np.isfinite(v) else None for v in values]
