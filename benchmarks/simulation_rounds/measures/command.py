"""A whole run from the command line, start-up included: ours and Flower's."""

from __future__ import annotations

import statistics

from simulation_rounds.ours import command_seconds
from simulation_rounds.peers.flower_rounds import simulate_with_flower
from simulation_rounds.peers.installed import installed
from simulation_rounds.report import Report
from simulation_rounds.sizes import Size


def measure_command(size: Size, report: Report) -> None:
    print(f"\ncommand: {size.run_rounds} rounds, 9 clients × {size.run_samples} samples, start-up included")
    run = size.run(samples_per_client=size.run_samples, rounds=size.run_rounds)
    if not installed("flwr", "ray"):
        report.results["command"] = "not installed"
        return
    pairs = []
    for _ in range(size.repeats):
        # A quick run is content with the time that `rounds` may have seen.
        flower = simulate_with_flower(run, interleave=not size.untargeted, again=size.untargeted)
        pairs.append((flower.seconds, command_seconds(run)))
    ratio = statistics.median(theirs / ours for theirs, ours in pairs)
    for theirs, ours in pairs:
        print(f"  Flower {theirs:.1f} s, ours {ours:.1f} s: ratio {theirs / ours:.2f}")
    report.results["command"] = {"seconds": pairs, "ratio": ratio}
    report.add_target(f"{size.run_rounds}-round command: Flower / ours", ratio, "≥", 8.0)
