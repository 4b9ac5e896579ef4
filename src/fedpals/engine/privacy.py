"""Differential privacy of the global models: how much is spent, and what it cannot cover. Loads no torch.

Label counts and α are public; neighbours differ in one client's updates, which one of them replaces by zero. In a round
that adds N(0, σ²) to Σ α_i Δ_i with ‖Δ_i‖ ≤ C, client i is protected by the Gaussian mechanism with μ_i = α_i C/σ. With
σ = z C a, where a is the cap on weights, or max α without one, that is α_i/(z a) ≤ 1/z. Rounds compose exactly,
μ_i² = Σ_t μ_it², because α does not depend on any update, and a client without weight in a round spends nothing in it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedpals.engine.round import PrivacySpent
from fedpals.errors import InputError, MissingExtraError
from fedpals.labels import Indices, Vector
from fedpals.methods import Method

if TYPE_CHECKING:
    from collections.abc import Callable

_TOLERANCE = 1e-9
"""Relative, of ε."""


def check_method(method: Method) -> None:
    """Raise `InputError` if a method sends or uses something about clients that no noise covers."""
    rule, weighting = method.rule, method.weighting
    if rule.keeps_vectors:
        raise InputError(
            f"clip_update: {method.title} sends every client a mean of the clients' own vectors (control variates), "
            "which carries no noise; use another client rule, as fedprox"
        )
    if weighting.needs_losses:
        raise InputError(
            f"clip_update: the weights of {method.title} follow the clients' exact losses, which carry no noise; use "
            "weights that follow from label counts, as fedpals or fedavg"
        )
    if weighting.chooses:
        raise InputError(
            "clip_update: ess is 'auto', which clients choose by the exact losses of their held-out samples, without "
            "noise; give a number, as ess 0.5"
        )


def spend(spent: Vector, participants: Indices, alpha: Vector, noise_multiplier: float, largest: float) -> Vector:
    """Return μ_i² of all clients, (M,), after a round of ``participants``: + (α_i / (z a))², a = ``largest``."""
    total = spent.copy()
    total[participants] += np.square(alpha / (noise_multiplier * largest))
    return total


def epsilon(mu: float, delta: float) -> float:
    """Return the smallest ε so that the Gaussian mechanism with μ = sensitivity/σ is (ε, δ)-differentially private.

    >>> round(epsilon(1.0, 1e-5), 3)
    4.377
    """
    if mu == 0.0:
        return 0.0
    from scipy.optimize import brentq  # takes long to load, and only private runs need it

    delta_of = _delta_of(mu)
    if delta_of(0.0) <= delta:
        return 0.0
    highest = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # where a Gaussian's tail is below δ
    return float(brentq(lambda e: delta_of(e) - delta, 0.0, highest, xtol=_TOLERANCE, rtol=_TOLERANCE))


def _delta_of(mu: float) -> Callable[[float], float]:
    """Return δ(ε) of the Gaussian mechanism, as dp-accounting computes it."""
    require_accountant()
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss  # takes seconds to load

    return GaussianPrivacyLoss(1.0 / mu).get_delta_for_epsilon  # type: ignore[no-any-return]


def require_accountant() -> None:
    """Raise `MissingExtraError` if the accountant is not installed."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise MissingExtraError("differential privacy (clip_update)", "privacy") from None


def report(spent: Vector, delta: float, sigma: float, clipped: int) -> PrivacySpent:
    """Return ε of the client that has spent most."""
    worst = int(spent.argmax())
    return PrivacySpent(epsilon(math.sqrt(float(spent[worst])), delta), delta, worst, sigma, clipped)


def change_of_weights(alpha: Vector, without: Vector, client: int) -> float:
    """Return ‖α − α'‖₁, at most 2, where α' are the weights of the others, in their order, without the ``client``.

    It takes the place of α_i where a client is left out altogether, because then every weight changes: the aggregate
    moves by up to C ‖α − α'‖₁. For FedAvg that is 2 C α_i. It says how private a client's presence is only where σ is
    the same without the client, as with a cap.

    >>> change_of_weights(np.array([0.25, 0.5, 0.25]), np.array([0.5, 0.5]), 1)
    1.0
    """
    return float(np.abs(alpha - np.insert(without, client, 0.0)).sum())
