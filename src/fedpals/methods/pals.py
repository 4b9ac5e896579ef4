"""FedPALS: weights whose label mix follows the target at a high effective sample size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field

from fedpals.errors import InputError
from fedpals.labels import Indices, LabelCounts, Vector
from fedpals.methods.option import option
from fedpals.methods.weighting import Weighting
from fedpals.weights import ess_grid, solve
from fedpals.weights.cap import check_cap
from fedpals.weights.uncertainty import WeightUncertainty, weight_uncertainty

Ess: TypeAlias = Annotated[float, Field(gt=0, le=1)] | Literal["auto"]
DEFAULT_ESS = 0.5
"""Where none is given or chosen; no other had a better mean in what was tried."""
_CANDIDATES = 4
"""Weights that auto chooses from, from λ → 0⁺ to FedAvg."""
_FEDAVG_ESS = 0.999
"""ESS of λ → 0⁺ above which all weights are practically FedAvg's."""


@dataclass(frozen=True)
class Pals(Weighting):
    """α = argmin ‖T − Σ α_i S_i‖² + λ Σ α_i²/n_i over the participants of the round."""

    name: ClassVar[str] = "pals"
    needs_target: ClassVar[bool] = True
    lam: float | None = option(None, "λ of FedPALS; what ess leads to unless given", symbol="λ", ge=0)
    ess: Ess | None = option(  # noqa: RUF009 -- a field, as all options
        None,
        "Effective sample size of FedPALS instead of λ, or auto: chosen while training on samples that clients hold "
        "out; where neither is given, auto if clients hold samples out, else 0.5",
        symbol="ESS",
    )
    """As a fraction of the participants' samples."""
    max_weight: float | None = option(
        None, "Largest weight of a client in FedPALS's weights; no limit unless given", symbol="max α", gt=0, le=1
    )
    """Where fewer than 1/max_weight clients are left in a round, they get equal weights."""

    def __post_init__(self) -> None:
        if self.lam is not None and self.ess is not None:
            raise InputError("lam and ess are two ways to say the same: give one of them")
        if self.lam is None and self.ess is None:
            object.__setattr__(self, "ess", DEFAULT_ESS)

    def weigh(self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None) -> Vector:
        """Solve the paper's equation for the participants; FedAvg's weights as long as nothing is chosen."""
        del state
        ess, some = 1.0 if self.ess == "auto" else self.ess, counts.subset(participants)
        return solve(some, target, lam=self.lam, ess=ess, max_weight=self._cap(some)).alpha

    def check(self, clients: int) -> None:
        """Raise `InputError` if not even equal weights are below ``max_weight``."""
        if self.max_weight is not None:
            check_cap(self.max_weight, clients)

    def largest_weight(self, clients: int) -> float | None:
        """Return ``max_weight``; or 1/clients, if so few are left in a round that weights cannot be smaller."""
        return None if self.max_weight is None else max(self.max_weight, 1.0 / clients)

    def _cap(self, counts: LabelCounts) -> float | None:
        return self.largest_weight(int(np.count_nonzero(counts.sizes)))

    @property
    def chooses(self) -> bool:
        """Whether the ESS is chosen while training."""
        return self.ess == "auto"

    def candidates(
        self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None
    ) -> Sequence[Vector]:
        """Return weights at equally spaced ESS, from that of λ → 0⁺ to FedAvg's; FedAvg's only if there is no other."""
        if not self.chooses:
            return super().candidates(counts, target, participants, state)
        some = counts.subset(participants)
        cap = self._cap(some)
        lowest, fedavg = (solve(some, target, lam=lam, max_weight=cap) for lam in (0.0, math.inf))
        if lowest.ess > _FEDAVG_ESS * fedavg.ess:  # which a cap makes smaller than 1
            return [fedavg.alpha]
        between = ess_grid(some, target, _CANDIDATES - 2, max_weight=cap)
        return [w.alpha for w in (lowest, *between, fedavg)]

    def uncertainty(self, counts: LabelCounts, target: Vector, epsilon: float, seed: int) -> WeightUncertainty | None:
        """Repeat the noise and solve again; unknown where the ESS is chosen from round to round."""
        if self.ess == "auto":
            return None
        return weight_uncertainty(counts, target, epsilon, seed, lam=self.lam, ess=self.ess, max_weight=self.max_weight)
