"""How much to compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedpals.simulation.run import Run


@dataclass(frozen=True)
class Size:
    """How much to compute."""

    samples: int = 5400
    """Per client, for time per round and for workers."""
    batch: int = 50
    rounds: int = 6
    """Of each contender; the first is left out."""
    run_samples: int = 1000
    """Per client, for the run from the command line."""
    run_rounds: int = 20
    sweep_rounds: int = 30
    seeds: int = 4
    repeats: int = 2
    """Of commands that are compared with each other."""
    populations: tuple[int, ...] = (10, 100, 1000, 10_000)
    scale_rounds: int = 40
    ess_samples: int = 1500
    ess_rounds: int = 6
    untargeted: bool = True
    """Whether to measure what has no target, too."""

    def run(self, **settings: Any) -> Run:
        """Return FedAvg with 9 clients that have all labels, the tenth being the target."""
        common = {
            "task": "fashion-mnist", "clients": 10, "labels_per_client": 10, "samples_per_client": self.samples,
            "validation_samples": 1000, "test_samples": 2000, "model": "cnn", "method": "fedavg",
            "batch_size": self.batch, "learning_rate": 0.05, "rounds": self.rounds,
        }  # fmt: skip
        return Run.of({**common, **settings})


QUICK = Size(
    samples=200, rounds=3, run_samples=200, run_rounds=3, sweep_rounds=2, seeds=2, repeats=1,
    populations=(10, 1000), scale_rounds=10, ess_samples=150, ess_rounds=4, untargeted=False,
)  # fmt: skip
