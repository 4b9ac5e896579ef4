"""Many runs: worker processes or a Ray cluster, progress, and what is left when something fails or is stopped."""

from fedpals.experiments.computing import Event, Settings
from fedpals.experiments.sweep import Outcome, sweep

__all__ = ["Event", "Outcome", "Settings", "sweep"]
