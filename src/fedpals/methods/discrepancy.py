"""FedDisco: weights by size, less for clients whose labels are far from a reference (Ye et al., 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpals.labels import Indices, LabelCounts, Vector
from fedpals.methods.option import option
from fedpals.methods.weighting import Weighting


@dataclass(frozen=True)
class Discrepancy(Weighting):
    """α_i ∝ max(n_i/N − a·d_i + b, 0) with d_i = ‖S_i − T‖ / Σ_j ‖S_j − T‖; by size where all of these are 0.

    The authors' reference is the uniform marginal, here it is T. Their distance, the Kullback–Leibler divergence, is
    infinite wherever a client has a label that the target lacks, so this is the other one that they name, the
    Euclidean; over its sum, as theirs in the program that they released. Where all M clients have one marginal, these
    are FedAvg's weights if b = a/M, or b = 0 where the marginal is T, or if the clients have one size; else b − a/M
    pulls the weights together, or apart where it is negative.
    """

    name: ClassVar[str] = "discrepancy"
    needs_target: ClassVar[bool] = True
    discrepancy_weight: float = option(0.5, "a of FedDisco: what distance to T costs a client", ge=0, lt=math.inf)
    discrepancy_offset: float = option(0.1, "b of FedDisco: what every client gets on top", ge=0, lt=math.inf)

    def weigh(self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None) -> Vector:
        """n_i/N and d_i are those of the participants."""
        share = super().weigh(counts, target, participants, state)
        distance = np.linalg.norm(counts.subset(participants).marginals - target, axis=1)
        d = distance / max(float(distance.sum()), np.finfo(np.float64).tiny)
        weights = np.maximum(share - self.discrepancy_weight * d + self.discrepancy_offset, 0.0)
        return np.asarray(weights / weights.sum()) if weights.any() else share
