"""Uncertainty of weights from noisy label counts, as the server can estimate it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError
from fedpals.labels import LabelCounts, Vector
from fedpals.labels.private import discrete_laplace, integer_table, repair
from fedpals.rng import generator
from fedpals.weights.instance import Weights
from fedpals.weights.solver import solve


@dataclass(frozen=True, eq=False)
class WeightUncertainty:
    """Uncertainty of weights from noisy counts, estimated from ``draws`` repetitions of the noise."""

    weights: Weights
    """Weights from the repaired counts."""
    lower: Vector
    """(M,) 5 % quantile of α'."""
    upper: Vector
    """(M,) 95 % quantile of α'."""
    moved: float
    """Mean of ½ Σ|α' − α|, the weight that noise moves to other clients."""
    squared_distance: float
    """Mean of ‖T − Sᵀα'‖², the squared distance that noisy weights reach; compare with ``weights.squared_distance``."""
    worst_squared_distance: float
    """95 % quantile of ‖T − Sᵀα'‖²."""


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
    max_weight: float | None = None,
) -> WeightUncertainty:
    """Estimate how far α may be off, by parametric bootstrap.

    The repaired ``counts`` are taken as the true ones. In each of ``draws`` repetitions, noise is added to them
    from the address ("spread", draw), and the noisy counts are repaired and solved. The squared distance of
    the resulting weights α' is measured on ``counts``.

    Parameters
    ----------
    counts, target
        Repaired counts and T.
    epsilon
        ε of the noise in them.
    seed, draws
        Seed and number of the repetitions.
    known_sizes
        Whether ``counts`` were repaired with known sizes.
    lam, ess, max_weight
        As for `fedpals.solve`.
    """
    if draws < 1:
        raise InputError(f"draws is {draws}; it must be at least 1, for instance 100")
    weights = solve(counts, target, lam=lam, ess=ess, max_weight=max_weight)
    counts, T = weights.counts, weights.target
    table, sizes = integer_table(counts), counts.sizes.astype(np.int64)
    alphas = np.empty((draws, sizes.size))
    for draw in range(draws):
        noisy = table + discrete_laplace(epsilon, table.shape, generator(seed, "spread", draw))
        repaired = repair(noisy, sizes=sizes if known_sizes else None, like=counts)
        alphas[draw] = solve(repaired, T, lam=lam, ess=ess, max_weight=max_weight).alpha
    squared_distances = np.square(T - alphas @ counts.marginals).sum(axis=1)
    lower, upper = np.quantile(alphas, [0.05, 0.95], axis=0)
    return WeightUncertainty(
        weights=weights,
        lower=lower,
        upper=upper,
        moved=float(0.5 * np.abs(alphas - weights.alpha).sum(axis=1).mean()),
        squared_distance=float(squared_distances.mean()),
        worst_squared_distance=float(np.quantile(squared_distances, 0.95)),
    )
