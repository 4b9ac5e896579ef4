"""How the server weighs the clients' updates: all that FedPALS changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedpals.data import Indices
from fedpals.labels import LabelCounts, Vector


class Weighting(Protocol):
    """Weights for the participants of a round, from label counts, the target and perhaps a state."""

    name: ClassVar[str]
    needs_losses: ClassVar[bool]
    """Whether every participant must report the loss of the global parameters, even at weight 0."""

    def start(self, counts: LabelCounts) -> Vector | None:
        """Return the state before the first round; None where there is none."""

    def weigh(self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None) -> Vector:
        """Return weights on the simplex for ``participants``, in their order."""

    def learn(self, state: Vector | None, participants: Indices, losses: Vector) -> Vector | None:
        """Return the state after a round in which the global parameters had ``losses`` at ``participants``."""


@dataclass(frozen=True)
class BySize:
    """FedAvg: α_i = n_i/N."""

    name: ClassVar[str] = "by_size"
    needs_losses: ClassVar[bool] = False

    def start(self, counts: LabelCounts) -> Vector | None:
        """No state."""
        del counts
        return None

    def weigh(self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None) -> Vector:
        """n_i/N over the participants."""
        del target, state
        sizes = counts.sizes[participants]
        return np.asarray(sizes / sizes.sum())

    def learn(self, state: Vector | None, participants: Indices, losses: Vector) -> Vector | None:
        """No state."""
        del participants, losses
        return state
