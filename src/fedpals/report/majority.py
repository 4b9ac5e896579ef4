"""What always predicting the target's most frequent label would score: a model that is no better has learned little."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedpals.engine.recorded import ServerView

_STANDARD_ERRORS = 2.0
"""By how many a score must be above the constant guess to count as better."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Majority:
    """The target's most frequent label."""

    label: str
    share: float
    """Its share of the target: the accuracy of always predicting it."""
    labels: int
    """Number of labels that the target has; the balanced accuracy of the guess is one by it."""

    @classmethod
    def of(cls, view: ServerView) -> Majority:
        """Read it from what the server knows; the exact T where there is one."""
        target = view.exact_target or view.target
        share = max(target)
        return cls(view.labels[target.index(share)], share, sum(value > 0 for value in target))

    @property
    def sentence(self) -> str:
        """What the guess would score."""
        return (
            f"Always predicting {self.label!r}, the target's most frequent label, would have an accuracy of "
            f"{100 * self.share:.1f} and a balanced accuracy of {100 / self.labels:.1f}."
        )

    def beaten_by(self, score: float, error: float | None) -> bool:
        """Return whether an accuracy is above the guess by two standard errors; without one, whether it is above."""
        return score > self.share + _STANDARD_ERRORS * (error or 0.0) + _ROUNDING

    def warning(self, models: Sequence[str]) -> str:
        """Say which models are no better than the guess."""
        return f"No better than always predicting {self.label!r} (by two standard errors): {'; '.join(models)}."


def typical_error(errors: Iterable[float | None]) -> float | None:
    """Return the root mean square of the standard errors that are known; None where none is."""
    known = [error for error in errors if error is not None]
    return math.sqrt(sum(error * error for error in known) / len(known)) if known else None


def sampling_error(accuracy: float, samples: int) -> float | None:
    """Return the standard error of an accuracy on test samples; None where their number is not known."""
    return math.sqrt(accuracy * (1.0 - accuracy) / samples) if samples else None
