"""Dividing a data set among clients and a target: the paper's sampling strategies.

Pure functions of labels and a generator. A strategy first settles an M×K table of counts, then
`deal` hands out samples: no sample goes to two clients. ``y`` holds the labels of the whole data
set, ``pool`` the indices that may be handed out, ``K`` is the number of labels.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError
from fedpals.labels import Indices, Vector

Table: TypeAlias = npt.NDArray[np.int64]
"""M×K label counts."""

PACS_ABSENT = 2
"""The label that neither the target of the PACS task nor its smallest client has."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Clients to train on, and the label marginal to train for."""

    clients: tuple[Indices, ...]
    """Sorted, disjoint indices into the data set, one array per client."""
    target: Vector
    """T, K probabilities."""


def largest_remainder(shares: npt.ArrayLike, sizes: npt.ArrayLike) -> Table:
    """Round ``sizes[i] * shares[i]`` to whole numbers that sum to ``sizes[i]``, row by row.

    Every entry is less than 1 from what it rounds. Ties go to the lower label.

    >>> largest_remainder([[0.5, 0.25, 0.25]], [5]).tolist()
    [[3, 1, 1]]
    """
    n = np.asarray(sizes, dtype=np.int64)
    exact = np.asarray(shares, dtype=np.float64) * n[:, None]
    counts = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1)
    missing = n - counts.sum(axis=1)
    return np.where(rank < missing[:, None], counts + 1, counts)


