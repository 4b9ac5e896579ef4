"""Differentially private label counts: a client adds noise, and the server repairs the noisy counts.

A client sends its K counts c plus independent discrete Laplace noise, for a stated ε > 0

    P(Z = z) = (1 − q)/(1 + q) · q^|z|,        q = e^−ε.

Adding or removing one sample changes one cell of c by 1: ‖c − c'‖₁ = 1. For every answer a,
P(c + Z = a)/P(c' + Z = a) = Π_y q^(|a_y − c_y| − |a_y − c'_y|) ≤ e^ε by the triangle inequality, which is
ε-differential privacy of each sample, including its presence. Changing the label of one sample
changes two cells, so the same noise protects the label at 2ε. A client that also sends its exact size,
as for FedAvg, protects labels (2ε) but not presence. Each report spends ε again.

**Sampler.** Noise computed in floating point has gaps that can reveal counts. `discrete_laplace`
draws only integers (Canonne, Kamath and Steinke 2020), from the exact distribution. Its generator is
reproducible, which is right for simulation, but anyone who knows the seed can subtract the noise.
`secure_counts` uses OpenDP's sampler instead, which nobody can reproduce.

**Repair.** Clipping counts at 0 gives the likeliest count of each label, but a client with few of many
labels would gain E[max(Z, 0)] = q/(1 − q²) samples of each label that it does not have. The sum of the
noisy counts has no such bias. So the server uses it as the size, and takes the non-negative counts
closest to the noisy ones with that sum: max(a_y − τ, 0), which is exact for absent labels as soon as
τ exceeds their noise. It is computed from the noisy counts alone and costs no privacy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError, MissingExtraError
from fedpals.labels.counts import LabelCounts, Vector, is_sparse
from fedpals.rng import generator

Counts = npt.NDArray[np.int64]

_DENOMINATOR = 1 << 30
"""Denominator of ε, which is rounded down to a ratio of integers, so that it is never more than stated."""
_MAX_EPSILON = 100
"""Largest ε; beyond it there is practically no noise and no privacy."""


def discrete_laplace(epsilon: float, shape: int | tuple[int, ...], rng: np.random.Generator) -> Counts:
    """Draw noise with exactly P(Z = z) ∝ e^(−ε|z|), by comparing integers.

    With ε = s/t, U uniform in 0…t−1 accepted with probability e^(−U/t), and V geometric with
    P(V ≥ v) = e^−v, U + tV is geometric with e^(−1/t), and ⌊(U + tV)/s⌋ with e^−ε. It gets a random
    sign, and −0 is drawn again.
    """
    s, t = _numerator(epsilon), _DENOMINATOR
    size = int(np.prod(shape))
    noise = np.zeros(size, dtype=np.int64)
    pending = np.arange(size)
    while pending.size:
        U = rng.integers(t, size=pending.size)
        accepted = _flip_coins(U, t, rng)
        magnitude = (U + t * _geometric(pending.size, rng)) // s
        negative = rng.integers(2, size=pending.size) == 1
        accepted &= ~(negative & (magnitude == 0))
        noise[pending[accepted]] = np.where(negative, -magnitude, magnitude)[accepted]
        pending = pending[~accepted]
    return noise.reshape(shape)


def noisy_counts(counts: Any, epsilon: float, seed: int) -> Counts:
    """Return noisy M×K label counts as clients would send them, some negative, for simulation.

    The noise of client i is drawn from the address ("label counts", i).
    """
    table = integer_table(LabelCounts.of(counts))
    return np.stack(
        [row + discrete_laplace(epsilon, row.size, generator(seed, "label counts", i)) for i, row in enumerate(table)]
    )


def secure_counts(counts: npt.ArrayLike, epsilon: float) -> Counts:
    """Return one client's K label counts with noise that nobody can reproduce, to be sent to a server."""
    try:
        import opendp.prelude as dp
    except ImportError:
        raise MissingExtraError("sending private label counts", "privacy") from None
    _numerator(epsilon)
    row = integer_table(LabelCounts.of(np.asarray(counts)[None]))[0]
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    return np.array(dp.m.make_laplace(*space, scale=1.0 / epsilon)(row.tolist()), dtype=np.int64)


