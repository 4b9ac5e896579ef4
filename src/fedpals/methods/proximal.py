"""FedProx: a client that strays from the global parameters is pulled back (Li et al., 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedpals.methods.option import option
from fedpals.methods.rule import ClientRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Proximal(ClientRule):
    """Adds μ/2 ‖w − w_t‖², squared, to the client's loss."""

    name: ClassVar[str] = "proximal"
    proximal_weight: float = option(0.01, "μ of FedProx", ge=0, lt=math.inf)

    def adjust_gradient(self, gradient: Tensor, vector: Tensor, start: Tensor, correction: Tensor | None) -> None:
        """∇ += μ (w − w_t)."""
        del correction
        gradient.add_(vector - start, alpha=self.proximal_weight)
