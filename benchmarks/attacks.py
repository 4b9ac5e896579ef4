"""One client of ten, or of three, lies: what is left of the accuracy, with every defence.

    python benchmarks/attacks.py [--seeds 1] [--rounds 20]

Prints the table of docs/privacy.md: test accuracy of the last model on digits, in %, mean over seeds. The liar is the
client with the largest weight. "−50×" multiplies its update by −50; "random" sends noise as long as its update;
"labels" trains on labels y → 9 − y. A run whose model is no longer finite counts as guessing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpals.engine.aggregation import length
from fedpals.engine.client import Update
from fedpals.engine.server import DivergedError
from fedpals.rng import generator
from fedpals.simulation.pools import SerialPool
from fedpals.simulation.rounds import Simulation
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Job, Worker

Lie = Callable[[Tensor, int], Tensor]
"""From the way that an honest client moves, and the round, to what it claims."""

TASKS: dict[str, dict[str, Any]] = {
    "FedAvg, all labels": {"method": "fedavg", "beta": 100.0, "clients": 11},
    "FedAvg, three labels a client": {"method": "fedavg", "labels_per_client": 3, "clients": 11},
    "FedPALS, three labels a client": {"method": "fedpals", "ess": 0.5, "labels_per_client": 3, "clients": 11},
    "FedAvg, three clients, all labels": {"method": "fedavg", "beta": 100.0, "clients": 4},
}
DEFENCES: dict[str, dict[str, str]] = {
    "none": {"outliers": "keep"},
    "refuse": {"outliers": "refuse"},
    "clip": {"outliers": "clip"},
    "median": {"aggregation": "geometric_median", "outliers": "keep"},
}


def _noise(move: Tensor, number: int) -> Tensor:
    noise = torch.from_numpy(generator(0, "lie", number).standard_normal(move.numel())).to(move.dtype)
    return noise * (length(move) / length(noise))


LIES: dict[str, Lie | None] = {
    "nobody lies": None,
    "−1×": lambda move, _: -move,
    "−50×": lambda move, _: -50 * move,
    "10³⁰×": lambda move, _: 1e30 * move,
    "random": _noise,
    "labels": lambda move, _: move,
}


class LyingPool(SerialPool):
    """Trains clients in this process, one of which lies."""

    def __init__(self, worker: Worker, liar: int, lie: Lie) -> None:
        super().__init__(worker)
        self.liar, self.lie = liar, lie

    def train(self, jobs: Sequence[Job]) -> Iterable[Update]:
        """Train, and change the liar's update."""
        for job, update in zip(jobs, super().train(jobs), strict=True):
            if job.client != self.liar:
                yield update
            else:
                yield replace(update, vector=job.start + self.lie(update.vector - job.start, job.round))


def accuracy(settings: dict[str, Any], attack: str) -> float:
    """Return the test accuracy of the last model; that of guessing if it is no longer finite."""
    worker = Worker(Run.of({"task": "digits", "model": "logistic", **settings}))
    server = Simulation(worker, SerialPool(worker)).server
    everyone = server.participants(1)
    liar = int(everyone[np.argmax(server.weigh(everyone))])
    lie = LIES[attack]
    if attack == "labels":
        honest = worker.client
        flipped = replace(honest(liar), y=9 - honest(liar).y)
        worker.client = lambda number: flipped if number == liar else honest(number)  # type: ignore[method-assign]
    simulation = Simulation(worker, SerialPool(worker) if lie is None else LyingPool(worker, liar, lie))
    value = 0.1
    try:
        while not simulation.finished:
            scores = simulation.advance().raw.test
            assert scores is not None
            value = scores.accuracy
    except DivergedError:
        return 0.1
    return value


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    print(f"| | defence | {' | '.join(LIES)} |\n|---|---|{'---|' * len(LIES)}")
    for title, task in TASKS.items():
        for defence, keys in DEFENCES.items():
            settings = {**task, **keys, "rounds": arguments.rounds}
            cells = []
            for attack in LIES:
                values = [accuracy({**settings, "seed": seed}, attack) for seed in range(arguments.seeds)]
                cells.append(f"{100 * np.mean(values):.0f}")
            print(f"| {title} | {defence} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
