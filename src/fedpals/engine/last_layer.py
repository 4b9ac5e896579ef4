"""The last layer made for the target, from what clients tell of their features; the same on every engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpals.engine.server import Server
from fedpals.shift import FeatureSums, Head, HeldOutFeatures, gaussian_head, recommended


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
