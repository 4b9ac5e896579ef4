"""How the server protects clients from those who see its models, and the model from clients who lie."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from fedpals.config import Settings, unset
from fedpals.errors import InputError

Outliers: TypeAlias = Literal["refuse", "clip", "keep"]
_DELTA = 1e-5


class Protection(Settings):
    """Noise for privacy, and what happens to updates that are far from the others."""

    clip_update: float | None = Field(default=None, gt=0, allow_inf_nan=False, json_schema_extra=unset("no privacy"))
    """C of differential privacy: largest norm of a client's update; longer ones are shortened to it."""
    noise_multiplier: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, json_schema_extra=unset("no privacy")
    )
    """z of differential privacy: the noise of a round is z times what one client can change in the global model."""
    privacy_delta: float | None = Field(default=None, gt=0, lt=1, json_schema_extra=unset("1e-5"))
    """δ at which ε is reported; far below 1 / number of clients."""
    outliers: Outliers | None = Field(default=None, json_schema_extra=unset("keep"))
    """What happens to updates that are far longer than the others: refuse, clip, or keep with a warning."""
    aggregation: Literal["geometric_median"] | None = Field(default=None, json_schema_extra=unset("weighted mean"))
    """geometric_median: the point with the smallest weighted distance to all updates; a few lies move it little."""

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.clip_update is None) != (self.noise_multiplier is None):
            given, missing = ("clip_update", "noise_multiplier")[:: 1 if self.noise_multiplier is None else -1]
            raise InputError(
                f"{given} is {getattr(self, given)}, but {missing} is not given; differential privacy needs both, "
                "as clip_update 1.0 and noise_multiplier 1.0"
            )
        if self.privacy_delta is not None and self.clip_update is None:
            raise InputError(
                f"privacy_delta is {self.privacy_delta}, but nothing is private; give clip_update and noise_multiplier"
            )
        for key in ("outliers", "aggregation"):
            if self.clip_update is not None and getattr(self, key) is not None:
                raise InputError(
                    f"{key} is {getattr(self, key)!r}, but with clip_update weights must not depend on updates: what "
                    f"one client changes would have no bound; clip_update limits every update as it is: leave {key} out"
                )
        return self

    @property
    def private(self) -> bool:
        """Whether the global models carry noise for differential privacy."""
        return self.clip_update is not None

    @property
    def delta(self) -> float:
        """δ at which ε is reported."""
        return _DELTA if self.privacy_delta is None else self.privacy_delta

    def sigma(self, largest: float) -> float:
        """σ = z C a, the standard deviation of the noise in every parameter of Σ α_i Δ_i, where no α_i exceeds a."""
        assert self.noise_multiplier is not None
        assert self.clip_update is not None
        return self.noise_multiplier * self.clip_update * largest
