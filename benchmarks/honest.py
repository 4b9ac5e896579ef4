"""Nobody lies: how long the longest update of a round is, and how many honest updates are refused as far.

    python benchmarks/honest.py [--seeds 3] [--rounds 20] [--models logistic cnn]

Prints the table of docs/privacy.md: digits, every method with every federation, with far updates refused. "times" is
the norm of an update over the median of its round, the largest of all rounds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedpals.engine.aggregation import length
from fedpals.engine.client import Update
from fedpals.rng import generator
from fedpals.simulation.pools import SerialPool
from fedpals.simulation.rounds import Simulation
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Job, Worker

METHODS = ("fedavg", "fedpals", "fedprox", "fedrs_graded", "iwerm", "logit_adjusted", "scaffold")
FEDERATIONS: dict[str, tuple[dict[str, Any], tuple[int, int] | None, bool]] = {
    "10 clients of one size, 3 labels each": ({"clients": 11, "labels_per_client": 3}, None, False),
    "10 clients of one size, β = 0.1": ({"clients": 11, "beta": 0.1}, None, False),
    "3 clients of one size, β = 0.1": ({"clients": 4, "beta": 0.1}, None, False),
    "2 clients of one size, 1 label each": ({"clients": 3, "labels_per_client": 1}, None, False),
    "10 clients of 5 to 500 samples, all labels": ({"clients": 11, "beta": 100.0}, (5, 500), False),
    "10 clients of 5 to 500 samples, few labels": ({"clients": 11, "beta": 100.0}, (5, 500), True),
    "3 clients of 10 to 1,000 samples, all labels": ({"clients": 4, "beta": 100.0}, (10, 1000), False),
    "3 clients of 10 to 1,000 samples, few labels": ({"clients": 4, "beta": 100.0}, (10, 1000), True),
    "2 clients of 10 and 1,000 samples, few labels": ({"clients": 3, "beta": 100.0}, (10, 1000), True),
}
"""Keys of the run, the smallest and the largest size where sizes differ, and whether clients then have few labels."""


class MeasuringPool(SerialPool):
    """Trains clients in this process, and keeps the norms of their updates."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.trained, self.longest = 0, 0.0

    def train(self, jobs: Sequence[Job]) -> Iterable[Update]:
        """Train, and compare the lengths."""
        updates = list(super().train(jobs))
        norms = [length(u.vector.double() - job.start.double()) for job, u in zip(jobs, updates, strict=True)]
        self.trained += len(norms)
        if median := statistics.median_low(norms):
            self.longest = max(self.longest, max(norms) / median)
        return updates


def worker_of(keys: dict[str, Any], sizes: tuple[int, int] | None, *, few_labels: bool) -> Worker:
    """Return a run's clients; with ``sizes`` their samples are dealt anew, in a geometric row of sizes."""
    worker = Worker(Run.of({"task": "digits", "outliers": "refuse", **keys}))
    if sizes is None:
        return worker
    federation = worker.federation
    rng = generator(worker.run.seed, "sizes")
    pool = rng.permutation(np.concatenate(federation.clients))
    if few_labels:
        pool = pool[np.argsort(federation.dataset.y[pool], kind="stable")]
    row = np.geomspace(*sizes, len(federation.clients))
    row = rng.permutation(np.floor(row * min(1.0, pool.size / row.sum())).clip(sizes[0])).astype(int)
    pool = np.roll(pool, int(rng.integers(pool.size)))[: row.sum()]
    worker.federation = replace(federation, clients=tuple(map(np.sort, np.split(pool, np.cumsum(row)[:-1]))))
    return worker


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", nargs="+", default=["logistic", "cnn"])
    arguments = parser.parse_args()
    print("| federation | model | updates | times | refused |\n|---|---|---|---|---|")
    for title, (keys, sizes, few_labels) in FEDERATIONS.items():
        for model in arguments.models:
            trained, longest, refused = 0, 0.0, list[str]()
            for method in METHODS:
                for seed in range(arguments.seeds):
                    run = {**keys, "method": method, "model": model, "rounds": arguments.rounds, "seed": seed}
                    worker = worker_of(run, sizes, few_labels=few_labels)
                    pool = MeasuringPool(worker)
                    simulation = Simulation(worker, pool)
                    refused += [method for _ in range(arguments.rounds) for _ in simulation.advance().refused]
                    trained, longest = trained + pool.trained, max(longest, pool.longest)
            by_method = ", ".join(f"{method} {refused.count(method)}" for method in dict.fromkeys(refused))
            alarms = f"{len(refused)}{f' ({by_method})' if by_method else ''}"
            print(f"| {title} | {model} | {trained:,} | {longest:.3g} | {alarms} |", flush=True)


if __name__ == "__main__":
    main()
