"""The Gaussian head: what labels look like to a network, told in sums, and the classifier that follows.

Under label shift p(x | y) is the same everywhere, so p(y | x) ∝ T(y) p(x | y) in the target. A model that
averages clients with different labels has features φ(x) ∈ ℝᵈ that tell labels apart better than its last
layer does. Where features of a label are Gaussian with a common covariance, φ | y ~ N(μ_y, Σ), the target's
Bayes classifier is linear in them,

    log p_T(y | x) = w_y·φ(x) + b_y + const,    w_y = Σ⁻¹μ_y,    b_y = log T(y) − ½ μ_yᵀΣ⁻¹μ_y,

and takes the place of the last layer. μ_y and Σ = Σ_y Σ_{i: y_i = y} (φ_i − μ_y)(φ_i − μ_y)ᵀ / n follow from what
clients add up: samples and features by label, and the products φφᵀ over all labels.

A label u of the target that nobody has is recognised by exclusion: what looks like none of the target's other labels
must be it. It is taken to look like the labels v that the target lacks, but to be as far from each as labels are from
each other: p(φ | u) is the mean over these v of N(μ_v, Σ + B), where B is the covariance of the means of labels that
clients have. Each v stands for u with the prior T(u) divided by their number. With B = AAᵀ and I + AᵀΣ⁻¹A = RRᵀ,

    log N(φ; μ_v, Σ + B) = log N(φ; μ_v, Σ) + ½‖Q(φ − μ_v)‖² − log|R|,    Q = R⁻¹AᵀΣ⁻¹,

so that these outputs alone are not linear in φ.

Σ is shrunk to (1 − ρ)Σ + ρ (tr Σ/d) I with the ρ of Chen et al. (2010), "OAS", which comes close to the best for n
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
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from fedpals.errors import InputError
from fedpals.labels import Vector
from fedpals.shift.calibration import Calibration

WIDEST = 4096
"""Features of the last layer beyond which their products are too large to be sent and solved with."""
_ROUNDING = 1e-6
"""How far sums may contradict each other, relatively, when features were added in single precision."""


@dataclass(frozen=True, eq=False)
class FeatureSums:
    """What a client tells about features of its samples; clients' sums add up.

    Raises
    ------
    InputError
        Naming the field, for shapes that do not fit, numbers of samples that are no whole numbers ≥ 0, and sums
        that no samples can have.
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
            raise InputError("features or products are NaN or infinite: the network yields no numbers for some sample")
        if features[n == 0].any():
            raise InputError("features: a sum other than 0 for a label without samples")
        least = (np.square(features) / np.maximum(n, 1)[:, None]).sum(axis=0)
        if (np.diag(products) < least * (1 - _ROUNDING)).any():
            raise InputError("products: squares of features that are smaller than their sums allow")

    @classmethod
    def of(cls, features: Vector, y: npt.NDArray[np.int64], labels: int) -> Self:
        """Add up ``features``, (n, d), of samples with labels ``y``, (n,), out of K ``labels``."""
        f = np.asarray(features, dtype=np.float64)
        member = np.zeros((labels, len(y)))
        member[y, np.arange(len(y))] = 1.0
        return cls(np.bincount(y, minlength=labels), member @ f, f.T @ f)

    def __add__(self, other: FeatureSums) -> FeatureSums:
        if self.features.shape != other.features.shape:
            raise InputError(
                f"sums of {self.features.shape} and of {other.features.shape} labels × features do not add up; all "
                "clients must use the same labels and network"
            )
        return FeatureSums(self.samples + other.samples, self.features + other.features, self.products + other.products)


