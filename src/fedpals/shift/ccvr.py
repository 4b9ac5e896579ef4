"""CCVR (Luo et al. 2021): the last layer trained again, on features drawn from a Gaussian per label.

Clients send sums of features and of their products label by label. They give φ | y ~ N(μ_y, Σ_y), from which the
server draws virtual features: n·T(y) of label y instead of the authors' equal numbers, so that the classifier is the
target's. On these a softmax regression is trained,

    min  1/n Σ_i −log softmax(W φ_i + b)_{y_i}  +  ‖W‖²/2n,

with features in units of their standard deviations. The problem is convex, so it does not matter where training starts.
If all Σ_y are equal, the solution tends to linear discriminant analysis as n grows.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import scipy

from fedpals.errors import InputError
from fedpals.labels import Vector
from fedpals.shift.gaussian import FeatureSums, Head
from fedpals.shift.softmax import log_softmax

VIRTUAL_SAMPLES = 5000
"""Number of features that are drawn."""
_JITTER = 1e-9
"""Share of the mean variance that is added to every variance, because Σ_y of few samples is singular."""


def ccvr_head(
    by_label: Iterable[FeatureSums], target: Vector, rng: np.random.Generator, *, samples: int = VIRTUAL_SAMPLES
) -> Head:
    """Return the head for the target T, (K,).

    Parameters
    ----------
    by_label
        Sums over all clients, one for each label in order, of the samples that have this label.
    target
        (K,) T.
    rng
        Generator of the virtual features.
    samples
        n, rounded up for every label.
    """
    drawn = [
        (label, _draw(sums, label, int(np.ceil(samples * target[label])), rng))
        for label, sums in enumerate(by_label)
        if target[label] > 0 and sums.samples[label] > 0
    ]
    if not drawn:
        raise InputError("no client has a sample of any label of the target, so they cannot be distinguished")
    labels = np.array([label for label, _ in drawn])
    features = np.concatenate([values for _, values in drawn])
    y = np.repeat(np.arange(labels.size), [len(values) for _, values in drawn])
    own_weight, own_bias = _softmax_regression(features, y, labels.size)
    weight, bias = np.zeros((target.size, features.shape[1])), np.full(target.size, -np.inf)
    weight[labels], bias[labels] = own_weight, own_bias
    return Head.of(weight, bias)


def _draw(sums: FeatureSums, label: int, number: int, rng: np.random.Generator) -> Vector:
    """Return features, (number, d), from the Gaussian with the mean and covariance of a label's samples."""
    n = int(sums.samples[label])
    mean = sums.features[label] / n
    covariance = (sums.products - n * np.outer(mean, mean)) / max(n - 1, 1)
    jitter = _JITTER * float(np.trace(sums.products)) / n / len(mean)
    noise = rng.standard_normal((number, len(mean)))
    if jitter == 0.0:  # all features are 0
        return noise * 0.0
    try:
        factor = scipy.linalg.cholesky(covariance + jitter * np.eye(len(mean)), lower=True)
    except np.linalg.LinAlgError:
        raise InputError("products: no features have such products; leave out the client that sent them") from None
    return np.asarray(mean + noise @ factor.T)


def _softmax_regression(features: Vector, y: npt.NDArray[np.int64], labels: int) -> tuple[Vector, Vector]:
    """Return weight, (K, d), and bias, (K,), of the regression of labels y, (n,), on features, (n, d)."""
    n, d = features.shape
    centre, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    x, one_hot = (features - centre) / scale, np.eye(labels)[y]

    def objective(parameters: Vector) -> tuple[float, Vector]:
        table = parameters.reshape(labels, d + 1)
        log_p = log_softmax(x @ table[:, :d].T + table[:, d])
        residual = (np.exp(log_p) - one_hot) / n
        gradient = np.column_stack([residual.T @ x + table[:, :d] / n, residual.sum(axis=0)])
        value = -float((one_hot * log_p).sum()) / n + 0.5 * float(np.square(table[:, :d]).sum()) / n
        return value, gradient.reshape(-1)

    solution = scipy.optimize.minimize(
        objective,
        np.zeros(labels * (d + 1)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 1000, "gtol": 1e-7, "ftol": 1e-13},
    )
    table = solution.x.reshape(labels, d + 1)
    weight = table[:, :d] / scale
    return weight, table[:, d] - weight @ centre
