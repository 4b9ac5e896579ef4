"""Logit adjustment: clients learn what labels look like, not how frequent they happen to be with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedpals.labels import Vector
from fedpals.methods.logit_offset import LogitOffset
from fedpals.methods.option import option

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LogitAdjusted(LogitOffset):
    """Trains with logits + τ log S_i(y), so that the logits themselves approach log p(x|y) + const at τ = 1.

    A client needs only its own marginal, and all clients pull the model towards the same function.
    The server's prior correction then adds log T, whatever the mix of labels was. A label that the
    client lacks gets a small marginal instead of 0: at 0 nothing would ever tell it from the others.
    """

    name: ClassVar[str] = "logit_adjusted"
    adjustment: float = option(1.0, "How much of its own marginal logit_adjusted takes out of the model", ge=0, le=1)
    """τ: 1 takes the client's marginal out altogether, 0 is plain training."""
    label_floor: float = option(0.01, "Marginal that logit_adjusted assumes for labels a client lacks", gt=0, le=1)

    def offset(self, counts: Tensor) -> Tensor:
        """Return τ log S_i."""
        marginal = counts / counts.sum()
        return self.adjustment * marginal.clamp(min=self.label_floor).log()

    def learned_prior(self, mix: Vector) -> Vector:
        """p_α(y)^(1 − τ): uniform at τ = 1 over the labels that anybody has."""
        return np.where(mix > 0, mix ** (1.0 - self.adjustment), 0.0)
