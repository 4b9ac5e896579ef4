"""AFL: the mixture of clients that is worst for the model gets the weight (Mohri et al., 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpals.labels import Indices, LabelCounts, Vector
from fedpals.methods.option import option
from fedpals.methods.weighting import Weighting


@dataclass(frozen=True)
class Agnostic(Weighting):
    """min over w, max over the simplex of Σ q_i f_i(w): projected gradient ascent on the mixture q."""

    name: ClassVar[str] = "agnostic"
    needs_losses: ClassVar[bool] = True
    mixture_step: float = option(0.1, "Step size of AFL's mixture", gt=0, lt=math.inf)

    def start(self, counts: LabelCounts) -> Vector | None:
        """q = n/N."""
        return np.asarray(counts.sizes / counts.total)

    def weigh(self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None) -> Vector:
        """q over the participants; by size where they have no share of q at all."""
        del target
        share = counts.sizes[participants] if state is None or not state[participants].any() else state[participants]
        return np.asarray(share / share.sum())

    def learn(self, state: Vector | None, participants: Indices, losses: Vector) -> Vector | None:
        """q ← projection onto the simplex of q + step·losses."""
        assert state is not None
        moved = state.copy()
        moved[participants] += self.mixture_step * losses
        return project_to_simplex(moved)


def project_to_simplex(point: Vector) -> Vector:
    """Return the point of the simplex closest to ``point``: max(point − θ, 0) for the θ that makes it sum to 1.

    >>> project_to_simplex(np.array([0.9, 0.5, -1.0])).round(3).tolist()
    [0.7, 0.3, 0.0]
    """
    descending = np.sort(point)[::-1]
    thresholds = (np.cumsum(descending) - 1.0) / np.arange(1, point.size + 1)
    active = int(np.count_nonzero(descending > thresholds))
    return np.asarray(np.maximum(point - thresholds[active - 1], 0.0))
