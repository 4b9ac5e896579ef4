"""Rounds on one machine: fedpals against a plain loop, Flower's Ray simulation and pfl, side by side in one run.

    pip install -c constraints.txt -e '.[learn,bench]'
    python benchmarks/simulator.py [--quick] [--only rounds,command,workers,scale,ess,auto] [--json FILE]

Everybody trains the paper's small CNN on the same clients of Fashion-MNIST, one epoch of plain SGD in
batches of 50, with one thread, and evaluates the same samples. Figures are ratios (their time / ours:
larger is better for us), to be trusted to ±10 %. Rounds in one process, `scale`, `ess` and `auto` are CPU time, the
others (Flower, command, workers) time on the wall, which wants a machine that does nothing else. CIFAR-10's size and
other client rules: benchmarks/kernel.py.

rounds
    Time per round. One of our rounds follows each of theirs in the same process (Flower: in the
    server's, while its actors wait); the ratio is the median over rounds, the first left out.
    Peers apply ReLU before pooling, as everyone writes it; "our layers" pools first, like ours,
    which is the same function. pfl does not shuffle, so its data are shuffled when they are handed out.
command
    A whole run from the command line, start-up included: `fedpals run` and `flwr run`.
workers
    `fedpals run` with two workers and with one: on a sweep over seeds, and on a single run.
scale
    From 10 to 10,000 clients, of which 10 take part in a round: time and peak memory must not grow.
ess
    FedPALS at a low effective sample size leaves clients with α = 0 out, FedAvg trains everybody.
auto
    What it costs a round to choose the effective sample size while training.

A peer that is not installed is reported as such. Flower runs in a folder and on ports of its own, and
all its processes are ended afterwards (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict, replace
from pathlib import Path

import torch

from simulation_rounds.measures import MEASURES
from simulation_rounds.report import Report
from simulation_rounds.sizes import QUICK, Size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything works")
    parser.add_argument("--only", default=",".join(MEASURES), help="sections, separated by commas")
    parser.add_argument("--samples", type=int, help="per client, for rounds and workers")
    parser.add_argument("--batch", type=int, help="batch size")
    parser.add_argument("--rounds", type=int, help="of each contender in `rounds`; the first is left out")
    parser.add_argument("--run-samples", type=int, help="per client, for the run from the command line")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    given = {key: getattr(options, key) for key in ("samples", "batch", "rounds", "run_samples")}
    size = replace(QUICK if options.quick else Size(), **{k: v for k, v in given.items() if v is not None})
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(MEASURES):
        parser.error(f"--only: {', '.join(sorted(unknown))} unknown; sections are {', '.join(MEASURES)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    report = Report()
    report.results |= {
        "size": asdict(size), "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "torch": torch.__version__, "load": [os.getloadavg()],
    }  # fmt: skip
    print(f"load when started: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name in chosen:
        MEASURES[name](size, report)
    report.results["load"].append(os.getloadavg())
    report.print_targets()
    if options.json:
        options.json.write_text(json.dumps(report.to_json(), indent=1))


if __name__ == "__main__":
    main()
