"""Many clients, of which 10 take part in a round: time and peak memory must not grow."""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from simulation_rounds.processes import in_child
from simulation_rounds.report import Report
from simulation_rounds.sizes import Size

FLAT = {"time": 1.1, "memory": 1.05}
"""What counts as flat: at most so many times the figure of the smallest federation."""


def measure_scale(size: Size, report: Report) -> None:
    print(f"\nscale: 10 participants of 4 samples, {size.scale_rounds} rounds with records and checkpoints")
    figures = report.results["scale"] = populations(size)
    for clients, row in figures.items():
        print(f"  {int(clients):6,} clients: {1000 * row['seconds']:.1f} ms a round, {row['bytes'] / 2**20:.0f} MiB")
    smallest, *_, largest = figures
    for what, key in (("time", "seconds"), ("memory", "bytes")):
        growth = figures[largest][key] / figures[smallest][key]
        report.add_target(f"{what}: {int(largest):,} clients / {int(smallest):,}", growth, "≤", FLAT[what])


def populations(size: Size) -> dict[str, dict[str, float]]:
    """Measure federations of every size, all with clients of 4 samples: more do not fit for the largest."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(size.repeats):
        for clients in size.populations:
            run = size.run(
                clients=clients + 1, labels_per_client=2, samples_per_client=4, participation=10 / clients,
                validation_samples=200, test_samples=200, rounds=size.scale_rounds,
            )  # fmt: skip
            new = in_child(time_and_memory, run)
            old = best.get(str(clients), new)
            best[str(clients)] = {key: min(new[key], old[key]) for key in new}
    return best


def time_and_memory(run: Run) -> dict[str, float]:
    """Compute a run with records and checkpoints; return the median CPU seconds of a round, and peak memory."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        simulate(run, Path(folder), callbacks=[lambda _: times.append(time.process_time())])
    return {
        "seconds": statistics.median(b - a for a, b in pairwise(times)),
        "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
