"""Client rules that add an offset per label to the logits, which depends on the client's label counts only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpals.methods.rule import ClientRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LogitOffset(ClientRule, ABC):
    """Trains with logits + offset."""

    @abstractmethod
    def offset(self, counts: Tensor) -> Tensor:
        """Return what is added to each label's logit, (K,), for a client's label ``counts``."""

    def adjust_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        """Add the offset."""
        return logits + self.offset(counts)

    def logit_map(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factor 1 and the offset."""
        offset = self.offset(counts)
        return offset.new_ones(offset.shape), offset
