"""How far weights may be off because label counts carry noise, as the server itself can tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError
from fedpals.labels import LabelCounts, Vector
from fedpals.labels.private import discrete_laplace, repair, whole
from fedpals.rng import generator
from fedpals.weights.solver import Weights, solve


@dataclass(frozen=True, eq=False)
class WeightUncertainty:
    """How far weights may be off because counts are noisy, from ``draws`` repetitions of the noise."""

    weights: Weights
    """From the repaired counts."""
    lower: Vector
    """(M,) 5 % quantile of α."""
    upper: Vector
    """(M,) 95 % quantile of α."""
    moved: float
    """Mean of ½ Σ|α' − α|, the weight that the noise moves to other clients."""
    squared_distance: float
    """Mean of ‖T − Sᵀα'‖², where noisy weights really lead; compare with ``weights.squared_distance``."""
    worst_squared_distance: float
    """Its 95 % quantile."""


def weight_uncertainty(
    counts: LabelCounts,
    target: npt.ArrayLike | Mapping[str, float],
    epsilon: float,
    seed: int,
    *,
    draws: int = 100,
    known_sizes: bool = False,
    lam: float | None = None,
    ess: float | None = None,
) -> WeightUncertainty:
    """Tell how far α may be off, by parametric bootstrap.

    The repaired ``counts`` stand for the true ones; noise is drawn around them again, repaired, and
    solved for, ``draws`` times, from the addresses ("spread", draw). What the weights α' of a draw
    reach is measured on ``counts``.

    Parameters
    ----------
    counts, target
        Repaired counts and T.
    epsilon
        ε of the noise in them.
    seed, draws
        Of the repetitions.
    known_sizes
        Whether ``counts`` were repaired with known sizes.
    lam, ess
        As for `fedpals.solve`.
    """
    if draws < 1:
        raise InputError(f"draws is {draws}; it takes at least one, better 100")
    weights = solve(counts, target, lam=lam, ess=ess)
    counts, T = weights.counts, weights.target
    table, sizes = whole(counts), counts.sizes.astype(np.int64)
    alphas = np.empty((draws, sizes.size))
    for draw in range(draws):
        noisy = table + discrete_laplace(epsilon, table.shape, generator(seed, "spread", draw))
        again = repair(noisy, sizes=sizes if known_sizes else None, like=counts)
        alphas[draw] = solve(again, T, lam=lam, ess=ess).alpha
    reached = np.square(T - alphas @ counts.marginals).sum(axis=1)
    lower, upper = np.quantile(alphas, [0.05, 0.95], axis=0)
    return WeightUncertainty(
        weights=weights,
        lower=lower,
        upper=upper,
        moved=float(0.5 * np.abs(alphas - weights.alpha).sum(axis=1).mean()),
        squared_distance=float(reached.mean()),
        worst_squared_distance=float(np.quantile(reached, 0.95)),
    )
