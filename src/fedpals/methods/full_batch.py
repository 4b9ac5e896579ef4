"""FedSGD: one gradient step on all of the client's samples (McMahan et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpals.methods.rule import ClientRule


@dataclass(frozen=True)
class FullBatch(ClientRule):
    """The setting of Proposition 1: with weights that cover T, a round is a gradient step on the target."""

    name: ClassVar[str] = "full_batch"
    full_batch: ClassVar[bool] = True
