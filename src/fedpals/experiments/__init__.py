"""Many runs: worker processes, progress, and what is left when something fails or is stopped."""

from fedpals.experiments.sweep import Event, Outcome, Settings, sweep

__all__ = ["Event", "Outcome", "Settings", "sweep"]
