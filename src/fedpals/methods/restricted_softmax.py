"""FedRS: labels that a client lacks do not push its classifier away from them (Li and Zhan, 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedpals.training import ClientRule


@dataclass(frozen=True)
class RestrictedSoftmax(ClientRule):
    """Scales the logits of labels that the client does not have."""

    name: ClassVar[str] = "restricted_softmax"
    absent_factor: float = 0.5
    """Factor of absent labels' logits: 1 is the plain softmax, with 0 their weights do not move at all."""

    def adjust_logits(self, logits: Tensor, marginal: Tensor) -> Tensor:
        """Multiply the logits of absent labels by the factor."""
        return logits * torch.where(marginal > 0, 1.0, self.absent_factor)
