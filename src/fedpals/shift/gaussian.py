"""The Gaussian head: a last layer for the target, fitted to sums of the network's features by label.

Under label shift p(x | y) is the same everywhere, so p(y | x) ∝ T(y) p(x | y) in the target. A model that
averages clients with different labels has features φ(x) ∈ ℝᵈ that distinguish labels better than its last
layer does. If the features of each label are Gaussian with a common covariance, φ | y ~ N(μ_y, Σ), the target's
Bayes classifier is linear in them,

    log p_T(y | x) = w_y·φ(x) + b_y + const,    w_y = Σ⁻¹μ_y,    b_y = log T(y) − ½ μ_yᵀΣ⁻¹μ_y,

and replaces the last layer. μ_y and Σ = Σ_y Σ_{i: y_i = y} (φ_i − μ_y)(φ_i − μ_y)ᵀ / n follow from sums over the
clients: samples and features by label, and the products φφᵀ over all labels.

A label u of the target that no client has is recognised by exclusion: a sample unlike all other labels of the target
must be u. It is modelled after the labels v that are not in the target, but as different from each as labels are from
each other: p(φ | u) is the mean over these v of N(μ_v, Σ + B), where B is the covariance of the means of labels that
clients have. The output of each v then predicts u, with the prior T(u) divided by the number of these v. With B = AAᵀ
and I + AᵀΣ⁻¹A = RRᵀ,

    log N(φ; μ_v, Σ + B) = log N(φ; μ_v, Σ) + ½‖Q(φ − μ_v)‖² − log|R|,    Q = R⁻¹AᵀΣ⁻¹,

so only these outputs are not linear in φ.

Σ is shrunk to (1 − ρ)Σ + ρ (tr Σ/d) I with the ρ of Chen et al. (2010), "OAS", which is close to the best ρ for n
Gaussian samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Self

import numpy as np
import numpy.typing as npt
import scipy

from fedpals.errors import InputError
from fedpals.labels import Vector
from fedpals.shift.calibration import Calibration

WIDEST = 4096
"""Largest number of features of the last layer; with more, their products are too large to send and to solve."""
_ROUNDING = 1e-6
"""Relative tolerance when sums are checked against each other; features may be added in single precision."""


@dataclass(frozen=True, eq=False)
class FeatureSums:
    """Sums of features by label that a client sends; the sums of several clients can be added.

    Raises
    ------
    InputError
        For shapes that do not fit, numbers of samples that are not whole numbers ≥ 0, and sums that no samples
        can have; names the field.
    """

    samples: npt.NDArray[np.int64]
    """(K,) n_y."""
    features: Vector
    """(K, d) Σ φ by label."""
    products: Vector
    """(d, d) Σ φφᵀ over all labels."""

    def __post_init__(self) -> None:
        n, features, products = self.samples, self.features, self.products
        if n.ndim != 1 or n.dtype.kind not in "ui" or (n.size and n.min() < 0):
            raise InputError(f"samples must be whole numbers ≥ 0, one per label, not {n.dtype} {n.shape}")
        if features.ndim != 2 or len(features) != n.size or products.shape != 2 * features.shape[1:]:
            raise InputError(f"features {features.shape} and products {products.shape} do not fit {n.size} labels")
        if not (np.isfinite(features).all() and np.isfinite(products).all()):
            raise InputError(
                "features or products are NaN or infinite: the network's output is not finite for some sample"
            )
        if features[n == 0].any():
            raise InputError("features: a sum other than 0 for a label without samples")
        lower_bound = (np.square(features) / np.maximum(n, 1)[:, None]).sum(axis=0)
        if (np.diag(products) < lower_bound * (1 - _ROUNDING)).any():
            raise InputError("products: squares of features that are smaller than their sums allow")

    @classmethod
    def of(cls, features: Vector, y: npt.NDArray[np.int64], labels: int) -> Self:
        """Sum the ``features``, (n, d), of samples with labels ``y``, (n,), out of K ``labels``."""
        f = np.asarray(features, dtype=np.float64)
        one_hot = np.zeros((labels, len(y)))
        one_hot[y, np.arange(len(y))] = 1.0
        return cls(np.bincount(y, minlength=labels), one_hot @ f, f.T @ f)

    def __add__(self, other: FeatureSums) -> FeatureSums:
        if self.features.shape != other.features.shape:
            raise InputError(
                f"sums of {self.features.shape} and of {other.features.shape} labels × features cannot be added; all "
                "clients must use the same labels and network"
            )
        return FeatureSums(self.samples + other.samples, self.features + other.features, self.products + other.products)


@dataclass(frozen=True, eq=False)
class Displaced:
    """The quadratic term for outputs v that predict a label that no client has."""

    axes: Vector
    """(r, d) Q."""
    centres: Vector
    """(K, r) Qμ_v."""

    def gain(self, features: Vector, label: int) -> Vector:
        """Return ½‖Q(φ − μ_v)‖² of features, (n, d), for the label v: (n,)."""
        return np.asarray(0.5 * np.square(features @ self.axes.T - self.centres[label]).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Head:
    """A last layer, φ ↦ φ Wᵀ + b, and the label that each of its outputs predicts."""

    weight: Vector
    """(K, d) W."""
    bias: Vector
    """(K,) b; −∞ for outputs that predict no label of the target."""
    stands_for: npt.NDArray[np.int64]
    """(K,) label of each output: its own, except for outputs that predict a label that no client has."""
    displaced: Displaced | None = None
    """Term that is added to those outputs; None if there are none: the head is then linear."""

    @classmethod
    def of(cls, weight: Vector, bias: Vector) -> Self:
        """Return a plain layer, each output of which predicts its own label."""
        return cls(weight, bias, np.arange(bias.size))

    def __call__(self, features: Vector) -> Vector:
        """Return the logits, (n, K), of features, (n, d): for each label the largest output that predicts it."""
        outputs = features @ self.weight.T + self.bias
        if self.displaced is not None:
            for stand_in in np.flatnonzero(self.stands_for != np.arange(self.bias.size)).tolist():
                outputs[:, stand_in] += self.displaced.gain(features, stand_in)
        logits = np.full_like(outputs, -np.inf)
        for output, label in enumerate(self.stands_for):
            np.maximum(logits[:, label], outputs[:, output], out=logits[:, label])
        return np.asarray(logits)

    def calibrated(self, calibration: Calibration) -> Head:
        """Return the linear head that includes the calibration, z ↦ z/τ + shift."""
        temperature, shift = calibration.temperature, calibration.shift
        return Head(self.weight / temperature, self.bias / temperature + shift, self.stands_for)

    def joined(self, plain: Head) -> Head:
        """Return the head with the geometric mean, up to a factor, of its probabilities and those of a plain layer.

        An output that predicts another label y than its own is joined with the layer's output for y.
        """
        rows, displaced = self.stands_for, self.displaced
        if displaced is not None:  # squares are halved
            displaced = Displaced(displaced.axes / np.sqrt(2), displaced.centres / np.sqrt(2))
        return Head((self.weight + plain.weight[rows]) / 2, (self.bias + plain.bias[rows]) / 2, rows, displaced)


def gaussian_head(sums: Sequence[FeatureSums], target: Vector) -> Head:
    """Return the head for the target T, (K,), from the sums of all clients."""
    if not sums:
        raise InputError("no sums: at least one client must send sums of its features")
    pooled_sums = reduce(add, sums)
    n, total = pooled_sums.samples, int(pooled_sums.samples.sum())
    prior, stands_for = _priors(n, target)
    if not prior.any():
        raise InputError("no client has a sample of any label of the target, so they cannot be distinguished")
    means = pooled_sums.features / np.maximum(n, 1)[:, None]
    covariance = shrink((pooled_sums.products - means.T @ (n[:, None] * means)) / total, total)
    try:
        directions = scipy.linalg.cho_solve(scipy.linalg.cho_factor(covariance), means.T).T
    except np.linalg.LinAlgError:
        raise InputError("products: no features have such products; leave out the client that sent them") from None
    weight, bias = bayes_layer(means, directions, prior)
    stand_ins = stands_for != np.arange(n.size)
    if not stand_ins.any():
        return Head(weight, bias, stands_for)
    displaced, log_volume = _fit_displaced(means, directions, n > 0)
    bias[stand_ins] -= log_volume
    return Head(weight, bias, stands_for, displaced)


def bayes_layer(means: Vector, directions: Vector, prior: Vector) -> tuple[Vector, Vector]:
    """Return W, (K, d), and b, (K,), of the Bayes classifier of Gaussians with a common covariance.

    From the means μ_y and Σ⁻¹μ_y, (K, d) each, and a prior, (K,), which is 0 for outputs that are never predicted.
    """
    weight = np.where(prior[:, None] > 0, directions, 0.0)
    with np.errstate(divide="ignore"):
        bias = np.log(prior) - 0.5 * (weight * means).sum(axis=1)
    return weight, bias


def _fit_displaced(means: Vector, directions: Vector, observed: npt.NDArray[np.bool_]) -> tuple[Displaced, float]:
    """Return Q with its centres, and log|R|, from the μ and Σ⁻¹μ, (K, d) each, of the ``observed`` labels."""
    A, precision_A = (
        (rows[observed] - rows[observed].mean(axis=0)) / np.sqrt(observed.sum() - 1) for rows in (means, directions)
    )
    R = np.linalg.cholesky(np.eye(len(A)) + A @ precision_A.T)
    axes = np.linalg.solve(R, precision_A)
    return Displaced(axes, means @ axes.T), float(np.log(np.diag(R)).sum())


def _priors(n: npt.NDArray[np.int64], target: Vector) -> tuple[Vector, npt.NDArray[np.int64]]:
    """Return the prior of each output, (K,), and the label that it predicts.

    Of several labels that no client has, only the most frequent one is predicted.

    >>> _priors(np.array([9, 0, 5, 7]), np.array([0.6, 0.4, 0.0, 0.0]))
    (array([0.6, 0. , 0.2, 0.2]), array([0, 1, 1, 1]))
    """
    prior, stands_for = np.where(n > 0, target, 0.0), np.arange(n.size)
    missing, is_spare = np.where(n > 0, 0.0, target), (n > 0) & (target == 0)
    if missing.any() and is_spare.any() and prior.any():
        prior[is_spare] = missing.max() / np.count_nonzero(is_spare)
        stands_for[is_spare] = int(missing.argmax())
    return prior, stands_for


def shrink(covariance: Vector, samples: int) -> Vector:
    """Return (1 − ρ)Σ + ρ (tr Σ/d) I; the identity if features do not vary at all."""
    d = len(covariance)
    trace, squares = float(np.trace(covariance)), float(np.square(covariance).sum())
    if trace <= 0:
        return np.eye(d)
    numerator, denominator = squares + trace * trace, (samples + 1) * (squares - trace * trace / d)
    rho = 1.0 if numerator >= denominator else numerator / denominator
    return np.asarray((1.0 - rho) * covariance + rho * trace / d * np.eye(d))
