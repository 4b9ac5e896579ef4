"""How the server weighs the clients' updates: all that FedPALS changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpals.labels import Indices, LabelCounts, Vector
from fedpals.weights.uncertainty import WeightUncertainty


@dataclass(frozen=True)
class Weighting:
    """How the server weighs updates: by size, α_i = n_i/N, as FedAvg does. Others override the hooks they need.

    Some weightings keep a vector from round to round (AFL's mixture); one that keeps none returns None for it.
    """

    name: ClassVar[str] = "by_size"
    needs_target: ClassVar[bool] = False
    """Whether weights depend on the target's label marginal T."""
    needs_losses: ClassVar[bool] = False
    """Whether every participant must report the loss of the global parameters, even at weight 0."""

    def check(self, clients: int) -> None:
        """Raise `InputError` if ``clients`` with samples, as many as are to take part in a round, are too few."""
        del clients

    def largest_weight(self, clients: int) -> float | None:
        """Return the limit on every weight among ``clients`` with samples; None if there is none."""
        del clients
        return None

    @property
    def chooses(self) -> bool:
        """Whether there may be several candidates, for which clients must hold samples out."""
        return False

    def start(self, counts: LabelCounts) -> Vector | None:
        """Return the state before the first round."""
        del counts
        return None

    def weigh(self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None) -> Vector:
        """Return weights on the simplex for ``participants``, in their order."""
        del target, state
        sizes = counts.sizes[participants]
        return np.asarray(sizes / sizes.sum())

    def candidates(
        self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None
    ) -> Sequence[Vector]:
        """Return the weights to choose from, in ascending order of ESS; the clients' held-out samples choose."""
        return [self.weigh(counts, target, participants, state)]

    def learn(self, state: Vector | None, participants: Indices, losses: Vector) -> Vector | None:
        """Return the state after a round in which the global parameters had ``losses`` at ``participants``."""
        del participants, losses
        return state

    def uncertainty(self, counts: LabelCounts, target: Vector, epsilon: float, seed: int) -> WeightUncertainty | None:
        """Return how far weights may be off where ``counts`` carry noise of ``epsilon``; None where unknown."""
        del counts, target, epsilon, seed
        return None
