"""Label counts with a stated privacy: a client adds noise, the server repairs what it gets.

A client sends its K counts c plus independent discrete Laplace noise, for a stated ε > 0

    P(Z = z) = (1 − q)/(1 + q) · q^|z|,        q = e^−ε.

Take away or add one sample, and one cell of c changes by 1: ‖c − c'‖₁ = 1. For every answer a,
P(c + Z = a)/P(c' + Z = a) = Π_y q^(|a_y − c_y| − |a_y − c'_y|) ≤ e^ε by the triangle inequality, which is
ε-differential privacy of each sample, its presence included. Changing the label of one sample
changes two cells, so the same noise protects the label at 2ε. A client that tells its exact size as
well, as for FedAvg, protects labels (2ε) but no longer presence. Each report spends ε anew.

**Sampler.** Noise computed in floating point has gaps that can give counts away. `discrete_laplace`
draws integers only (Canonne, Kamath and Steinke 2020), from a distribution that is exact. Its
addressed generator repeats, which is right for simulation; whoever knows the seed can subtract the
noise. `secure_counts` uses OpenDP's sampler instead, whose randomness nobody can repeat.

**Repair.** Cut off at 0, counts are the likeliest, label by label, but a client with few of many
labels would gain E[max(Z, 0)] = q/(1 − q²) samples in each one that it does not have. The sum of the
noisy counts has no such bias. So the server takes it for the size, and the non-negative counts
closest to the noisy ones with that sum: max(a_y − τ, 0), which is exact for the labels that are
absent as soon as τ exceeds their noise. It is computed from the answer alone and costs no privacy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedpals.errors import InputError, MissingExtraError
from fedpals.labels.counts import LabelCounts, Vector
from fedpals.rng import generator

Counts = npt.NDArray[np.int64]

_DENOMINATOR = 1 << 30
"""ε is rounded down to a multiple of 1/this, so that it is a ratio of integers and never more than stated."""
_LARGEST = 100
"""An ε beyond which there is no noise to speak of, nor privacy."""


def discrete_laplace(epsilon: float, shape: int | tuple[int, ...], rng: np.random.Generator) -> Counts:
    """Draw noise with P(Z = z) ∝ e^(−ε|z|), exactly, by comparing integers.

    With ε = s/t, U uniform in 0…t−1 kept with probability e^(−U/t), and V geometric with
    P(V ≥ v) = e^−v, U + tV is geometric with e^(−1/t), and ⌊(U + tV)/s⌋ with e^−ε. It gets a random
    sign, where −0 is drawn again.
    """
    s, t = _ratio(epsilon), _DENOMINATOR
    size = int(np.prod(shape))
    noise = np.zeros(size, dtype=np.int64)
    open_ = np.arange(size)
    while open_.size:
        U = rng.integers(t, size=open_.size)
        kept = _happens(U, t, rng)
        magnitude = (U + t * _geometric(open_.size, rng)) // s
        negative = rng.integers(2, size=open_.size) == 1
        kept &= ~(negative & (magnitude == 0))
        noise[open_[kept]] = np.where(negative, -magnitude, magnitude)[kept]
        open_ = open_[~kept]
    return noise.reshape(shape)


def noisy_counts(counts: Any, epsilon: float, seed: int) -> Counts:
    """Return M×K label counts as clients would send them, some of them negative, for simulation.

    Client i draws from the address ("label counts", i).
    """
    table = whole(LabelCounts.of(counts))
    return np.stack(
        [row + discrete_laplace(epsilon, row.size, generator(seed, "label counts", i)) for i, row in enumerate(table)]
    )


def secure_counts(counts: npt.ArrayLike, epsilon: float) -> Counts:
    """Return one client's K label counts with noise that nobody can repeat, to be sent to a server."""
    try:
        import opendp.prelude as dp
    except ImportError:
        raise MissingExtraError("sending private label counts", "privacy") from None
    _ratio(epsilon)
    row = whole(LabelCounts.of(np.asarray(counts)[None]))[0]
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    return np.array(dp.m.make_laplace(*space, scale=1.0 / epsilon)(row.tolist()), dtype=np.int64)


