"""How a client trains in one round: the part of a run's configuration that clients need."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from pydantic import Field, model_validator

from fedpals.config import Settings, unset
from fedpals.errors import InputError

Optimizer: TypeAlias = Literal["sgd", "adam"]
Schedule: TypeAlias = Literal["linear", "cosine"]
Augmentation: TypeAlias = Literal["shift", "flip"]
"""shift: moved by up to 2 pixels each way; flip: that, and every other image mirrored left to right."""


class Plan(Settings):
    """How long and in which steps a client trains in one round; the optimiser is new each time."""

    epochs: int = Field(default=1, ge=1)
    """Local epochs E."""
    steps: int | None = Field(default=None, ge=1, json_schema_extra=unset("by epochs"))
    """Local steps instead of epochs, within or across epochs."""
    batch_size: int = Field(default=32, ge=1)
    """Samples of a local step."""
    optimizer: Optimizer = "sgd"
    """sgd or adam."""
    learning_rate: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Size of a local step."""
    momentum: float | None = Field(default=None, gt=0, lt=1, json_schema_extra=unset("none"))
    """Momentum of sgd, from step to step within a round."""
    weight_decay: float | None = Field(default=None, ge=0, allow_inf_nan=False, json_schema_extra=unset("none"))
    """Share of the parameters that is added to every gradient."""
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False, json_schema_extra=unset("no clipping"))
    """Largest norm of a gradient; longer ones are shortened to it."""
    schedule: Schedule | None = Field(default=None, json_schema_extra=unset("constant"))
    """How the learning rate falls over the rounds: linear or cosine, to 0 after the last."""
    augment: Augmentation | None = Field(default=None, json_schema_extra=unset("no change"))
    """Change images at random in every epoch: shift moves them by up to 2 pixels, flip also mirrors them."""

    @model_validator(mode="after")
    def _momentum_is_of_sgd(self) -> Plan:
        if self.momentum is not None and self.optimizer != "sgd":
            raise InputError(f"momentum is {self.momentum}, which {self.optimizer} does not use; leave it out")
        return self

    def at(self, round_number: int, rounds: int | None) -> Plan:
        """Return the plan of a round out of so many: its learning rate follows the schedule.

        >>> [Plan(learning_rate=1.0, schedule="linear").at(t, 4).learning_rate for t in (1, 2, 3, 4)]
        [1.0, 0.75, 0.5, 0.25]
        """
        if self.schedule is None:
            return self
        if rounds is None:
            raise InputError(
                f"schedule is {self.schedule!r}, for which the number of rounds must be known; give rounds"
            )
        done = min(1.0, (round_number - 1) / rounds)
        factor = 1.0 - done if self.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2
        return self.model_copy(update={"learning_rate": self.learning_rate * factor})
