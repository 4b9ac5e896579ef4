"""Seconds of rounds, theirs beside ours, by one clock.

Rounds that are computed in one process are measured by its CPU time, because others may use the machine meanwhile.
Where processes wait for each other, only the clock on the wall sees the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]
Timing = tuple[float, float]
"""Seconds of a round: training and aggregation, evaluation."""


@dataclass(frozen=True)
class RoundPair:
    """A round of theirs and the round of ours that came next."""

    theirs: Timing
    ours: Timing
