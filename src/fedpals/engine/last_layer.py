"""The last layer made for the target, from what clients tell of their features; the same on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import TypeAlias

import numpy as np

from fedpals.engine.client import Client
from fedpals.engine.flat_model import FlatModel
from fedpals.engine.server import Server
from fedpals.labels import Vector
from fedpals.rng import generator
from fedpals.shift import (
    FeatureSums,
    Head,
    HeldOutFeatures,
    ccvr_head,
    fed3r_head,
    fedcgs_head,
    fedcof_head,
    gaussian_head,
    recommended,
)
from fedpals.shift.evaluation import Correction

Layer: TypeAlias = Callable[[Vector], Vector]
"""Map of features, (n, d), to logits, (n, K)."""
_FROM_SUMS: dict[Correction, Callable[[Sequence[FeatureSums], Vector], Layer]] = {
    Correction.FEDCGS: fedcgs_head,
    Correction.FED3R: fed3r_head,
    Correction.FEDCOF: fedcof_head,
}


def gaussian_layer(sums: Sequence[FeatureSums], server: Server) -> Head:
    """Return the Gaussian head for the server's target."""
    return gaussian_head(sums, server.target)


def recommended_layer(own: Head, gaussian: Head, held_out: Sequence[HeldOutFeatures], server: Server) -> Head:
    """Return the network's own last layer and the Gaussian head, both calibrated for the target, joined.

    ``held_out`` are the clients' samples to calibrate with, in the order of the clients.
    """
    pooled = HeldOutFeatures(
        np.concatenate([told.features for told in held_out]), np.concatenate([told.labels for told in held_out])
    )
    counts = np.asarray(server.counts.table.sum(axis=0)).reshape(-1)
    return recommended(own, gaussian, pooled, counts, server.target, server.prior_shift)


def rival_layer(
    correction: Correction, clients: Sequence[Client], model: FlatModel, server: Server, *, seed: int
) -> Layer:
    """Return the last layer of other authors for the server's target, from the clients' samples to train with.

    CCVR's virtual features are drawn at the address ("virtual features",).
    """
    if correction in _FROM_SUMS:
        return _FROM_SUMS[correction]([client.feature_sums(model) for client in clients], server.target)
    told = [client.training_features(model) for client in clients]

    def sums_by_label() -> Iterator[FeatureSums]:  # one label at a time, because products are large
        K = server.target.size
        for label in range(K):
            yield reduce(add, (FeatureSums.of(features[y == label], y[y == label], K) for features, y in told))

    return ccvr_head(sums_by_label(), server.target, generator(seed, "virtual features"))
