"""A client as its site describes it: samples, network and training plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedpals.data.partitions import held_out
from fedpals.engine.client import Client
from fedpals.engine.flat_model import FlatModel
from fedpals.engine.plan import Plan
from fedpals.errors import InputError
from fedpals.rng import generator
from fedpals.shift import FeatureSums


@dataclass(frozen=True, eq=False)
class Trainee:
    """A client's samples, the network to train on them, and the training plan.

    With ``count_epsilon`` the server learns nothing about the labels but their noisy counts: the client then sends no
    tallies and no sums of features, which would be exact.
    """

    model: FlatModel
    x: Tensor
    y: Tensor
    labels: int
    """Number of labels, K."""
    plan: Plan = field(default_factory=Plan)
    number: int = 0
    """Number of this client; its random draws depend on it."""
    seed: int = 0
    held_out: float | None = None
    """Share of each label's samples, rounded down, to hold out of training and evaluate the global models on."""
    count_epsilon: float | None = None
    """ε of the noise added to the label counts before they are sent."""
    rounds: int | None = None
    """Number of rounds of the whole training; needed if the plan has a schedule."""

    def __post_init__(self) -> None:
        if self.held_out is not None and not 0 < self.held_out < 1:
            raise InputError(f"held_out is {self.held_out}; it must be between 0 and 1, for instance 0.1")
        if self.held_out is not None and self.count_epsilon is not None:
            raise InputError(
                "held_out and count_epsilon: tallies of held-out samples reveal how many there are of each label, "
                "which the noise should hide; give one of them"
            )

    @cached_property
    def client(self) -> Client:
        """The client as every engine trains it; its held-out samples are the simulator's for its seed and number."""
        if self.held_out is None:
            return Client(self.x, self.y, self.labels, self.number, self.seed)
        rng = generator(self.seed, "held out", self.number)
        parts = held_out(self.y.cpu().numpy(), np.arange(len(self.y)), self.held_out, rng)
        training, held = (torch.from_numpy(part).to(self.y.device) for part in parts)
        own = self.x[held], self.y[held]
        return Client(self.x[training], self.y[training], self.labels, self.number, self.seed, own)

    @property
    def counts(self) -> Sequence[int]:
        """Counts of the training samples by label, (K,)."""
        return torch.bincount(self.client.y, minlength=self.labels).tolist()

    def feature_sums(self) -> FeatureSums:
        """Add up the inputs of the network's last layer over the training samples."""
        if self.count_epsilon is not None:
            raise InputError("this client adds noise to its label counts; sums of features would reveal them exactly")
        return self.client.feature_sums(self.model)

    def load(self, state: Mapping[str, Tensor]) -> Tensor:
        """Put the global arrays, a state dict, into the network and return them as a vector."""
        self.model.network.load_state_dict(state)
        return self.model.vector.clone()
