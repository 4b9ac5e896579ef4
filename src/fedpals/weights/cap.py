"""A cap on influence, α_i ≤ cap: what caps are possible, and the weights at λ = ∞."""

from __future__ import annotations

import numpy as np

from fedpals.errors import InputError
from fedpals.labels import Vector

_ROUNDING = 1e-15
"""Sum of the largest possible weights, less 1, that is rounding."""


def check_cap(cap: float, clients: int) -> None:
    """Refuse a cap with which the weights of so many clients with samples cannot sum to 1."""
    if not 0 < cap <= 1:
        raise InputError(f"max_weight is {cap}; it must be in (0, 1], for instance 0.2")
    if cap < 1.0 / clients:
        raise InputError(
            f"max_weight is {cap}, but {clients} clients with samples have to share the weight 1: "
            f"it must be at least {1.0 / clients}"
        )


def leaves_one_choice(cap: float, clients: int) -> bool:
    """Return whether each of so many clients with samples has to have the cap, up to rounding."""
    return cap * clients <= 1.0 + _ROUNDING


def capped_fedavg(w: Vector, cap: float) -> Vector:
    """Return the weights of largest ESS with a cap, argmin Σ α_i²/w_i over the simplex with α_i ≤ cap.

    They are α_i = min(t·w_i, cap): what the largest clients may not have is shared by the others in proportion to
    their sizes. With the k largest at the cap, t = (1 − k·cap)/(sum of the other w); k is the smallest for which no
    other client exceeds the cap.
    """
    clients = int(np.count_nonzero(w))
    if leaves_one_choice(cap, clients):
        return np.where(w > 0, cap, 0.0)
    order = np.argsort(-w, kind="stable")[:clients]
    falling = w[order]
    others = np.cumsum(falling[::-1])[::-1]  # others[k]: sum of all but the k largest
    t = (1.0 - cap * np.arange(order.size)) / others
    enough = np.flatnonzero(t * falling <= cap)
    k = int(enough[0])
    alpha = np.zeros_like(w)
    alpha[order[:k]] = cap
    alpha[order[k:]] = np.minimum(t[k] * falling[k:], cap)
    return alpha
