"""How updates become one: the weighted mean, that mean with noise, and the weights of a geometric median.

Sums are in the order of the clients and in double precision, so that every engine gets the same bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedpals.labels import Vector
from fedpals.rng import keyed_normals

_STEPS = 100
"""Of the geometric median at most; far more than it takes."""
_CHANGE = 1e-6
"""Last move of the geometric median, as a share of its median distance to updates."""
_SMOOTHING = 1e-3
"""Smallest distance to an update, as a share of the median one: a median that falls on an update stays finite."""


def weighted_means(vectors: Sequence[Tensor | None], weights: Sequence[Vector], like: Tensor) -> list[Tensor]:
    """Return Σ α_i w_i for every α of ``weights``; a vector is None where no α has weight."""
    totals = [torch.zeros_like(like, dtype=torch.float64) for _ in weights]
    for vector, shares in zip(vectors, np.transpose(weights).tolist(), strict=True):
        double = None if vector is None else vector.double()
        for total, share in zip(totals, shares, strict=True):
            if double is not None and share > 0:
                total.add_(double, alpha=share)
    return [total.to(like.dtype) for total in totals]


def private_mean(
    start: Tensor, vectors: Sequence[Tensor | None], alpha: Vector, *, clip: float, sigma: float, key: str, number: int
) -> tuple[Tensor, int]:
    """Return w + Σ α_i Δ_i + N(0, σ²), where Δ_i is w_i − w shortened to ``clip``, and how many were shortened.

    The address of the noise includes the sum, so that the same round gives the same bits again, but a round that is
    computed again with other updates never repeats its noise: the difference of the two would have none.
    """
    total, clipped = start.double(), 0
    for vector, share in zip(vectors, alpha.tolist(), strict=True):
        if vector is not None and share > 0:
            difference = vector.double() - start.double()
            norm = length(difference)
            clipped += norm > clip
            if math.isfinite(norm):
                total = total.add(difference, alpha=share * min(1.0, clip / norm) if norm > 0 else 0.0)
    content = hashlib.sha256(total.cpu().numpy().tobytes()).hexdigest()
    noise = keyed_normals(key, total.numel(), "update noise", number, content)
    return total.add(torch.from_numpy(noise).to(total.device), alpha=sigma).to(start.dtype), clipped


def length(vector: Tensor) -> float:
    """Return the L2 norm in double precision."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def shortened(vector: Tensor, start: Tensor, norm: float) -> Tensor:
    """Return the point in the direction of ``vector`` that is ``norm`` away from ``start``."""
    difference = vector.double() - start.double()
    return (start.double() + difference * (norm / length(difference))).to(start.dtype)


def median_weights(start: Tensor, vectors: Sequence[Tensor | None], alpha: Vector) -> Vector:
    """Return β on the simplex so that Σ β_i w_i is the α-weighted geometric median argmin_w Σ α_i ‖w − w_i‖.

    Smoothed Weiszfeld steps (Pillutla et al., 2022): β_i ∝ α_i / max(‖w − w_i‖, ν) for the last w = Σ β_i w_i. The
    first w is the mean of updates shortened to their median norm: from the mean itself, which one lie can move
    anywhere, the steps would take long.
    """
    used = np.flatnonzero(alpha)
    moves = [v - start for i in used.tolist() if (v := vectors[i]) is not None]
    share = alpha[used]
    norms = np.array([length(move) for move in moves])
    median = weighted_median(norms, share)
    beta = share * np.minimum(1.0, np.divide(median, norms, out=np.ones_like(norms), where=norms > 0))
    centre = _mean(moves, beta)
    for _ in range(_STEPS):
        distances = np.array([length(move.double() - centre) for move in moves])
        typical = weighted_median(distances, share)
        if typical == 0.0:  # most of the weight is on one point
            beta = np.where(distances == 0.0, share, 0.0)
            beta /= beta.sum()
            break
        inverse = share / np.maximum(distances, _SMOOTHING * typical)
        beta = inverse / inverse.sum()
        last, centre = centre, _mean(moves, beta)
        if length(centre - last) < _CHANGE * typical:
            break
    weights = np.zeros_like(alpha)
    weights[used] = beta
    return weights


def weighted_median(values: Vector, share: Vector) -> float:
    """Return the smallest value so that at least half of the ``share`` lies at or below it."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(share[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def _mean(vectors: Sequence[Tensor], weights: Vector) -> Tensor:
    total = torch.zeros_like(vectors[0], dtype=torch.float64)
    for vector, share in zip(vectors, weights.tolist(), strict=True):
        total.add_(vector.double(), alpha=share)
    return total
