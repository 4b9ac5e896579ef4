"""The λ explorer: exact weights along the whole trade-off, computed in advance for an interactive page."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np

from fedpals.files import replacing
from fedpals.labels import LabelCounts, Vector
from fedpals.report.advice import coverage_sentence, mismatch, shortage_sentence, used_clients
from fedpals.report.figures import CORNERS, hull
from fedpals.report.html import render
from fedpals.weights import Weights, ess_grid, solve

POINTS = 60
"""Number of solutions between the limit λ → 0⁺ and FedAvg."""
_LARGE_CELLS, _LARGE_POINTS = 1_000_000, 15
"""Number of counts above which fewer solutions must do: each takes a second and megabytes."""
_SHOWN_CLIENTS = 50
"""Number of clients shown: those with the largest weights at any λ."""
_SHOWN_LABELS = 40
"""Number of labels shown: those with the largest shares at any λ."""
_DIGITS = 5
"""Decimals of weights and shares."""


def explore(counts: LabelCounts, target: Vector, *, name: str, ess: float | None = None) -> dict[str, Any]:
    """Return the data of the page: weights, marginals, squared distances and ESS from λ → 0⁺ to FedAvg.

    ``ess`` is the first position of the slider, exactly; by default the middle.
    """
    steps = _solutions(counts, target)
    limit, fedavg = steps[0], steps[-1]
    if ess is not None and limit.ess < ess < fedavg.ess:
        steps = tuple(sorted((*steps, solve(counts, target, ess=ess)), key=lambda weights: weights.ess))
    marginals = np.array([w.marginal for w in steps])
    clients = _largest(functools.reduce(np.maximum, (w.alpha for w in steps)), _SHOWN_CLIENTS)
    clients = clients[np.argsort(-counts.sizes[clients], kind="stable")]
    labels = np.sort(_largest(np.maximum(marginals.max(axis=0), target), _SHOWN_LABELS))
    start_ess = ess if ess is not None else (limit.ess + 1.0) / 2
    return {
        "name": name,
        "covered": coverage_sentence(limit),
        "shortage": shortage_sentence(limit) or "",
        "samples": counts.total,
        "clients": [counts.client(i) for i in clients],
        "sizes": counts.sizes[clients].astype(int).tolist(),
        "allClients": counts.shape[0],
        "labels": [counts.label(k) for k in labels],
        "allLabels": counts.shape[1],
        "target": _round(target[labels]),
        "fedavg": _round(fedavg.alpha[clients]),
        "pooled": _round(fedavg.marginal[labels]),
        "start": int(np.argmin([abs(w.ess - start_ess) for w in steps])),
        "steps": [
            {
                "ess": float(f"{w.ess:.6g}"),
                "lam": float(f"{w.lam:.4g}") if math.isfinite(w.lam) else None,
                "wrongMix": round(mismatch(w.target, w.marginal), _DIGITS),
                "squaredDistance": float(f"{w.squared_distance:.4g}"),
                "used": used_clients(w),
                "alpha": _round(w.alpha[clients]),
                "marginal": _round(w.marginal[labels]),
            }
            for w in steps
        ],
        "simplex": _simplex(counts, clients, limit.projection.point) if counts.shape[1] == 3 else None,
    }


_SHARED_CELLS = 100_000
"""Counts of larger tables are not kept: only small federations are shown several times."""
_SOLUTIONS: dict[tuple[bytes, bytes, tuple[str, ...] | None], tuple[Weights, ...]] = {}
"""Solutions by counts, target and labels, which sentences name: experiments share federations."""


def _solutions(counts: LabelCounts, target: Vector) -> tuple[Weights, ...]:
    """Solve from λ → 0⁺ to FedAvg, once per federation."""
    small = isinstance(counts.table, np.ndarray) and counts.table.size <= _SHARED_CELLS
    key = (np.ascontiguousarray(counts.table).tobytes() if small else b"", target.tobytes(), counts.labels)
    if small and key in _SOLUTIONS:
        return _SOLUTIONS[key]
    limit, fedavg = (solve(counts, target, lam=lam) for lam in (0.0, math.inf))
    points = POINTS if math.prod(counts.shape) <= _LARGE_CELLS else _LARGE_POINTS
    solutions = (limit, *ess_grid(counts, target, points), fedavg)
    if small:
        _SOLUTIONS[key] = solutions
    return solutions


def write_explorer(counts: LabelCounts, target: Vector, path: Path, *, name: str, ess: float | None = None) -> None:
    """Write the explorer of one federation as a separate page, atomically."""
    data = explore(counts, target, name=name, ess=ess)
    page = render("alone.html", scripts=("charts.js", "explorer.js"), explorers=[data], name=name)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _simplex(counts: LabelCounts, clients: Any, projection: Vector) -> dict[str, Any]:
    """Return the hull of all clients, as points in a triangle, and the marginals of the shown clients."""
    S = counts.marginals if isinstance(counts.marginals, np.ndarray) else counts.marginals.toarray()
    return {
        "corners": CORNERS.round(_DIGITS).tolist(),
        "hull": hull(S[counts.sizes > 0] @ CORNERS).round(_DIGITS).tolist(),
        "clients": S[clients].round(_DIGITS).tolist(),
        "projection": _round(projection),
    }


def _largest(values: Vector, count: int) -> Any:
    return np.sort(np.argsort(-values, kind="stable")[:count])


def _round(values: Vector) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]
