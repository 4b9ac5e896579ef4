"""A federation: what a partition makes of a data set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedpals.data.dataset import Dataset, Indices
from fedpals.data.partitions import held_out
from fedpals.errors import InputError
from fedpals.labels import LabelCounts, Vector
from fedpals.rng import generator
from fedpals.weights import Projection, coverage


@dataclass(frozen=True, eq=False)
class Federation:
    """The clients' data, the target's validation and test data, and T; all by index."""

    dataset: Dataset
    clients: tuple[Indices, ...]
    """M index arrays into the data set, of the clients to train on."""
    validation: Indices
    """To select models with; disjoint from every client and from ``test``."""
    test: Indices
    """To report with; disjoint from everything else."""
    target: Vector
    """T, K probabilities."""
    held_out: tuple[Indices, ...] = ()
    """What each client keeps out of training, to report on; nothing unless asked for."""

    def __post_init__(self) -> None:
        everything = np.concatenate([*self.clients, *self.held_out, self.validation, self.test])
        uses = np.bincount(everything, minlength=1)
        if uses.max() > 1:
            raise InputError(
                f"sample {int(uses.argmax())} is used {uses.max()} times; clients, validation and test must not overlap"
            )

    def holding_out(self, share: float, seed: int) -> Federation:
        """Let every client keep a random ``share`` of each of its labels, rounded down, out of training."""
        parts = [
            held_out(self.dataset.y, indices, share, generator(seed, "held out", i))
            for i, indices in enumerate(self.clients)
        ]
        return replace(self, clients=tuple(rest for rest, _ in parts), held_out=tuple(held for _, held in parts))

    @cached_property
    def table(self) -> Indices:
        """The M×K label counts of the clients, as plain integers."""
        clients, labels = len(self.clients), len(self.dataset.labels)
        owner = np.repeat(np.arange(clients), [indices.size for indices in self.clients])
        cell = owner * labels + self.dataset.y[np.concatenate(self.clients)]
        return np.bincount(cell, minlength=clients * labels).reshape(clients, labels)

    @cached_property
    def counts(self) -> LabelCounts:
        """The label counts, checked: what the server knows of the clients."""
        return LabelCounts.of(self.table, labels=self.dataset.labels)

    @cached_property
    def coverage(self) -> Projection:
        """Whether some weighting of the clients reproduces T, or how far T is from their hull."""
        return coverage(self.counts, self.target)
