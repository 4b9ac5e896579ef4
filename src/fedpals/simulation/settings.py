"""How runs are computed. It loads no torch, so that a command that only starts workers does not wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SweepSettings:
    """How to compute runs, none of which changes their results."""

    out: Path
    """Folder of runs."""
    workers: int = 1
    data_folder: Path | None = None
    device: str = "cpu"
    resume: bool = True
    """Continue unfinished runs; otherwise they start over."""
    checkpoint_every: int = 1
    trackers: tuple[str, ...] = ()
    """Where metrics go besides the record: names of `fedpals.simulation.trackers`."""
    ray: str | None = None
    """Address of a Ray cluster to compute on, instead of this machine's processes."""
    deadline: float | None = None
    """Time of `time.monotonic` after which rounds under way end and no run is begun; everything can be resumed."""