@dataclass(frozen=True, eq=False)
class Displaced:
    """How much better features fit a label that looks like a known one, but is another."""

    axes: Vector
    """(r, d) Q."""
    centres: Vector
    """(K, r) Qμ_v."""

    def gain(self, features: Vector, label: int) -> Vector:
        """½‖Q(φ − μ_v)‖² of features, (n, d), for the label v: (n,)."""
        return np.asarray(0.5 * np.square(features @ self.axes.T - self.centres[label]).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Head:
    """A last layer: φ ↦ φ Wᵀ + b, and which label each of its outputs stands for."""

    weight: Vector
    """(K, d) W."""
    bias: Vector
    """(K,) b; −∞ for outputs that stand for no label of the target."""
    stands_for: npt.NDArray[np.int64]
    """(K,) the label itself, but for labels that stand for one that nobody has."""
    displaced: Displaced | None = None
    """What is added to those outputs; None where there are none, and the head is linear."""

    @classmethod
    def of(cls, weight: Vector, bias: Vector) -> Self:
        """Return a plain layer, every output of which stands for its own label."""
        return cls(weight, bias, np.arange(bias.size))

    def __call__(self, features: Vector) -> Vector:
        """Return logits, (n, K), of features, (n, d): for each label the largest output that stands for it."""
        outputs = features @ self.weight.T + self.bias
        if self.displaced is not None:
            for stand_in in np.flatnonzero(self.stands_for != np.arange(self.bias.size)).tolist():
                outputs[:, stand_in] += self.displaced.gain(features, stand_in)
        logits = np.full_like(outputs, -np.inf)
        for output, label in enumerate(self.stands_for):
            np.maximum(logits[:, label], outputs[:, output], out=logits[:, label])
        return np.asarray(logits)

    def calibrated(self, calibration: Calibration) -> Head:
        """Build the calibration, z ↦ z/τ + shift, into a linear head."""
        temperature, shift = calibration.temperature, calibration.shift
        return Head(self.weight / temperature, self.bias / temperature + shift, self.stands_for)

    def joined(self, other: Head) -> Head:
        """Return the linear head whose probabilities are, up to a factor, the geometric mean of two linear heads'."""
        return Head((self.weight + other.weight) / 2, (self.bias + other.bias) / 2, self.stands_for)


def gaussian_head(sums: Sequence[FeatureSums], target: Vector) -> Head:
    """Return the head for the target T, (K,), from the sums of all clients."""
    if not sums:
        raise InputError("no sums: at least one client must tell about its features")
    told = reduce(add, sums)
    n, total = told.samples, int(told.samples.sum())
    prior, stands_for = _priors(n, target)
    if not prior.any():
        raise InputError("nobody has a sample of any label of the target, so there is nothing to tell them apart by")
    means = told.features / np.maximum(n, 1)[:, None]
    covariance = _shrunk((told.products - means.T @ (n[:, None] * means)) / total, total)
    try:
        directions = cho_solve(cho_factor(covariance), means.T).T
    except LinAlgError:
        raise InputError("products: no features have such products; leave out the client that told them") from None
    weight = np.where(prior[:, None] > 0, directions, 0.0)
    with np.errstate(divide="ignore"):
        bias = np.log(prior) - 0.5 * (weight * means).sum(axis=1)
    stand_ins = stands_for != np.arange(n.size)
    if not stand_ins.any():
        return Head(weight, bias, stands_for)
    displaced, log_volume = _displaced(means, directions, n > 0)
    bias[stand_ins] -= log_volume
    return Head(weight, bias, stands_for, displaced)


def _displaced(means: Vector, directions: Vector, known: npt.NDArray[np.bool_]) -> tuple[Displaced, float]:
    """Return Q with its centres, and log|R|, from μ and Σ⁻¹μ, (K, d) each, of all labels, of which some are known."""
    A, solved = ((rows[known] - rows[known].mean(axis=0)) / np.sqrt(known.sum() - 1) for rows in (means, directions))
    R = np.linalg.cholesky(np.eye(len(A)) + A @ solved.T)
    axes = np.linalg.solve(R, solved)
    return Displaced(axes, means @ axes.T), float(np.log(np.diag(R)).sum())


def _priors(n: npt.NDArray[np.int64], target: Vector) -> tuple[Vector, npt.NDArray[np.int64]]:
    """Return the prior of every output, (K,), and the label that it stands for.

    Of several labels that nobody has, the most frequent is the best guess wherever one of them is.

    >>> _priors(np.array([9, 0, 5, 7]), np.array([0.6, 0.4, 0.0, 0.0]))
    (array([0.6, 0. , 0.2, 0.2]), array([0, 1, 1, 1]))
    """
    prior, stands_for = np.where(n > 0, target, 0.0), np.arange(n.size)
    lacking, spare = np.where(n > 0, 0.0, target), (n > 0) & (target == 0)
    if lacking.any() and spare.any() and prior.any():
        prior[spare] = lacking.max() / np.count_nonzero(spare)
        stands_for[spare] = int(lacking.argmax())
    return prior, stands_for


def _shrunk(covariance: Vector, samples: int) -> Vector:
    """Return (1 − ρ)Σ + ρ (tr Σ/d) I; the identity where features do not vary at all."""
    d = len(covariance)
    trace, squares = float(np.trace(covariance)), float(np.square(covariance).sum())
    if trace <= 0:
        return np.eye(d)
    needed, uneven = squares + trace * trace, (samples + 1) * (squares - trace * trace / d)
    rho = 1.0 if needed >= uneven else needed / uneven
    return np.asarray((1.0 - rho) * covariance + rho * trace / d * np.eye(d))