def repair(noisy: npt.ArrayLike, *, sizes: npt.ArrayLike | None = None, like: LabelCounts | None = None) -> LabelCounts:
    """Turn noisy M×K counts into the closest valid counts.

    For each client these are the c ≥ 0 that minimise ‖c − noisy‖² with Σc = n, rounded to whole numbers by
    largest remainders. A client whose noisy counts sum to 0 or less is taken as empty.

    Parameters
    ----------
    noisy
        M×K whole numbers, possibly negative.
    sizes
        n_i, if clients send them; the sums of the noisy counts unless given.
    like
        Counts with the names of clients and labels to use.

    Examples
    --------
    >>> repair([[12, -2, 1, -1]]).marginals.tolist()
    [[1.0, 0.0, 0.0, 0.0]]
    """
    table = np.asarray(noisy)
    if table.ndim != 2 or table.dtype.kind not in "ui":
        raise InputError(f"noisy counts must be an M×K table of whole numbers, not {table.dtype} of {table.shape}")
    sums = np.asarray(table.sum(axis=1) if sizes is None else sizes)
    if sums.shape != table.shape[:1] or sums.dtype.kind not in "ui" or (sizes is not None and sums.min() < 0):
        raise InputError(f"sizes must be {len(table)} whole numbers ≥ 0, one per client")
    repaired = _largest_remainders(_project_rows(table.astype(np.float64), np.maximum(sums, 0)))
    return LabelCounts.of(repaired, clients=like.clients if like else None, labels=like.labels if like else None)


def _numerator(epsilon: float) -> int:
    """Return the s of ε ≈ s/t, rounded down, with t the common denominator."""
    if not (1.0 / _DENOMINATOR <= epsilon <= _MAX_EPSILON):
        raise InputError(
            f"epsilon is {epsilon}; it must be between 1e-9 and {_MAX_EPSILON}, for instance 1; less means more noise"
        )
    return math.floor(epsilon * _DENOMINATOR)


def _flip_coins(U: Counts, t: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Flip coins that succeed with probability e^(−U/t), for 0 ≤ U ≤ t.

    In a sequence of events with probabilities U/t, U/2t, U/3t, … the first to fail has an odd index with
    probability 1 − γ + γ²/2! − … = e^−γ, γ = U/t.
    """
    first_failure = np.zeros(U.size, dtype=np.int64)
    pending = np.arange(U.size)
    k = 0
    while pending.size:
        k += 1
        failed = rng.integers(t * k, size=pending.size) >= U[pending]
        first_failure[pending[failed]] = k
        pending = pending[~failed]
    return np.asarray(first_failure % 2 == 1)


def _geometric(size: int, rng: np.random.Generator) -> Counts:
    """Count successes with probability 1/e before the first failure."""
    count = np.zeros(size, dtype=np.int64)
    pending = np.arange(size)
    while pending.size:
        pending = pending[_flip_coins(np.ones(pending.size, dtype=np.int64), 1, rng)]
        count[pending] += 1
    return count


def integer_table(counts: LabelCounts) -> Counts:
    """Return the M×K counts as a dense array of integers."""
    table = counts.table.toarray() if is_sparse(counts.table) else counts.table
    return np.asarray(table, dtype=np.int64)


def _project_rows(rows: Vector, sums: npt.NDArray[np.int64]) -> Vector:
    """Project each row onto {c ≥ 0, Σc = its sum}: subtract the τ that gives this sum, and clip at 0."""
    descending = -np.sort(-rows, axis=1)
    ranks = np.arange(1, rows.shape[1] + 1)
    candidates = (np.cumsum(descending, axis=1) - sums[:, None]) / ranks
    support = np.maximum((descending > candidates).sum(axis=1), 1)
    threshold = candidates[np.arange(len(rows)), support - 1]
    return np.asarray(np.maximum(rows - threshold[:, None], 0.0))


def _largest_remainders(rows: Vector) -> Counts:
    """Round each row to whole numbers with the same sum."""
    floor = np.floor(rows)
    deficit = np.rint((rows - floor).sum(axis=1)).astype(np.int64)
    order = np.argsort(-(rows - floor), axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(rows.shape[1])[None], axis=1)
    return np.asarray(floor + (rank < deficit[:, None])).astype(np.int64)
