"""Logit adjustment: clients learn what labels look like, not how frequent they happen to be with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedpals.labels import Vector
from fedpals.methods.option import option
from fedpals.methods.rule import ClientRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LogitAdjusted(ClientRule):
    """Trains with logits + τ log S_i(y), so that the logits themselves approach log p(x|y) + const at τ = 1.

    A client needs only its own marginal, and all clients pull the model towards the same function.
    The server's prior correction then adds log T, whatever the mix of labels was. A label that the
    client lacks gets a small marginal instead of 0: at 0 nothing would ever tell it from the others.
    """

    name: ClassVar[str] = "logit_adjusted"
    adjustment: float = option(1.0, "How much of its own marginal logit_adjusted takes out of the model", ge=0, le=1)
    """τ: 1 takes the client's marginal out altogether, 0 is plain training."""
    label_floor: float = option(0.01, "Marginal that logit_adjusted assumes for labels a client lacks", gt=0, le=1)

    def adjust_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        """Add τ log S_i."""
        return logits + self._offset(counts)

    def logit_map(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factor 1 and the offset τ log S_i."""
        offset = self._offset(counts)
        return offset.new_ones(offset.shape), offset

    def _offset(self, counts: Tensor) -> Tensor:
        marginal = counts / counts.sum()
        return self.adjustment * marginal.clamp(min=self.label_floor).log()

    def learned_prior(self, mix: Vector) -> Vector:
        """p_α(y)^(1 − τ): uniform at τ = 1 over the labels that anybody has."""
        return np.where(mix > 0, mix ** (1.0 - self.adjustment), 0.0)
