"""Estimates of an unknown T from unlabelled inputs of the target.

**BBSE** (Lipton et al. 2018) needs only predictions. Under label shift the target's predictions mix
the rows of the confusion matrix A[y, ŷ] = P(ŷ | y), and T is the vector of weights of the mix:

    μ(ŷ) = Σ_y T(y) A[y, ŷ],        T̂ = argmin over the simplex ‖μ̂ − Σ_y T(y) Â_y‖²

which is FedPALS's own problem at λ = 0, with labels in place of clients and predictions in place of labels.
The model only has to distinguish the labels.

**EM** (Saerens et al. 2002) needs probabilities p(y|x), calibrated for the label mix π that the model
was trained on. It maximises the likelihood Σ_x log Σ_y p(y|x) T(y)/π(y), which uses more of the model's
information. If the probabilities are not calibrated, it is biased, and its intervals do not show it.

The intervals need no random numbers. Those of BBSE use the delta method: they are normal around the estimate
without the constraint T ≥ 0, and cover the noise of both samples, held-out and target. Those of EM use the
Fisher information, and cover only the noise of the target sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpals.errors import FedpalsError, InputError
from fedpals.labels import LabelCounts, Vector, as_target
from fedpals.shift.tally import Tally
from fedpals.weights import coverage

_MIN_STANDARD_ERRORS = 2.0
"""Smallest singular value of a usable confusion matrix, in standard errors."""
_LIKELIHOOD_TOLERANCE = 1e-4
"""Proven gap between the log-likelihood of all samples and its maximum at which EM ends."""
_MAX_STEPS = 100_000
_MIN_EXPECTED_SAMPLES = 0.5
"""Expected number of samples below which a label counts as absent."""
_SINGULAR_VALUE = 1e-10
"""Singular value, or eigenvalue of the relative information, that counts as 0."""


class NotConvergedError(FedpalsError, ArithmeticError):
    """The likelihood was not maximised within the largest number of steps."""


@dataclass(frozen=True, eq=False)
class TargetEstimate:
    """An estimate of T, with a confidence interval for each label."""

    target: Vector
    """T̂, K probabilities."""
    lower: Vector
    upper: Vector
    level: float
    """Probability with which each interval covers T(y)."""
    unseen: tuple[int, ...]
    """Labels without information, estimated as 0: no client held out samples of them, or π(y) = 0."""


def bbse(
    tally: Tally, predicted: npt.ArrayLike, *, level: float = 0.95, labels: Sequence[str] | None = None
) -> TargetEstimate:
    """Estimate T from predictions.

    Parameters
    ----------
    tally
        Tally of all clients together (`pooled`), on samples that the model was not trained on.
    predicted
        (K,) number of the target's inputs for which the same model predicts each label.
    level
        Level of the confidence intervals.
    labels
        Names of the labels in error messages; by default their numbers.

    Raises
    ------
    InputError
        If the confusion matrix is singular, or too close to singular for its number of samples; names
        the labels that cannot be distinguished.

    Examples
    --------
    >>> tally = Tally(np.zeros(2), np.zeros(2), np.array([[80, 20], [10, 90]]))
    >>> bbse(tally, [310, 690]).target.round(3).tolist()
    [0.3, 0.7]
    """
    z = _normal_quantile(level)
    confusion = LabelCounts.of(tally.confusion)
    predictions = LabelCounts.of(np.asarray(predicted)[None])
    mu, m = as_target(np.asarray(predictions.marginals)[0], confusion), predictions.total
    seen = np.flatnonzero(confusion.sizes)
    A, n = np.asarray(confusion.marginals)[seen], confusion.sizes[seen]
    # One sample spread over all labels is added for the variances, so that few samples of a label do not look certain.
    smoothed = (A * n[:, None] + 1.0 / mu.size) / (n[:, None] + 1.0)
    _check_distinguishable(A, smoothed, n, _label_names(labels, seen))
    T = coverage(confusion, mu).alpha[seen]
    inverse = np.linalg.pinv(A.T)
    share = np.square(T) / n
    noise = _multinomial_covariance(mu) / m + np.diag(share @ smoothed) - smoothed.T @ (share[:, None] * smoothed)
    centre = inverse @ mu
    half_width = z * np.sqrt(np.maximum(np.diag(inverse @ noise @ inverse.T), 0.0))
    return _estimate_all_labels(T, centre - half_width, centre + half_width, seen, mu.size, level)


def em(
    probabilities: npt.ArrayLike,
    prior: npt.ArrayLike,
    *,
    level: float = 0.95,
    labels: Sequence[str] | None = None,
) -> TargetEstimate:
    """Estimate T by maximum likelihood, from probabilities.

    One step is T(y) ← mean over x of p(y|x)·w_y/Σ_k p(k|x)·w_k with w = T/π: the new T is the average of
    the posterior under the old T. With g_y = (new T)/(old T), the log-likelihood of m samples is at most
    m·(max g − 1) below its maximum, because it is concave. The iteration ends when this bound is small.

    Parameters
    ----------
    probabilities
        (m, K) p(y|x) for the target's inputs; rows sum to 1.
    prior
        π, the label mix that the probabilities are calibrated for, such as p_α = Σ α_i S_i.
    level
        Level of the confidence intervals.
    labels
        Names of the labels in error messages; by default their numbers.

    Examples
    --------
    >>> x = np.repeat([[0.8, 0.2], [0.2, 0.8]], [60, 40], axis=0)
    >>> em(x, [0.5, 0.5]).target.round(3).tolist()
    [0.667, 0.333]
    """
    z = _normal_quantile(level)
    P = np.asarray(probabilities, dtype=np.float64)
    if P.ndim != 2 or P.size == 0:
        raise InputError(f"probabilities have shape {P.shape}; they must be m×K, one row per target input")
    if not (P.min() >= 0 and np.abs(P.sum(axis=1) - 1.0).max() <= 1e-3):
        row = int(np.argmax(~((P >= 0).all(axis=1) & (np.abs(P.sum(axis=1) - 1.0) <= 1e-3))))
        raise InputError(
            f"probabilities: row {row} sums to {P[row].sum():g}; each row must be probabilities, such as a softmax"
        )
    K = P.shape[1]
    pi = as_target(prior, LabelCounts.of(np.ones((1, K))))
    seen = np.flatnonzero(pi)
    ratios = P[:, seen] / pi[seen]
    if not ratios.any(axis=1).all():
        row = int(np.argmin(ratios.any(axis=1)))
        raise InputError(
            f"probabilities: row {row} allows only for labels whose prior is 0; prior must be > 0 for labels that occur"
        )
    T = _maximise_likelihood(ratios, pi[seen])
    lower, upper = _likelihood_intervals(ratios / (ratios @ T)[:, None], T, z, _label_names(labels, seen))
    return _estimate_all_labels(T, lower, upper, seen, K, level)


def _maximise_likelihood(ratios: Vector, start: Vector) -> Vector:
    m = len(ratios)
    T = start
    for _ in range(_MAX_STEPS):
        growth = (1.0 / (ratios @ T)) @ ratios / m
        T = T * growth
        if m * (growth.max() - 1.0) <= _LIKELIHOOD_TOLERANCE:
            return np.asarray(T / T.sum())
    raise NotConvergedError(
        f"the likelihood of T did not reach its maximum in {_MAX_STEPS:,} steps; some labels can hardly be "
        "distinguished: use bbse, or merge them"
    )


def _multinomial_covariance(p: Vector) -> Vector:
    """Return the covariance of one draw from a multinomial distribution."""
    return np.asarray(np.diag(p) - np.outer(p, p))


def _likelihood_intervals(W: Vector, T: Vector, z: float, names: Sequence[str]) -> tuple[Vector, Vector]:
    """Return intervals of the maximum T of mean_x log Σ_y T_y r_xy, with W_xy = r_xy/Σ_k T_k r_xk, (m, K).

    Without ΣT = 1, the information of m samples about the labels that occur is mH, H = WᵀW/m. The
    constraint subtracts T·Tᵀ/m from its inverse, as it does for Poisson and multinomial counts. Labels at
    T = 0 have a slope −a, a = 1 − mean W_y, and, with the other labels optimised, a curvature b (Schur
    complement). Their upper bound is where the log-likelihood has fallen by z²/2: m(aδ + bδ²/2) = z²/2.
    """
    m = len(W)
    H = W.T @ W / m
    is_present = T * m >= _MIN_EXPECTED_SAMPLES
    present, absent = np.flatnonzero(is_present), np.flatnonzero(~is_present)
    root = np.sqrt(T[present])
    values, vectors = np.linalg.eigh(root[:, None] * H[np.ix_(present, present)] * root)
    if values[0] <= _SINGULAR_VALUE:
        raise InputError(
            _indistinguishable([names[i] for i in present.tolist()], root * vectors[:, 0], "these probabilities")
        )
    inverse = root[:, None] * (vectors / values) @ vectors.T * root
    half_width = np.zeros_like(T)
    half_width[present] = z * np.sqrt(np.maximum(np.diag(inverse) - np.square(T[present]), 0.0) / m)
    cross = H[np.ix_(absent, present)]
    a = np.maximum(1.0 - W[:, absent].mean(axis=0), 0.0)
    b = np.maximum(np.diag(H)[absent] - np.sum(cross @ inverse * cross, axis=1), 0.0)
    drop = z * z / m
    with np.errstate(divide="ignore"):
        half_width[absent] = drop / (a + np.sqrt(np.square(a) + b * drop))
    return T - half_width, T + half_width


def _estimate_all_labels(
    T: Vector, lower: Vector, upper: Vector, seen: npt.NDArray[np.intp], labels: int, level: float
) -> TargetEstimate:
    """Extend the estimate from the seen labels to all K; clip intervals to [0, 1], but keep the estimate inside."""
    estimate = TargetEstimate(
        target=np.zeros(labels),
        lower=np.zeros(labels),
        upper=np.ones(labels),
        level=level,
        unseen=tuple(np.setdiff1d(np.arange(labels), seen).tolist()),
    )
    estimate.target[seen] = T
    estimate.lower[seen] = np.minimum(T, np.clip(lower, 0.0, 1.0))
    estimate.upper[seen] = np.maximum(T, np.clip(upper, 0.0, 1.0))
    return estimate


def _normal_quantile(level: float) -> float:
    """Return the quantile of the normal distribution for intervals of this level."""
    from scipy.special import ndtri  # slow to load: only where it is used

    if not 0 < level < 1:
        raise InputError(f"level is {level}; it must be between 0 and 1, for instance 0.95")
    return float(ndtri(0.5 + level / 2))


def _check_distinguishable(A: Vector, smoothed: Vector, n: Vector, names: Sequence[str]) -> None:
    """Raise an error if the smallest singular value σ of A, with u·A = σv, is not clearly above its noise.

    Var(u·Â) sums to Σ_y u_y² (1 − ‖A_y‖²)/n_y.
    """
    directions, values, _ = np.linalg.svd(A, full_matrices=False)
    u, smallest = directions[:, -1], values[-1]
    noise = float(np.sqrt(np.square(u) @ ((1.0 - np.square(smoothed).sum(axis=1)) / n)))
    if smallest <= max(_MIN_STANDARD_ERRORS * noise, _SINGULAR_VALUE):
        raise InputError(_indistinguishable(names, u, "these predictions"))


def _indistinguishable(names: Sequence[str], direction: Vector, what: str) -> str:
    sizes = np.abs(direction)
    confused = [name for name, size in zip(names, sizes, strict=True) if size >= 0.3 * sizes.max()]
    return (
        f"{what} do not distinguish the labels {', '.join(confused)}, so T cannot be estimated; "
        "train the model further, hold out more samples, or merge these labels"
    )


def _label_names(labels: Sequence[str] | None, seen: npt.NDArray[np.intp]) -> list[str]:
    return [str(y) if labels is None else repr(labels[y]) for y in seen.tolist()]
