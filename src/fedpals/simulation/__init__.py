"""Rounds on one machine: a run's configuration and record, its workers, and many runs at once."""
