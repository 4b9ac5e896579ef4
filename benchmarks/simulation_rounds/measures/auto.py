"""What choosing the ESS while training costs a round, against FedAvg with the same samples held out."""

from __future__ import annotations

import statistics
from typing import Any

from simulation_rounds.ours import Ours
from simulation_rounds.processes import in_child
from simulation_rounds.report import Report
from simulation_rounds.sizes import Size

_HELD_OUT = (0.1, 0.2)
"""Shares of the samples: where runs hold out by themselves, and where clients are a user's own."""


def measure_auto(size: Size, report: Report) -> None:
    print(
        f"\nauto: time of a round / FedAvg's, 9 clients × {size.ess_samples} samples of 3 labels, all trained by both"
    )
    figures = report.results["auto"] = in_child(choosing, size)
    for held_out, ratio in figures.items():
        print(f"  {held_out} held out: ratio {ratio:.3f}")
    report.add_target("a round with ESS auto / FedAvg's, 10 % held out", figures["10 %"], "≤", 1.15)


def choosing(size: Size) -> dict[str, float]:
    """Take rounds of FedAvg and of FedPALS, which compares four candidates in every round, in turn."""
    common: dict[str, Any] = {
        "labels_per_client": 3, "samples_per_client": size.ess_samples, "rounds": size.ess_rounds,
        "validation_samples": None, "test_samples": None,
    }  # fmt: skip
    ratios = {}
    for held_out in _HELD_OUT:
        fedavg = Ours(size.run(**common, held_out=held_out))
        auto = Ours(size.run(**common, held_out=held_out, method="fedpals", ess="auto"))
        pairs = [(auto.round()[0], fedavg.round()[0]) for _ in range(size.ess_rounds)]  # without evaluation
        ratios[f"{100 * held_out:.0f} %"] = statistics.median(own / theirs for own, theirs in pairs[1:])
    return ratios