def deal(y: Indices, pool: Indices, counts: Table, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Give client i ``counts[i, k]`` random samples of label k from ``pool``, none of them twice.

    Raises
    ------
    InputError
        Naming a label of which more samples are wanted than there are.
    """
    clients, K = counts.shape
    short = counts.sum(axis=0) - supply(y, pool, K)
    if (short > 0).any():
        k = int(short.argmax())
        wanted = int(counts[:, k].sum())
        raise InputError(f"{wanted} samples of label {k} are wanted, but only {wanted - short[k]} can be handed out")
    owners, samples = [], []
    for k in range(K):
        owner = np.repeat(np.arange(clients), counts[:, k])
        owners.append(owner)
        samples.append(rng.permutation(pool[y[pool] == k])[: owner.size])
    owner, sample = np.concatenate(owners), np.concatenate(samples)
    order = np.lexsort((sample, owner))
    return tuple(np.split(sample[order], np.cumsum(counts.sum(axis=1))[:-1]))


def supply(y: Indices, pool: Indices, K: int) -> npt.NDArray[np.int64]:
    """Count the samples of each label in ``pool``."""
    return np.bincount(y[pool], minlength=K)


def marginal(y: Indices, indices: Indices, K: int) -> Vector:
    """Return the label marginal of some samples."""
    if indices.size == 0:
        raise InputError("no samples are left to take the target's label marginal from")
    return supply(y, indices, K) / indices.size


def sparsity(
    y: Indices,
    pool: Indices,
    K: int,
    *,
    clients: int,
    labels_per_client: int,
    samples_per_client: int | None,
    rng: np.random.Generator,
) -> Partition:
    """Sparsity sampling: each client has C random labels, an equal number of samples of each.

    The label sets are drawn uniformly and independently. The last of ``clients`` is the target: it
    yields T, uniform over its C labels, and nobody trains on its samples. ``samples_per_client``
    is rounded down to a multiple of C; None is as many as fit, the same for all.
    """
    C = labels_per_client
    _need_two(clients)
    if not 1 <= C <= K:
        raise InputError(f"labels_per_client is {C} but the data has {K} labels; give 1 to {K}")
    if samples_per_client is not None and samples_per_client < C:
        raise InputError(f"samples_per_client is {samples_per_client}, too few for {C} labels; at least {C} would do")
    # The C smallest of K random numbers are a uniformly drawn set.
    chosen = np.argsort(rng.random((clients, K)), axis=1)[:, :C]
    has = np.zeros((clients, K), dtype=np.int64)
    np.put_along_axis(has, chosen, 1, axis=1)
    here, wanted = supply(y, pool, K), has.sum(axis=0)
    fit = int((here[wanted > 0] // wanted[wanted > 0]).min())
    if fit == 0:
        k = int((here < wanted).argmax())
        raise InputError(
            f"clients is {clients}, of which {wanted[k]} drew label {k}, but it has only {here[k]} samples; "
            "use fewer clients or fewer labels_per_client"
        )
    per_label = fit if samples_per_client is None else samples_per_client // C
    if per_label > fit:
        raise InputError(f"samples_per_client is {samples_per_client}, which does not fit; at most {fit * C} would do")
    return _with_target_last(y, pool, has * per_label, rng)


def dirichlet(
    y: Indices,
    pool: Indices,
    K: int,
    *,
    clients: int,
    beta: float,
    samples_per_client: int | None,
    rng: np.random.Generator,
) -> Partition:
    """Dirichlet sampling: client i has n·p_i(k) samples of label k, p_i ~ Dirichlet_K(β).

    n·p_i is rounded by largest remainders. The last of ``clients`` is the target: its counts yield
    T, and nobody trains on its samples. ``samples_per_client`` n is the same for all; None is as
    many as the most wanted label allows.
    """
    _need_two(clients)
    if not (np.isfinite(beta) and beta > 0):
        raise InputError(f"beta is {beta}; the Dirichlet concentration must be a number > 0, for instance 0.1")
    shares = rng.dirichlet(np.full(K, beta), size=clients)
    fit = largest_fitting(shares, supply(y, pool, K))
    n = fit if samples_per_client is None else samples_per_client
    if fit == 0:
        raise InputError(
            f"clients is {clients}, for which {pool.size} samples do not suffice at beta {beta}; use fewer clients"
        )
    if not 1 <= n <= fit:
        raise InputError(f"samples_per_client is {n}, which does not fit at beta {beta}; 1 to {fit} would do")
    return _with_target_last(y, pool, largest_remainder(shares, np.full(clients, n)), rng)


def largest_fitting(shares: npt.NDArray[np.float64], here: npt.NDArray[np.int64]) -> int:
    """Return a largest n for which clients of n samples each find enough of every label ``here``.

    Largest remainders are not monotone in n, so "a largest": n fits and n + 1 does not.
    """
    clients = len(shares)

    def fits(n: int) -> bool:
        return bool((largest_remainder(shares, np.full(clients, n)).sum(axis=0) <= here).all())

    low, high = 0, int(here.sum()) // clients + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def drawn(
    y: Indices,
    pool: Indices,
    marginals: npt.ArrayLike,
    sizes: npt.ArrayLike,
    rng: np.random.Generator,
) -> tuple[Indices, ...]:
    """Draw clients with prescribed label marginals (M×K) and sizes (M)."""
    return deal(y, pool, largest_remainder(marginals, sizes), rng)


def synthetic_target(delta: float) -> Vector:
    """T_δ = (1 − δ) T_proj + δ T_ext, from inside the clients' hull (δ = 0) to outside (δ = 1)."""
    if not 0 <= delta <= 1:
        raise InputError(f"delta is {delta}; it must lie between 0 and 1")
    return (1 - delta) * np.array([0.5, 0.25, 0.25]) + delta * np.array([0.0, 0.5, 0.5])


def synthetic(y: Indices, pool: Indices, K: int, *, delta: float, rng: np.random.Generator) -> Partition:
    """Make the two clients of the paper's synthetic task, 40 and 18 samples, and its target T_δ."""
    if K != 3:
        raise InputError(f"the synthetic task has 3 labels, not {K}")
    target = synthetic_target(delta)
    return Partition(drawn(y, pool, [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]], [40, 18], rng), target)


def pacs(y: Indices, train: Indices, test: Indices, K: int, rng: np.random.Generator) -> tuple[Partition, Indices]:
    """Build the paper's PACS task: three clients, of which client k misses label k.

    The training images go to three clients at random, then each loses a label. The client without
    label 2 keeps a tenth of what it then has, and the target loses label 2 as well, so the smallest
    client is the most like it. Returns the partition and the target's test set.
    """
    thirds = np.array_split(rng.permutation(train), 3)
    first, second, third = (part[y[part] != k] for k, part in enumerate(thirds))
    tenth = third[: round(0.1 * third.size)]
    left = test[y[test] != PACS_ABSENT]
    return Partition((np.sort(first), np.sort(second), np.sort(tenth)), marginal(y, left, K)), left


