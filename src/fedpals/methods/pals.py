"""FedPALS: weights whose label mix follows the target at a high effective sample size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpals.errors import InputError
from fedpals.labels import Indices, LabelCounts, Vector
from fedpals.methods.option import option
from fedpals.methods.weighting import Weighting
from fedpals.weights import solve
from fedpals.weights.uncertainty import WeightUncertainty, weight_uncertainty


@dataclass(frozen=True)
class Pals(Weighting):
    """α = argmin ‖T − Σ α_i S_i‖² + λ Σ α_i²/n_i over the participants of the round."""

    name: ClassVar[str] = "pals"
    needs_target: ClassVar[bool] = True
    lam: float | None = option(None, "λ of FedPALS; what ess leads to unless given", symbol="λ", ge=0)
    ess: float | None = option(
        None, "Effective sample size of FedPALS instead of λ; 0.5 where neither is given", symbol="ESS", gt=0, le=1
    )
    """As a fraction of the participants' samples."""
    max_weight: float | None = option(
        None, "Largest weight of a client in FedPALS's weights; no limit unless given", symbol="max α", gt=0, le=1
    )

    def __post_init__(self) -> None:
        if self.lam is not None and self.ess is not None:
            raise InputError("lam and ess are two ways to say the same: give one of them")
        if self.lam is None and self.ess is None:
            object.__setattr__(self, "ess", 0.5)

    def weigh(self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None) -> Vector:
        """Solve the paper's equation for the participants."""
        del state
        return solve(counts.subset(participants), target, lam=self.lam, ess=self.ess, max_weight=self.max_weight).alpha

    def uncertainty(self, counts: LabelCounts, target: Vector, epsilon: float, seed: int) -> WeightUncertainty:
        """Repeat the noise and solve again."""
        return weight_uncertainty(counts, target, epsilon, seed, lam=self.lam, ess=self.ess, max_weight=self.max_weight)
