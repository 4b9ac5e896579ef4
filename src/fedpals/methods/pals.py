"""FedPALS: weights whose label mix follows the target at a high effective sample size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpals.data import Indices
from fedpals.labels import LabelCounts, Vector
from fedpals.methods.weighting import BySize
from fedpals.weights import solve


@dataclass(frozen=True)
class Pals(BySize):
    """α = argmin ‖T − Σ α_i S_i‖² + λ Σ α_i²/n_i over the participants of the round."""

    name: ClassVar[str] = "pals"
    lam: float | None = None
    """λ; give this or ``ess``."""
    ess: float | None = None
    """The effective sample size to keep instead, as a fraction of the participants' samples."""

    def weigh(self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None) -> Vector:
        """Solve the paper's equation for the participants."""
        del state
        return solve(counts.subset(participants), target, lam=self.lam, ess=self.ess).alpha
