"""FedRS: labels that a client lacks do not push its classifier away from them (Li and Zhan, 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedpals.methods.option import option
from fedpals.methods.rule import ClientRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RestrictedSoftmax(ClientRule):
    """Scales the logits of labels that the client does not have."""

    name: ClassVar[str] = "restricted_softmax"
    absent_factor: float = option(0.5, "Factor of FedRS on absent labels' logits", ge=0, le=1)
    """1 is the plain softmax, with 0 their weights do not move at all."""

    def adjust_logits(self, logits: Tensor, marginal: Tensor) -> Tensor:
        """Multiply the logits of absent labels by the factor."""
        return logits * self._factor(marginal)

    def logit_map(self, marginal: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factor and the offset 0."""
        return self._factor(marginal), marginal.new_zeros(marginal.shape)

    def _factor(self, marginal: Tensor) -> Tensor:
        return (marginal > 0).float().clamp(min=self.absent_factor)
