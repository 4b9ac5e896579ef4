"""What happens to runs while they are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedpals.errors import FedpalsError
from fedpals.simulation.record import RoundLine


@dataclass(frozen=True)
class Event:
    """Something happened to a run: for progress displays."""

    kind: Literal["features", "round", "note", "busy", "finished", "failed", "stopped"]
    """"busy": another command is computing it; "note": something to know, in ``text``."""
    run: int
    """Position in the sweep."""
    line: RoundLine | None = None
    """The record's line of a round."""
    progress: tuple[int, int] | None = None
    """Of features: how many images are done, and their total."""
    text: str | None = None
    error: FedpalsError | None = None
