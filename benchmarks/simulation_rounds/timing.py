"""Seconds of rounds, theirs beside ours."""

from __future__ import annotations

from dataclasses import dataclass

Timing = tuple[float, float]
"""Seconds of a round: training and aggregation, evaluation."""


@dataclass(frozen=True)
class RoundPair:
    """A round of theirs and the round of ours that came next."""

    theirs: Timing
    ours: Timing
