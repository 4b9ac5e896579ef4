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
    their sizes. Their sum is concave in t and linear between the t at which a client comes to the cap, so Newton's
    method finds t from below in a few steps.
    """
    if w.max() <= cap:
        return w
    clients = int(np.count_nonzero(w))
    if leaves_one_choice(cap, clients):
        return np.where(w > 0, cap, 0.0)
    at_cap = w > cap
    while True:
        number = int(np.count_nonzero(at_cap))
        t = (1.0 - cap * number) / float(w[~at_cap].sum())
        exceeding = t * w > cap
        if not number < np.count_nonzero(exceeding) < clients:
            break
        at_cap = exceeding
    alpha = np.minimum(t * w, cap)
    alpha[at_cap] = cap
    return alpha
