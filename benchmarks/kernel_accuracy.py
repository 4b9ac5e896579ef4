"""Whole runs with the compiled kernel against the same runs by torch's layers: the difference in accuracy.

    python benchmarks/kernel_accuracy.py [--seeds 8] [--rounds 40] [--samples 500] [--json FILE]

The paper's CNN on digits and Fashion-MNIST, clients of three labels each, FedAvg and FedPALS. Both begin with the same
parameters and draw the same batches, but round differently, and training makes differences grow. So runs are compared
seed by seed: the mean difference of the test accuracy after the last round, and its standard error, in percentage
points. Beside it stands how much accuracy varies from seed to seed (sd).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

from fedpals.engine.flat_model import FlatModel
from fedpals.labels import Vector
from fedpals.simulation.pools import SerialPool
from fedpals.simulation.rounds import Simulation
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker

TASKS = {"digits": {"batch_size": 16, "epochs": 2}, "fashion-mnist": {"batch_size": 32}}
METHODS = {"fedavg": {}, "fedpals": {"ess": 0.25}}


@contextmanager
def torch_layers() -> Iterator[None]:
    """Let torch compute the network."""
    with mock.patch.object(FlatModel, "kernel", return_value=None):
        yield


def test_accuracy(run: Run) -> float:
    """Return the accuracy on the target's test samples after the last round, in percent."""
    worker = Worker(run)
    simulation = Simulation(worker, SerialPool(worker))
    while not simulation.finished:
        line = simulation.advance()
    assert line.raw.test is not None
    return 100 * line.raw.test.accuracy


def compare(task: str, method: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the accuracies of both kernels, seed by seed."""
    keys = {
        "task": task, "method": method, "model": "cnn", "labels_per_client": 3, "rounds": options.rounds,
        "learning_rate": 0.1, **TASKS[task], **METHODS[method],
    }  # fmt: skip
    if task != "digits":  # which has few anyway
        keys["samples_per_client"] = options.samples
    accuracies: dict[str, list[float]] = {"compiled": [], "torch": []}
    for seed in range(options.seeds):
        run = Run.of({**keys, "seed": seed})
        accuracies["compiled"].append(test_accuracy(run))
        with torch_layers():
            accuracies["torch"].append(test_accuracy(run))
    return accuracies


def standard_error(values: Vector) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="pairs of runs")
    parser.add_argument("--rounds", type=int, default=40, help="of each run")
    parser.add_argument("--samples", type=int, default=500, help="of each client of Fashion-MNIST")
    parser.add_argument("--json", type=Path, help="also write the accuracies to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    print("task           method   torch           compiled        difference (standard error)  z", flush=True)
    for task in TASKS:
        for method in METHODS:
            accuracies = results[f"{task} {method}"] = compare(task, method, options)
            theirs, ours = (np.array(accuracies[name]) for name in ("torch", "compiled"))
            difference, error = (ours - theirs).mean(), standard_error(ours - theirs)
            print(
                f"{task:14s} {method:8s} {theirs.mean():5.2f} (sd {theirs.std(ddof=1):5.2f}) "
                f"{ours.mean():5.2f} (sd {ours.std(ddof=1):5.2f}) {difference:+6.2f} ({error:.2f}) "
                f"{difference / error if error else 0.0:+18.1f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps({"options": vars(options) | {"json": None}, "accuracy": results}, indent=1))


if __name__ == "__main__":
    main()
