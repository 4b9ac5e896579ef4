"""FedPALS at a low effective sample size leaves clients with α = 0 out, FedAvg trains everybody."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from simulation_rounds.ours import Ours
from simulation_rounds.processes import in_child
from simulation_rounds.report import Report
from simulation_rounds.sizes import Size


def measure_ess(size: Size, report: Report) -> None:
    print(f"\ness: FedAvg's time / FedPALS's, 9 clients × {size.ess_samples} samples of 3 labels")
    figures = report.results["ess"] = in_child(low_ess, size, (0.1, 0.5))
    for name, row in figures.items():
        print(f"  ESS {name}: ratio {row['ratio']:.2f}, {row['trained']} of {row['clients']} clients trained")
    report.add_target("ESS 0.1: FedAvg / FedPALS", figures["0.1"]["ratio"], "≥", 1.0)


def low_ess(size: Size, ess: Sequence[float]) -> dict[str, dict[str, float]]:
    """Take rounds of FedAvg and FedPALS in turn, on clients of three labels each."""
    common: dict[str, Any] = {
        "labels_per_client": 3, "samples_per_client": size.ess_samples, "rounds": size.ess_rounds,
        "validation_samples": None, "test_samples": None,
    }  # fmt: skip
    fedavg = Ours(size.run(**common))
    fedpals = {f"{e:g}": Ours(size.run(**common, method="fedpals", ess=e)) for e in ess}
    ratios: dict[str, list[float]] = {name: [] for name in fedpals}
    for _ in range(size.ess_rounds):
        for name, ours in fedpals.items():
            seconds = sum(ours.round())
            ratios[name].append(sum(fedavg.round()) / seconds)
    clients = len(fedavg.simulation.federation.clients)
    return {
        name: {"ratio": statistics.median(ratios[name][1:]), "trained": ours.trained, "clients": clients}
        for name, ours in fedpals.items()
    }