def repair(noisy: npt.ArrayLike, *, sizes: npt.ArrayLike | None = None, like: LabelCounts | None = None) -> LabelCounts:
    """Turn noisy M×K counts into the closest ones that a client can have.

    Per client the whole numbers c ≥ 0 that minimise ‖c − noisy‖² with Σc = n, rounded by largest
    remainders. A client whose noisy counts sum to 0 or less counts as empty.

    Parameters
    ----------
    noisy
        M×K whole numbers, negative ones included.
    sizes
        n_i, where clients tell them; the sums of the noisy counts by default.
    like
        Where to take the names of clients and labels from.

    >>> repair([[12, -2, 1, -1]]).marginals.tolist()
    [[1.0, 0.0, 0.0, 0.0]]
    """
    table = np.asarray(noisy)
    if table.ndim != 2 or table.dtype.kind not in "ui":
        raise InputError(f"noisy counts must be an M×K table of whole numbers, not {table.dtype} of {table.shape}")
    sums = np.asarray(table.sum(axis=1) if sizes is None else sizes)
    if sums.shape != table.shape[:1] or sums.dtype.kind not in "ui" or (sizes is not None and sums.min() < 0):
        raise InputError(f"sizes must be {len(table)} whole numbers ≥ 0, one per client")
    repaired = _largest_remainders(_closest(table.astype(np.float64), np.maximum(sums, 0)))
    return LabelCounts.of(repaired, clients=like.clients if like else None, labels=like.labels if like else None)


def _ratio(epsilon: float) -> int:
    """Return s with s/t ≤ ε, t the common denominator."""
    if not (1.0 / _DENOMINATOR <= epsilon <= _LARGEST):
        raise InputError(
            f"epsilon is {epsilon}; it must be between 1e-9 and {_LARGEST}, for instance 1: the smaller, the more noise"
        )
    return math.floor(epsilon * _DENOMINATOR)


def _happens(U: Counts, t: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Flip coins that succeed with probability e^(−U/t), for 0 ≤ U ≤ t.

    Of events with probabilities U/t, U/2t, U/3t, … the first to fail has an odd number with
    probability 1 − γ + γ²/2! − … = e^−γ, γ = U/t.
    """
    first = np.zeros(U.size, dtype=np.int64)
    going = np.arange(U.size)
    k = 0
    while going.size:
        k += 1
        failed = rng.integers(t * k, size=going.size) >= U[going]
        first[going[failed]] = k
        going = going[~failed]
    return np.asarray(first % 2 == 1)


def _geometric(size: int, rng: np.random.Generator) -> Counts:
    """Count successes with probability 1/e before the first failure."""
    count = np.zeros(size, dtype=np.int64)
    going = np.arange(size)
    while going.size:
        going = going[_happens(np.ones(going.size, dtype=np.int64), 1, rng)]
        count[going] += 1
    return count


def whole(counts: LabelCounts) -> Counts:
    """M×K counts as whole numbers."""
    table = counts.table.toarray() if sparse.issparse(counts.table) else counts.table
    return np.asarray(table, dtype=np.int64)


def _closest(rows: Vector, sums: npt.NDArray[np.int64]) -> Vector:
    """Project each row onto {c ≥ 0, Σc = its sum}: subtract the τ that leaves the sum, and cut off at 0."""
    descending = -np.sort(-rows, axis=1)
    ranks = np.arange(1, rows.shape[1] + 1)
    candidates = (np.cumsum(descending, axis=1) - sums[:, None]) / ranks
    support = np.maximum((descending > candidates).sum(axis=1), 1)
    threshold = candidates[np.arange(len(rows)), support - 1]
    return np.asarray(np.maximum(rows - threshold[:, None], 0.0))


def _largest_remainders(rows: Vector) -> Counts:
    """Round each row to whole numbers with the same sum."""
    down = np.floor(rows)
    missing = np.rint((rows - down).sum(axis=1)).astype(np.int64)
    order = np.argsort(-(rows - down), axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(rows.shape[1])[None], axis=1)
    return np.asarray(down + (rank < missing[:, None])).astype(np.int64)
