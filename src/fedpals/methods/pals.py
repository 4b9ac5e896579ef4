"""FedPALS: weights whose label mix follows the target at a high effective sample size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpals.data import Indices
from fedpals.errors import InputError
from fedpals.labels import LabelCounts, Vector
from fedpals.methods.option import option
from fedpals.methods.weighting import BySize
from fedpals.weights import solve


@dataclass(frozen=True)
class Pals(BySize):
    """α = argmin ‖T − Σ α_i S_i‖² + λ Σ α_i²/n_i over the participants of the round."""

    name: ClassVar[str] = "pals"
    lam: float | None = option(None, "λ of FedPALS", symbol="λ", ge=0)
    ess: float | None = option(
        None, "Effective sample size of FedPALS instead of λ; 0.5 where neither is given", symbol="ESS", gt=0, le=1
    )
    """As a fraction of the participants' samples."""

    def __post_init__(self) -> None:
        if self.lam is not None and self.ess is not None:
            raise InputError("lam and ess are two ways to say the same: give one of them")
        if self.lam is None and self.ess is None:
            object.__setattr__(self, "ess", 0.5)

    def weigh(self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None) -> Vector:
        """Solve the paper's equation for the participants."""
        del state
        return solve(counts.subset(participants), target, lam=self.lam, ess=self.ess).alpha
