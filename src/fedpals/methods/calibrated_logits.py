"""FedLC: margins that grow as a client has fewer samples of a label (Zhang et al., 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedpals.methods.logit_offset import LogitOffset
from fedpals.methods.option import option

if TYPE_CHECKING:
    from torch import Tensor

_ABSENT = 1e-8
"""Samples that a client is taken to have of a label that it lacks: an offset of −100 τ, which rules the label out."""


@dataclass(frozen=True)
class CalibratedLogits(LogitOffset):
    """Trains with logits − τ·n_c^(−1/4), where n_c is the client's number of samples of a label.

    The prior correction takes p_α for what the model has built in, as after plain training; margins are not in it.
    """

    name: ClassVar[str] = "calibrated_logits"
    calibration: float = option(1.0, "τ of FedLC: how much margin rare labels get", ge=0, lt=math.inf)
    """0 is plain training."""

    def offset(self, counts: Tensor) -> Tensor:
        """Return −τ·n_c^(−1/4)."""
        return -self.calibration * counts.float().clamp(min=_ABSENT) ** -0.25
