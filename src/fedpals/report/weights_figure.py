"""Figure of one set of weights: the weight of every client, the label mix, and the trade-off with other weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedpals.report.advice import mismatch
from fedpals.report.figures import Panel, compose, legend_below
from fedpals.report.looks import BLUE, GREEN, GREY, ORANGE, RED
from fedpals.weights import Weights, ess_grid, solve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED_CLIENTS = 20
"""Number of clients with their own bar; the others are added up."""
_NAMED_LABELS = 15
"""Number of labels shown: those with the largest shares."""
_CURVE_POINTS = 15
"""Number of solutions between the limit λ → 0⁺ and FedAvg."""


def weights_overview(weights: Weights) -> Figure:
    """Draw weights by client, the label mix next to the target's, and the trade-off."""
    clients = min(weights.alpha.size, _NAMED_CLIENTS + 1)
    counts, target, cap = weights.counts, weights.target, weights.max_weight
    limit, fedavg = (solve(counts, target, lam=lam, max_weight=cap) for lam in (0.0, math.inf))
    path = (limit, *ess_grid(counts, target, _CURVE_POINTS, max_weight=cap), fedavg)
    size = (4.8, max(3.6, 0.26 * clients + 1.2))
    panels = [
        Panel("weights of the clients", partial(_draw_clients, weights=weights), size),
        Panel("labels of the mix", partial(_draw_mix, weights=weights), size),
        Panel("trade-off", partial(_draw_tradeoff, weights=weights, path=path), size),
    ]
    return compose(panels)


def _draw_clients(ax: Axes, weights: Weights) -> None:
    order = np.argsort(-weights.alpha, kind="stable")
    largest, others = order[:_NAMED_CLIENTS], order[_NAMED_CLIENTS:]
    names = [weights.counts.client(i) for i in largest]
    fedpals, fedavg = weights.alpha[largest].tolist(), weights.fedavg[largest].tolist()
    if others.size:
        names.append(f"{others.size:,} others")
        fedpals.append(float(weights.alpha[others].sum()))
        fedavg.append(float(weights.fedavg[others].sum()))
    places = np.arange(len(names))
    ax.barh(places, fedpals, height=0.7, color=BLUE, label="FedPALS")
    ax.plot(fedavg, places, "o", color=ORANGE, markersize=5, label="FedAvg")
    ax.set_yticks(places, [_short(name) for name in names])
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel("aggregation weight")
    legend_below(ax)


def _draw_mix(ax: Axes, weights: Weights) -> None:
    fedavg = np.asarray(weights.fedavg @ weights.counts.marginals)
    importance = np.max([weights.target, weights.marginal, fedavg], axis=0)
    indices = np.sort(np.argsort(-importance, kind="stable")[:_NAMED_LABELS])
    places, height = np.arange(indices.size), 0.27
    for shift, values, colour, name in (
        (-height, fedavg, ORANGE, "FedAvg"),
        (0.0, weights.marginal, BLUE, "FedPALS"),
        (height, weights.target, RED, "target"),
    ):
        ax.barh(places + shift, 100 * values[indices], height, color=colour, label=name)
    ax.set_yticks(places, [_short(weights.counts.label(int(k))) for k in indices])
    ax.invert_yaxis()
    ax.set_xlabel("share of samples (%)")
    legend_below(ax)


def _draw_tradeoff(ax: Axes, weights: Weights, path: Sequence[Weights]) -> None:
    ess = [100 * w.ess for w in path]
    mismatches = [100 * mismatch(w.target, w.marginal) for w in path]
    ax.plot(ess, mismatches, "-", color=GREEN)
    end = "FedAvg" if weights.max_weight is None else "the largest ESS"
    ax.plot(ess[-1], mismatches[-1], "s", color=ORANGE, label=end)
    ax.plot(100 * weights.ess, 100 * mismatch(weights.target, weights.marginal), "o", color=BLUE, label="these weights")
    ax.grid(visible=True, color=GREY, alpha=0.2, linewidth=0.6)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("effective sample size (%)")
    ax.set_ylabel("samples for which the mix is wrong (%)")
    legend_below(ax)


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"
