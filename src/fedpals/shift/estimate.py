"""T where it is unknown, but unlabelled inputs of the target exist.

**BBSE** (Lipton et al. 2018) needs predictions only. Under label shift the target's predictions mix
the rows of the confusion matrix A[y, ŷ] = P(ŷ | y), and T are the weights of the mix:

    μ(ŷ) = Σ_y T(y) A[y, ŷ],        T̂ = argmin over the simplex ‖μ̂ − Σ_y T(y) Â_y‖²

which is FedPALS's own problem at λ = 0, with labels for clients and predictions for labels. It asks
nothing of the model but that it tells labels apart.

**EM** (Saerens et al. 2002) needs probabilities p(y|x), calibrated for the label mix π that the model
was trained on. It maximises the likelihood Σ_x log Σ_y p(y|x) T(y)/π(y), which uses more of what
the model knows; where probabilities are not calibrated it is biased, and its intervals do not know.

No interval is drawn at random. Those of BBSE are by the delta method, normal around the estimate
without T ≥ 0, and cover the noise of both samples, held-out and target. Those of EM are by the Fisher
information, and cover the target's noise alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from fedpals.errors import FedpalsError, InputError
from fedpals.labels import LabelCounts, Vector, as_target
from fedpals.shift.tally import Tally
from fedpals.weights import coverage

_CLEAR = 2.0
"""Standard errors that a confusion matrix must be away from a singular one."""
_NEGLIGIBLE = 1e-4
"""EM ends when the log-likelihood of all samples is proven to be so close to its maximum."""
_MAX_STEPS = 100_000
_ABSENT = 0.5
"""A label of which fewer samples are expected is not there."""
_SINGULAR = 1e-10
"""Relative size of an information that is none."""


class NotConvergedError(FedpalsError, ArithmeticError):
    """The likelihood was not maximised in the steps that were allowed."""


@dataclass(frozen=True, eq=False)
class TargetEstimate:
    """T as estimated, with a confidence interval for each label."""

    target: Vector
    """T̂, K probabilities."""
    lower: Vector
    upper: Vector
    level: float
    """Probability with which each interval covers T(y)."""
    unseen: tuple[int, ...]
    """Labels that nothing is known about, estimated as 0: nobody held them out, or π(y) = 0."""


def bbse(
    tally: Tally, predicted: npt.ArrayLike, *, level: float = 0.95, labels: Sequence[str] | None = None
) -> TargetEstimate:
    """Estimate T from predictions.

    Parameters
    ----------
    tally
        Of all clients together (`pooled`), on samples that the model was not trained on.
    predicted
        (K,) how often the same model predicts each label on the target's inputs.
    level
        Of the confidence intervals.
    labels
        Names for errors; their numbers by default.

    Raises
    ------
    InputError
        Where the confusion matrix is singular, or so close that its samples do not tell: some
        labels cannot be told apart, and are named.

    >>> tally = Tally(np.zeros(2), np.zeros(2), np.array([[80, 20], [10, 90]]))
    >>> bbse(tally, [310, 690]).target.round(3).tolist()
    [0.3, 0.7]
    """
    z = _normal(level)
    held = LabelCounts.of(tally.confusion)
    told = LabelCounts.of(np.asarray(predicted)[None])
    mu, m = as_target(np.asarray(told.marginals)[0], held), told.total
    seen = np.flatnonzero(held.sizes)
    A, n = np.asarray(held.marginals)[seen], held.sizes[seen]
    # For variances half a sample of a label must not look like certainty: one sample is spread over all labels.
    spread = (A * n[:, None] + 1.0 / mu.size) / (n[:, None] + 1.0)
    _check_told_apart(A, spread, n, _names(labels, seen))
    T = coverage(held, mu).alpha[seen]
    inverse = np.linalg.pinv(A.T)
    share = np.square(T) / n
    noise = _multinomial(mu) / m + np.diag(share @ spread) - spread.T @ (share[:, None] * spread)
    centre = inverse @ mu
    half = z * np.sqrt(np.maximum(np.diag(inverse @ noise @ inverse.T), 0.0))
    return _spread_over_all(T, centre - half, centre + half, seen, mu.size, level)


def em(
    probabilities: npt.ArrayLike,
    prior: npt.ArrayLike,
    *,
    level: float = 0.95,
    labels: Sequence[str] | None = None,
) -> TargetEstimate:
    """Estimate T by maximum likelihood, from probabilities.

    One step is T(y) ← mean over x of p(y|x)·w_y/Σ_k p(k|x)·w_k with w = T/π: the new T is the average of
    the posterior under the old. With g_y = step/T the log-likelihood of m samples is at most
    m·(max g − 1) from its maximum, because it is concave; that ends the iteration.

    Parameters
    ----------
    probabilities
        (m, K) p(y|x) of the target's inputs; rows sum to 1.
    prior
        π, the label mix that the probabilities are calibrated for, such as p_α = Σ α_i S_i.
    level
        Of the confidence intervals.
    labels
        Names for errors; their numbers by default.

    >>> x = np.repeat([[0.8, 0.2], [0.2, 0.8]], [60, 40], axis=0)
    >>> em(x, [0.5, 0.5]).target.round(3).tolist()
    [0.667, 0.333]
    """
    z = _normal(level)
    P = np.asarray(probabilities, dtype=np.float64)
    if P.ndim != 2 or P.size == 0:
        raise InputError(f"probabilities have shape {P.shape}; they must be m×K, a row for each target input")
    if not (P.min() >= 0 and np.abs(P.sum(axis=1) - 1.0).max() <= 1e-3):
        at = int(np.argmax(~((P >= 0).all(axis=1) & (np.abs(P.sum(axis=1) - 1.0) <= 1e-3))))
        raise InputError(f"probabilities: row {at} sums to {P[at].sum():g}; each row must be probabilities, a softmax")
    K = P.shape[1]
    pi = as_target(prior, LabelCounts.of(np.ones((1, K))))
    seen = np.flatnonzero(pi)
    ratios = P[:, seen] / pi[seen]
    if not ratios.any(axis=1).all():
        at = int(np.argmin(ratios.any(axis=1)))
        raise InputError(
            f"probabilities: row {at} allows only for labels whose prior is 0; prior must not rule them out"
        )
    T = _maximise(ratios, pi[seen])
    lower, upper = _likelihood_intervals(ratios / (ratios @ T)[:, None], T, z, _names(labels, seen))
    return _spread_over_all(T, lower, upper, seen, K, level)


def _maximise(ratios: Vector, start: Vector) -> Vector:
    m = len(ratios)
    T = start
    for _ in range(_MAX_STEPS):
        growth = (1.0 / (ratios @ T)) @ ratios / m
        T = T * growth
        if m * (growth.max() - 1.0) <= _NEGLIGIBLE:
            return np.asarray(T / T.sum())
    raise NotConvergedError(
        f"the likelihood of T did not reach its maximum in {_MAX_STEPS:,} steps; some labels can hardly be told apart: "
        "use bbse, or merge them"
    )


def _multinomial(p: Vector) -> Vector:
    """Covariance of one draw."""
    return np.asarray(np.diag(p) - np.outer(p, p))


def _likelihood_intervals(W: Vector, T: Vector, z: float, names: Sequence[str]) -> tuple[Vector, Vector]:
    """Intervals of the maximum T of mean_x log Σ_y T_y r_xy, with W_xy = r_xy/Σ_k T_k r_xk, (m, K).

    Without ΣT = 1, the information of m samples on the labels that occur is mH, H = WᵀW/m; the
    constraint takes T·Tᵀ/m off its inverse, as it does for Poisson and multinomial counts. Labels at
    T = 0 have a slope −a, a = 1 − mean W_y, and, over the best choice of the others, a curvature b (Schur
    complement). Their bound is where the log-likelihood has fallen by z²/2: m(aδ + bδ²/2) = z²/2.
    """
    m = len(W)
    H = W.T @ W / m
    occurs = T * m >= _ABSENT
    inside, outside = np.flatnonzero(occurs), np.flatnonzero(~occurs)
    root = np.sqrt(T[inside])
    values, vectors = np.linalg.eigh(root[:, None] * H[np.ix_(inside, inside)] * root)
    if values[0] <= _SINGULAR:
        raise InputError(_not_apart([names[i] for i in inside.tolist()], root * vectors[:, 0], "these probabilities"))
    inverse = root[:, None] * (vectors / values) @ vectors.T * root
    half = np.zeros_like(T)
    half[inside] = z * np.sqrt(np.maximum(np.diag(inverse) - np.square(T[inside]), 0.0) / m)
    cross = H[np.ix_(outside, inside)]
    a = np.maximum(1.0 - W[:, outside].mean(axis=0), 0.0)
    b = np.maximum(np.diag(H)[outside] - np.sum(cross @ inverse * cross, axis=1), 0.0)
    drop = z * z / m
    with np.errstate(divide="ignore"):
        half[outside] = drop / (a + np.sqrt(np.square(a) + b * drop))
    return T - half, T + half


def _spread_over_all(
    T: Vector, lower: Vector, upper: Vector, seen: npt.NDArray[np.intp], labels: int, level: float
) -> TargetEstimate:
    """Put what is known of the seen labels among all K, and intervals into [0, 1] and around their estimates."""
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


def _normal(level: float) -> float:
    """Quantile of the normal distribution for intervals of this level."""
    if not 0 < level < 1:
        raise InputError(f"level is {level}; it must be between 0 and 1, for instance 0.95")
    return float(norm.ppf(0.5 + level / 2))


def _check_told_apart(A: Vector, spread: Vector, n: Vector, names: Sequence[str]) -> None:
    """Refuse a matrix whose smallest singular value σ, with u·A = σv, is not clearly above its own noise.

    Var(u·Â) sums to Σ_y u_y² (1 − ‖A_y‖²)/n_y.
    """
    directions, values, _ = np.linalg.svd(A, full_matrices=False)
    u, smallest = directions[:, -1], values[-1]
    noise = float(np.sqrt(np.square(u) @ ((1.0 - np.square(spread).sum(axis=1)) / n)))
    if smallest <= max(_CLEAR * noise, _SINGULAR):
        raise InputError(_not_apart(names, u, "these predictions"))


def _not_apart(names: Sequence[str], direction: Vector, what: str) -> str:
    sizes = np.abs(direction)
    mixed = [name for name, size in zip(names, sizes, strict=True) if size >= 0.3 * sizes.max()]
    return (
        f"{what} do not tell the labels {', '.join(mixed)} apart, so T cannot be estimated; "
        "train the model further, hold out more samples, or merge these labels"
    )


def _names(labels: Sequence[str] | None, seen: npt.NDArray[np.intp]) -> list[str]:
    return [str(y) if labels is None else repr(labels[y]) for y in seen.tolist()]
