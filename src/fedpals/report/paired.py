"""Paired differences: how a method differs from a baseline on the same seeds, and whether that is more than chance.

Runs with the same seed share clients, target and test samples, so their difference varies much less than their metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

Verdict: TypeAlias = Literal["better", "equal", "worse", ""]

_STANDARD_ERRORS = 2.0
"""Smallest difference, in standard errors, that is not called equal."""


@dataclass(frozen=True)
class Paired:
    """Mean of the differences to a baseline over the seeds that both have."""

    difference: float
    error: float | None
    """Standard error of ``difference``; None with one seed."""
    seeds: int

    @classmethod
    def of(cls, own: Mapping[int, float], baseline: Mapping[int, float]) -> Paired | None:
        """Compare values by seed; None if no seed has both.

        >>> Paired.of({0: 0.5, 1: 0.75}, {0: 0.25, 1: 0.5, 2: 1.0})
        Paired(difference=0.25, error=0.0, seeds=2)
        """
        differences = [own[seed] - baseline[seed] for seed in own if seed in baseline]
        if not differences:
            return None
        error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else None
        return cls(float(np.mean(differences)), error, len(differences))

    def verdict(self, *, lower_is_better: bool = False) -> Verdict:
        """Return whether the method is better or worse than the baseline by more than two standard errors.

        Without a standard error there is no verdict.

        >>> [Paired(difference, 0.01, 8).verdict() for difference in (0.03, -0.015, -0.03)]
        ['better', 'equal', 'worse']
        """
        if self.error is None:
            return ""
        if abs(self.difference) <= _STANDARD_ERRORS * self.error:
            return "equal"
        return "better" if (self.difference > 0) != lower_is_better else "worse"

    def text(self, scale: float = 100.0, digits: int = 1) -> str:
        """Return the difference ± its standard error, in % unless another scale is given.

        >>> Paired(0.0123, 0.004, 8).text()
        '+1.2 ± 0.4'
        """
        error = "" if self.error is None else f" ± {scale * self.error:.{digits}f}"
        return f"{scale * self.difference:+.{digits}f}{error}"

    def __str__(self) -> str:
        return f"{self.text()} {self.verdict()}".rstrip()