def by_domain(domain: Indices, pool: Indices, *, clients: int) -> tuple[Indices, ...]:
    """Give whole domains to clients: the largest first, each to the client that is smallest by then.

    Ties go to the lower domain and the lower client, so the outcome is determined.
    """
    here = domain[pool]
    found, sizes = np.unique(here, return_counts=True)
    if not 1 <= clients <= found.size:
        raise InputError(
            f"clients is {clients} but the samples come from {found.size} domains, and each stays whole; "
            f"give 1 to {found.size}"
        )
    owner = np.empty(domain.max() + 1, dtype=np.int64)
    smallest = [(0, client) for client in range(clients)]
    for at in np.argsort(-sizes, kind="stable"):
        size, client = smallest[0]
        owner[found[at]] = client
        heapq.heapreplace(smallest, (size + int(sizes[at]), client))
    owners = owner[here]
    return tuple(np.sort(pool[owners == client]) for client in range(clients))


def oracle(
    y: Indices, pool: Indices, target: Vector, sizes: Sequence[int], rng: np.random.Generator
) -> tuple[Indices, ...]:
    """Draw clients of the given sizes whose label marginal is the target's: no label shift at all.

    Together they have the target's marginal; each has it up to the rounding of its counts. The
    target often has few labels, of which ``pool`` need not hold enough for everybody. All sizes are
    then reduced by the same factor, to what fits; FedAvg's weights n_i/N stay as they are.
    """
    wanted = np.asarray(sizes)
    total = min(int(wanted.sum()), most(y, pool, target))
    (reduced,) = largest_remainder(wanted[None] / wanted.sum(), [total])
    if not reduced.all():
        raise InputError(
            f"an oracle for {wanted.size} clients cannot be made: the pool of {pool.size} samples has only "
            f"{total} with the target's label marginal; use fewer clients"
        )
    samples = rng.permutation(follow(y, pool, target, total, rng))
    # Spread every label evenly over a line: any stretch of it has the target's marginal.
    order = np.argsort(y[samples], kind="stable")
    counts = supply(y, samples, target.size)
    place = np.concatenate([(np.arange(count) + 0.5) / count for count in counts if count])
    line = samples[order[np.argsort(place, kind="stable")]]
    return tuple(np.sort(part) for part in np.split(line, np.cumsum(reduced)[:-1]))


def held_out(y: Indices, pool: Indices, share: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Split ``pool`` into the rest and a random ``share`` of every label, rounded down."""
    counts = np.floor(np.bincount(y[pool], minlength=1) * share).astype(np.int64)
    (held,) = deal(y, pool, counts[None], rng)
    return np.setdiff1d(pool, held, assume_unique=True), held


def most(y: Indices, pool: Indices, target: Vector) -> int:
    """Return how many samples `follow` can draw at most."""
    return largest_fitting(target[None], supply(y, pool, target.size))


def follow(
    y: Indices, pool: Indices, target: Vector, size: int, rng: np.random.Generator, *, what: str = "samples"
) -> Indices:
    """Draw ``size`` samples whose label marginal is T, up to rounding by largest remainders.

    ``what`` they are called in an error message.
    """
    counts = largest_remainder(target[None], [size])
    here = supply(y, pool, target.size)
    if size < 1 or (counts[0] > here).any():
        k = int(np.argmax(counts[0] - here))
        raise InputError(
            f"{size} {what} with the target's label marginal do not fit: label {k} has {here[k]} samples; "
            f"at most {most(y, pool, target)} would do"
        )
    (indices,) = deal(y, pool, counts, rng)
    return indices


def _with_target_last(y: Indices, pool: Indices, counts: Table, rng: np.random.Generator) -> Partition:
    *clients, _ = deal(y, pool, counts, rng)
    return Partition(tuple(clients), counts[-1] / counts[-1].sum())


def _need_two(clients: int) -> None:
    if clients < 2:
        raise InputError(f"clients is {clients}; with the target as the last one, at least 2 are needed")
