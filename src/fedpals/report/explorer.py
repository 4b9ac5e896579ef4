"""The λ explorer: exact weights along the whole trade-off, computed beforehand, for a page to move through."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from fedpals.files import replacing
from fedpals.labels import LabelCounts, Vector
from fedpals.report.advice import coverage_sentence
from fedpals.report.figures import CORNERS, hull
from fedpals.report.html import render
from fedpals.weights import ess_grid, solve

POINTS = 60
"""Solves between the limit λ → 0⁺ and FedAvg."""
_CLIENTS = 50
"""Of more clients, those that ever have the largest weights are shown."""
_LABELS = 40
"""Of more labels, those that ever have the largest shares are shown."""
_DIGITS = 5


def explore(counts: LabelCounts, target: Vector, *, name: str, ess: float | None = None) -> dict[str, Any]:
    """Return what the page needs to show weights, marginals, distances and ESS from λ → 0⁺ to FedAvg.

    ``ess`` is where the slider stands at first; in the middle unless given.
    """
    limit, fedavg = (solve(counts, target, lam=lam) for lam in (0.0, math.inf))
    steps = (limit, *ess_grid(counts, target, POINTS), fedavg)
    alphas, marginals = np.array([w.alpha for w in steps]), np.array([w.marginal for w in steps])
    clients = _largest(alphas.max(axis=0), _CLIENTS)
    clients = clients[np.argsort(-counts.sizes[clients], kind="stable")]
    labels = np.sort(_largest(np.maximum(marginals.max(axis=0), target), _LABELS))
    wanted = ess if ess is not None else (limit.ess + 1.0) / 2
    return {
        "name": name,
        "covered": coverage_sentence(limit),
        "samples": counts.total,
        "clients": [counts.client(i) for i in clients],
        "sizes": counts.sizes[clients].astype(int).tolist(),
        "allClients": counts.shape[0],
        "labels": [counts.label(k) for k in labels],
        "allLabels": counts.shape[1],
        "target": _rounded(target[labels]),
        "fedavg": _rounded(fedavg.alpha[clients]),
        "pooled": _rounded(fedavg.marginal[labels]),
        "start": int(np.argmin([abs(w.ess - wanted) for w in steps])),
        "steps": [
            {
                "ess": float(f"{w.ess:.6g}"),
                "lam": float(f"{w.lam:.4g}") if math.isfinite(w.lam) else None,
                "distance": float(f"{w.squared_distance:.4g}"),
                "used": int(np.count_nonzero(w.alpha)),
                "alpha": _rounded(w.alpha[clients]),
                "marginal": _rounded(w.marginal[labels]),
            }
            for w in steps
        ],
        "simplex": _simplex(counts, clients, limit.projection.point) if counts.shape[1] == 3 else None,
    }


def write_explorer(counts: LabelCounts, target: Vector, path: Path, *, name: str, ess: float | None = None) -> None:
    """Write the explorer of one federation as a page of its own, whole or not at all."""
    page = render("alone.html", explorers=[explore(counts, target, name=name, ess=ess)], name=name)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _simplex(counts: LabelCounts, clients: Any, projection: Vector) -> dict[str, Any]:
    """Return the hull of all clients and the shown ones' marginals, as places in a triangle."""
    S = counts.marginals if isinstance(counts.marginals, np.ndarray) else counts.marginals.toarray()
    return {
        "corners": CORNERS.round(_DIGITS).tolist(),
        "hull": hull(S[counts.sizes > 0] @ CORNERS).round(_DIGITS).tolist(),
        "clients": S[clients].round(_DIGITS).tolist(),
        "projection": _rounded(projection),
    }


def _largest(values: Vector, count: int) -> Any:
    return np.sort(np.argsort(-values, kind="stable")[:count])


def _rounded(values: Vector) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]
