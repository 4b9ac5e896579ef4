"""The compiled training step of the paper's small network against the usual loop of torch, side by side in one run.

    python benchmarks/kernel.py [--samples 2000] [--repeats 10] [--batch 50] [--json FILE]

Everybody trains one client for one epoch, in one thread. Contenders take turns, and each figure is the least CPU
time of all repeats, because others may use the machine meanwhile. Images are random: what the processor does
hardly depends on them.

steps
    The plain loop's time by ours (larger is better for us), at the sizes of Fashion-MNIST and CIFAR-10, for
    every client rule. "torch on the logits" is a rule that does not say that what it does to logits is affine.
peak
    The share of the core's multiply-adds per second that is reached: by the forward pass, and by the whole step if it
    is counted as dense (the kernel leaves out three quarters of the convolutions' backward pass, since a pool
    passes its gradient to one of four outputs). The peak is measured before and after, by a loop of nothing else.
compile
    Seconds from the first call to the first result: with an empty cache, the compiler's own import included, and from
    the cache, where it is not needed.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from numba import njit
from torch import Tensor

from fedpals.engine.client import local_update
from fedpals.engine.flat_model import FlatModel
from fedpals.engine.plan import Plan
from fedpals.methods import ClientRule
from fedpals.methods.logit_adjusted import LogitAdjusted
from fedpals.methods.proximal import Proximal
from fedpals.methods.restricted_softmax import GradedSoftmax
from fedpals.methods.scaffold import Scaffold
from fedpals.models import build, prepare
from fedpals.models.compiled.lanes import Block, Code, intrinsic
from fedpals.models.compiled.processor import LANES
from simulation_rounds.peers.usual_training import build_network, fit
from simulation_rounds.report import Report

SIZES = {"Fashion-MNIST": ((1, 28, 28), 8.0), "CIFAR-10": ((3, 32, 32), 5.0)}
"""Shape of images, and how many times as fast as the plain loop a step must be."""
LABELS = 10


@dataclass(frozen=True)
class Opaque(ClientRule):
    """Leaves the logits as they are, but does not say so."""

    def adjust_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        """Return the logits."""
        del counts
        return logits


RULES = {
    "FedAvg": ClientRule(),
    "FedProx": Proximal(),
    "SCAFFOLD": Scaffold(),
    "FedRS": GradedSoftmax(),
    "logit adjustment": LogitAdjusted(),
    "torch on the logits": Opaque(),
}


def cpu_seconds(function: Callable[[], Any]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def multiply_adds(shape: tuple[int, int, int]) -> tuple[int, int]:
    """Return the multiply-adds of a sample, forward and in a whole step that computes all of it."""
    channels, height, width = shape
    out1 = height - 4, width - 4
    out2 = out1[0] // 2 - 4, out1[1] // 2 - 4
    first = out1[0] * out1[1] * 6 * 25 * channels
    second = out2[0] * out2[1] * 16 * 150
    dense = out2[0] // 2 * (out2[1] // 2) * 16 * 120 + 120 * 84 + 84 * LABELS
    return first + second + dense, 2 * first + 3 * (second + dense)


@intrinsic(Block(12))
def _zeros(code: Code) -> list[Any]:
    return [code.constant(0.0)] * 12


@intrinsic(Block(12))
def _multiply_and_add(code: Code, sums: list[Any], numbers: Any, index: Any) -> list[Any]:
    a = code.load(numbers, index)
    return [code.add_product(total, a, a) for total in sums]


@intrinsic()
def _store_sum(code: Code, sums: list[Any], numbers: Any, index: Any) -> None:
    total = sums[0]
    for other in sums[1:]:
        total = code.builder.fadd(total, other)
    code.store(numbers, index, total)


@njit
def _only_multiply_and_add(numbers: Any, times: Any) -> None:
    sums = _zeros()
    for i in range(times):
        sums = _multiply_and_add(sums, numbers, i & 15)
    _store_sum(sums, numbers, 32)


def peak() -> float:
    """Return the most multiply-adds per second that a loop of nothing else reaches."""
    numbers, times = np.zeros(64, np.float32), 400_000
    _only_multiply_and_add(numbers, 1)
    return 12 * LANES * times / min(cpu_seconds(lambda: _only_multiply_and_add(numbers, times)) for _ in range(10))


def measure_steps(report: Report, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    figures = report.results.setdefault("steps", {})
    plan = Plan(batch_size=options.batch, learning_rate=0.05)
    for size, (shape, wanted) in SIZES.items():
        rng = np.random.default_rng(0)
        x = prepare(rng.integers(256, size=(options.samples, *shape), dtype=np.uint8))
        y = torch.from_numpy(rng.integers(LABELS - 2, size=options.samples))  # a client that lacks labels
        counts = torch.bincount(y, minlength=LABELS)
        model, usual = FlatModel(build("cnn", shape=shape, classes=LABELS, seed=0)), build_network(0, shape=shape)
        start, usual_x = model.vector.clone(), torch.empty(x.shape).copy_(x)
        server = torch.full_like(start, 1e-4)

        def ours(rule: ClientRule) -> None:
            order = np.random.default_rng(1)
            local_update(model, start, x, y, counts, rule, plan, order, server=server)  # noqa: B023  (called here)

        contenders: dict[str, Callable[[], Any]] = {"plain loop": lambda: fit(copy.deepcopy(usual), (usual_x, y), plan)}  # noqa: B023
        contenders |= {name: lambda rule=rule: ours(rule) for name, rule in RULES.items()}  # type: ignore[misc]
        contenders["forward"] = lambda: model.logits(x)  # noqa: B023
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        peaks = [peak()]
        for _ in range(options.repeats):
            for name, function in contenders.items():
                seconds[name].append(cpu_seconds(function))
        peaks.append(peak())
        least = {name: min(values) for name, values in seconds.items()}
        figures[size] = least
        _print_size(report, size, shape, wanted, least, max(peaks), options.samples)


def _print_size(
    report: Report,
    size: str,
    shape: tuple[int, int, int],
    wanted: float,
    least: dict[str, float],
    most: float,
    samples: int,
) -> None:
    print(f"\n{size} ({'×'.join(map(str, shape))}), milliseconds for {samples} samples, and the plain loop's by ours")
    for name, value in least.items():
        print(f"  {name:22s} {1000 * value:8.1f}  {least['plain loop'] / value:6.2f}")
    report.add_target(f"{size}: plain loop / ours", least["plain loop"] / least["FedAvg"], "≥", wanted)
    for name in ("FedProx", "SCAFFOLD", "FedRS", "logit adjustment"):
        report.add_target(f"{size}: FedAvg / {name}", least["FedAvg"] / least[name], "≥", 0.9)
    forward, step = multiply_adds(shape)
    shares = forward * samples / least["forward"] / most, step * samples / least["FedAvg"] / most
    print(f"  of {most / 1e9:.0f} G multiply-adds/s: forward {shares[0]:.0%}, step, counted as dense, {shares[1]:.0%}")
    report.results.setdefault("peak", {})[size] = {"multiply_adds": most, "forward": shares[0], "step": shares[1]}
    report.add_target(f"{size}: share of the peak, counted as dense", shares[1], "≥", 0.7)


_FIRST_CALL = """
import time, numpy as np, torch
from fedpals.models.compiled.network import SmallCNN
network, x = SmallCNN((1, 28, 28), 10), torch.zeros(1, 1, 28, 28)
vector = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
start = time.perf_counter(), time.process_time()
zero, adjustment = torch.zeros(1, dtype=torch.int64), torch.ones(30)
network.kernel().loss_and_gradient(vector, adjustment)(x, zero, zero)
print(time.perf_counter() - start[0], time.process_time() - start[1])
"""


def measure_compilation(report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        for name, wanted in (("empty cache", 8.0), ("from the cache", 0.5)):
            done = subprocess.run(
                [sys.executable, "-c", _FIRST_CALL], env=environment, capture_output=True, text=True, check=True
            )
            wall, cpu = map(float, done.stdout.split())
            print(f"\nfirst step, {name}: {wall:.2f} s ({cpu:.2f} s of CPU)")
            report.results.setdefault("compile", {})[name] = {"wall": wall, "cpu": cpu}
            report.add_target(f"first step, {name}, CPU seconds", cpu, "≤", wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000, help="of the client")
    parser.add_argument("--batch", type=int, default=50, help="batch size")
    parser.add_argument("--repeats", type=int, default=10, help="of which the least counts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    report = Report(results={"lanes": LANES, "torch": torch.__version__, "load": os.getloadavg()})
    print(f"load when started: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {LANES} lanes")
    measure_steps(report, options)
    measure_compilation(report)
    report.print_targets()
    if options.json:
        options.json.write_text(json.dumps(report.to_json(), indent=1))


if __name__ == "__main__":
    main()
