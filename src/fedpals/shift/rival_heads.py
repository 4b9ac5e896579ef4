"""Training-free heads of other authors, from the same sums of features as the Gaussian head, with T as the prior.

With n_y, μ_y and n the samples, mean features and total over all clients, and G = Σ φφᵀ:

- **FedCGS** (Guan et al. 2025): linear discriminant analysis with the covariance of all features around their common
  mean, Σ = (G − n μμᵀ)/(n − 1), not around the means of their labels, and without shrinkage. The Gaussian head differs
  in both, and it can recognise a label that nobody has.
- **Fed3R** (Fanì et al. 2024): ridge regression of one-hot labels on φ₁ = (φ, 1), f(φ) = φ₁·(Σ φ₁φ₁ᵀ + λI)⁻¹ Σ φ₁yᵀ.
  Its outputs estimate p(y | x) of the clients' pool S, so the target's are proportional to f_y·T(y)/S(y). That
  correction takes the place of the authors' normalisation of the columns.
- **FedCOF** (Goswami et al. 2025): clients send mean features and counts only. If the features of label y have
  covariance Σ_y, a mean of n_iy of them has Σ_y/n_iy, so the means of the M_y clients that have y give
  Σ_y = Σ_i n_iy (μ_iy − μ_y)(μ_iy − μ_y)ᵀ / (M_y − 1). They are averaged with the authors' weights n_y − 1, over labels
  that several clients have, shrunk like the Gaussian head's covariance, and used in the same Bayes classifier. The
  authors add γI, and use the result in place of the Gram matrix of a ridge regression.

A label that nobody has is never predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError
from fedpals.labels import Vector
from fedpals.shift.gaussian import FeatureSums, Head, bayes_layer, shrink

RIDGE = 0.01
"""λ of Fed3R, as its authors have it."""


@dataclass(frozen=True, eq=False)
class RidgeHead:
    """Log of the probabilities that a ridge regression estimates, corrected for the target."""

    weight: Vector
    """(K, d) W."""
    bias: Vector
    """(K,) b."""
    prior_shift: Vector
    """(K,) log T − log S; −∞ for labels that are not in the target, or that nobody has."""
    floor: float
    """Smallest probability: a regression may give less, even negative ones."""

    def __call__(self, features: Vector) -> Vector:
        """Return the logits, (n, K), of features, (n, d)."""
        estimated = features @ self.weight.T + self.bias
        return np.asarray(np.log(np.maximum(estimated, self.floor)) + self.prior_shift)


def fedcgs_head(sums: Sequence[FeatureSums], target: Vector) -> Head:
    """Return FedCGS's head for the target T, (K,), from the sums of all clients."""
    pooled, prior = _pool(sums, target)
    n, total = pooled.samples, int(pooled.samples.sum())
    mean = pooled.features.sum(axis=0) / total
    covariance = (pooled.products - total * np.outer(mean, mean)) / max(total - 1, 1)
    means = _means(pooled.features, n)
    directions = means @ np.linalg.pinv(covariance, hermitian=True)  # features that never vary have no inverse
    return Head.of(*bayes_layer(means, directions, prior))


def fed3r_head(sums: Sequence[FeatureSums], target: Vector) -> RidgeHead:
    """Return Fed3R's head for the target T, (K,), from the sums of all clients."""
    pooled, prior = _pool(sums, target)
    n, total = pooled.samples, int(pooled.samples.sum())
    sum_of_features = pooled.features.sum(axis=0)[:, None]
    gram = np.block([[pooled.products, sum_of_features], [sum_of_features.T, np.array([[float(total)]])]])
    one_hot_products = np.vstack([pooled.features.T, n])
    solution = np.linalg.solve(gram + RIDGE * np.eye(len(gram)), one_hot_products).astype(np.float64, copy=False)
    with np.errstate(divide="ignore"):
        shift = np.log(prior) - np.log(np.maximum(n, 1) / total)
    return RidgeHead(solution[:-1].T, solution[-1], shift, 0.5 / total)


def fedcof_head(sums: Sequence[FeatureSums], target: Vector) -> Head:
    """Return FedCOF's head for the target T, (K,), from samples and mean features of all clients; no products."""
    pooled, prior = _pool(sums, target)
    n, d = pooled.samples, pooled.features.shape[1]
    means = _means(pooled.features, n)
    counts = np.stack([one.samples for one in sums])
    scatter, weight, freedom = np.zeros((d, d)), 0, 0
    for label in np.flatnonzero((counts > 0).sum(axis=0) > 1).tolist():
        with_label = np.flatnonzero(counts[:, label]).tolist()
        own_n = counts[with_label, label, None]
        own_means = np.stack([sums[i].features[label] for i in with_label]) / own_n
        deviations = np.sqrt(own_n) * (own_means - means[label])
        scatter += (n[label] - 1) / (len(with_label) - 1) * deviations.T @ deviations
        weight, freedom = weight + int(n[label]) - 1, freedom + len(with_label) - 1
    covariance = shrink(scatter / max(weight, 1), max(freedom, 1))
    directions = np.asarray(np.linalg.solve(covariance, means.T).T, dtype=np.float64)
    return Head.of(*bayes_layer(means, directions, prior))


def _pool(sums: Sequence[FeatureSums], target: Vector) -> tuple[FeatureSums, Vector]:
    """Return the sums of all clients together, and T without the labels that nobody has, (K,)."""
    if not sums:
        raise InputError("no sums: at least one client must send sums of its features")
    pooled = reduce(add, sums)
    prior = np.where(pooled.samples > 0, target, 0.0)
    if not prior.any():
        raise InputError("no client has a sample of any label of the target, so they cannot be distinguished")
    return pooled, prior


def _means(features: Vector, n: npt.NDArray[np.int64]) -> Vector:
    return np.asarray(features / np.maximum(n, 1)[:, None])
