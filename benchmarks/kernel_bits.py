"""Digests of whole runs, to see that a change of the code changes no bit: run it before and after, and compare.

    python benchmarks/kernel_bits.py > before.txt

A digest is that of the parameters after the last round, of all losses and of all accuracies. Equal bits can be expected
on one kind of processor only, and with one version of the kernel (`fedpals.engine.KERNEL_VERSION`).
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

from fedpals.simulation.pools import SerialPool
from fedpals.simulation.rounds import Simulation
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker

COMMON = {
    "model": "cnn", "labels_per_client": 3, "samples_per_client": 90, "batch_size": 32, "learning_rate": 0.05,
    "rounds": 2, "validation_samples": 200, "test_samples": 200,
}  # fmt: skip
TASKS: dict[str, dict[str, Any]] = {
    "fashion-mnist": {},
    "cifar10": {},
    "digits": {"samples_per_client": None, "validation_samples": 60, "test_samples": 100},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedpals": {"ess": 0.3},
    "fedprox+fedpals": {"held_out": 0.2},
    "scaffold": {"momentum": 0.9},
    "fedrs": {"clip_norm": 1.0},
    "logit_adjusted": {"optimizer": "adam", "learning_rate": 0.001},
    "iwerm": {"augment": "flip"},
    "fedlc": {"augment": "shift", "epochs": 2, "weight_decay": 0.001},
    "afl": {"steps": 5},
    "fedsgd": {"labels_per_client": 10, "clients": 3, "samples_per_client": 300},
}
"""Methods, each with an option that takes another way through the client's step."""


def digest(run: Run) -> str:
    worker = Worker(run)
    simulation, seen = Simulation(worker, SerialPool(worker)), hashlib.sha256()
    while not simulation.finished:
        line = simulation.advance()
        seen.update(repr((line.loss, line.raw, line.prior, line.calibrated, line.weights)).encode())
    seen.update(simulation.state.vector.numpy().tobytes())
    return seen.hexdigest()[:16]


def main() -> None:
    for task, its_keys in TASKS.items():
        for method, options in VARIANTS.items():
            keys = {**COMMON, **its_keys, "task": task, "method": method, **options}
            run = Run.of({key: value for key, value in keys.items() if value is not None})
            print(f"{task:14s} {method:16s} {digest(run)}", flush=True)


if __name__ == "__main__":
    main()
