"""Wolfe's algorithm for the point of Conv(S) nearest to T: the last steps of a projection.

In a step the client with the largest price s_i·r, r = T − p, enters. Then, while the point of the affine hull
nearest to T has a negative weight, walk towards it until a weight is 0 and drop that client.

If T is 10⁻¹⁰ from the hull, subtraction leaves r six digits, and prices fewer than they differ by. But the residual at
the nearest point is orthogonal to the face on which it lies. So r is computed as the part of T orthogonal to that face:
the exact residual of a T that differs by rounding only, and prices are as exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector
from fedpals.weights.problem import EPS, Problem

_MAX_STEPS = 2000
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class Face:
    """A face of the hull, spanned by the clients ``rows`` with positive ``weights``, and the rest of T outside it."""

    rows: npt.NDArray[np.intp]
    weights: Vector
    r: Vector
    """T − p, orthogonal to the face."""
    price: Vector
    """s_i·r of all clients; −∞ for a client without samples."""
    level: float
    """s_i·r of the clients of the face."""


def nearest_face(problem: Problem, rows: npt.NDArray[np.intp], weights: Vector) -> Face:
    """Take steps from the mix of ``rows`` with ``weights``, all positive, to the face nearest to T.

    The steps end when T is reached up to a rounding, or when no price is above that of the face.
    """
    p = problem
    face = _priced(p, *_nearest(p, rows, weights))
    visited = {frozenset(face.rows.tolist())}
    for _ in range(_MAX_STEPS):
        size = float(np.abs(face.r).max())
        entering = int(np.argmax(face.price))
        if size <= 2 * EPS or face.price[entering] <= face.level + 8 * p.score_rounding * size:
            break
        face = _priced(p, *_nearest(p, np.append(face.rows, entering), np.append(face.weights, 0.0)))
        # ‖r‖ decreases with every step, but by less than rounding if T is close. A face that returns is the end.
        clients = frozenset(face.rows.tolist())
        if clients in visited:
            break
        visited.add(clients)
    return face


def _nearest(p: Problem, rows: npt.NDArray[np.intp], weights: Vector) -> tuple[npt.NDArray[np.intp], Vector, Vector]:
    """Return the clients, weights and residual of the point closest to T in the hull of ``rows``, or of fewer."""
    while True:
        S = p.marginals(rows)
        edges = (S[1:] - S[0]).T
        to_target = p.T - S[0]
        basis, R = np.linalg.qr(edges)
        along = basis.T @ to_target
        r = to_target - basis @ along
        r -= basis @ (basis.T @ r)
        shares = np.linalg.lstsq(R, along)[0]
        nearest = np.concatenate([[1.0 - shares.sum()], shares])
        leaving = nearest <= 0
        if not leaving.any():
            return rows, nearest, r
        ratios = weights[leaving] / np.maximum(weights[leaving] - nearest[leaving], _TINY)
        weights = weights + ratios.min() * (nearest - weights)
        weights[np.flatnonzero(leaving)[ratios <= ratios.min()]] = 0.0
        kept = weights > 0
        rows, weights = rows[kept], weights[kept] / weights[kept].sum()


def _priced(p: Problem, rows: npt.NDArray[np.intp], weights: Vector, r: Vector) -> Face:
    price = np.where(p.w > 0, p.scores(r), -np.inf)
    return Face(rows, weights, r, price, float(price[rows].max()))
