"""`fedpals run` with two workers and with one: on a sweep over seeds, and on a single run."""

from __future__ import annotations

import statistics

from simulation_rounds.ours import command_seconds
from simulation_rounds.report import Report
from simulation_rounds.sizes import Size


def measure_workers(size: Size, report: Report) -> None:
    print(f"\nworkers: 9 clients × {size.samples} samples, by command, start-up included")
    figures = report.results.setdefault("workers", {})
    cases = {
        f"sweep of {size.seeds} seeds, {size.sweep_rounds} rounds": (size.seeds, size.sweep_rounds, 1.8),
        f"single run, {2 * size.sweep_rounds} rounds": (1, 2 * size.sweep_rounds, None),
    }
    for name, (seeds, rounds, wanted) in cases.items():
        if wanted is None and not size.untargeted:
            continue
        run = size.run(rounds=rounds)
        pairs = [
            (command_seconds(run, seeds=seeds), command_seconds(run, seeds=seeds, workers=2))
            for _ in range(size.repeats)
        ]
        ratio = statistics.median(one / two for one, two in pairs)
        print(f"  {name}: " + ", ".join(f"{a:.1f} / {b:.1f} s" for a, b in pairs) + f": ratio {ratio:.2f}")
        figures[name] = {"seconds": pairs, "ratio": ratio}
        if wanted is not None:
            report.add_target("sweep: one worker / two workers", ratio, "≥", wanted)
