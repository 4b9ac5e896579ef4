"""Partitions of a data set into clients and a target: the paper's sampling strategies.

They are pure functions of labels and a generator. A strategy first computes an M×K table of counts, then
`deal` assigns samples: no sample goes to two clients. ``y`` are the labels of the whole data set, ``pool``
the indices that may be assigned, and ``K`` is the number of labels.
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
"""Label that neither the target of the PACS task nor its smallest client has."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Clients to train on, and the target's label marginal."""

    clients: tuple[Indices, ...]
    """Sorted, disjoint indices into the data set, one array per client."""
    target: Vector
    """T, K probabilities."""


def largest_remainder(shares: npt.ArrayLike, sizes: npt.ArrayLike) -> Table:
    """Round ``sizes[i] * shares[i]`` to whole numbers that sum to ``sizes[i]``, row by row.

    Every entry differs by less than 1 from its exact value. Ties go to the lower label.

    >>> largest_remainder([[0.5, 0.25, 0.25]], [5]).tolist()
    [[3, 1, 1]]
    """
    n = np.asarray(sizes, dtype=np.int64)
    exact = np.asarray(shares, dtype=np.float64) * n[:, None]
    counts = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1)
    deficit = n - counts.sum(axis=1)
    return np.where(rank < deficit[:, None], counts + 1, counts)


def deal(y: Indices, pool: Indices, counts: Table, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Assign to client i ``counts[i, k]`` random samples of label k from ``pool``, each at most once.

    Raises
    ------
    InputError
        If ``pool`` has too few samples of a label; names the label.
    """
    clients, K = counts.shape
    shortage = counts.sum(axis=0) - supply(y, pool, K)
    if (shortage > 0).any():
        k = int(shortage.argmax())
        needed = int(counts[:, k].sum())
        raise InputError(f"{needed} samples of label {k} are needed, but only {needed - shortage[k]} are available")
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
    """Return the label marginal of the samples ``indices``."""
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
    gives T, uniform over its C labels, and its samples are not used for training. ``samples_per_client``
    is rounded down to a multiple of C; unless given, it is as large as possible, the same for all.
    """
    C = labels_per_client
    _check_two_clients(clients)
    if not 1 <= C <= K:
        raise InputError(f"labels_per_client is {C} but the data has {K} labels; give 1 to {K}")
    if samples_per_client is not None and samples_per_client < C:
        raise InputError(f"samples_per_client is {samples_per_client}, too few for {C} labels; use at least {C}")
    # The indices of the C smallest of K random numbers are a uniformly drawn set.
    label_sets = np.argsort(rng.random((clients, K)), axis=1)[:, :C]
    has_label = np.zeros((clients, K), dtype=np.int64)
    np.put_along_axis(has_label, label_sets, 1, axis=1)
    available, demand = supply(y, pool, K), has_label.sum(axis=0)
    max_per_label = int((available[demand > 0] // demand[demand > 0]).min())
    if max_per_label == 0:
        k = int((available < demand).argmax())
        raise InputError(
            f"clients is {clients}, of which {demand[k]} drew label {k}, but it has only {available[k]} samples; "
            "use fewer clients or fewer labels_per_client"
        )
    per_label = max_per_label if samples_per_client is None else samples_per_client // C
    if per_label > max_per_label:
        raise InputError(
            f"samples_per_client is {samples_per_client}, which does not fit; use at most {max_per_label * C}"
        )
    return _with_target_last(y, pool, has_label * per_label, rng)


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

    n·p_i is rounded by largest remainders. The last of ``clients`` is the target: its counts give T, and
    its samples are not used for training. ``samples_per_client`` n is the same for all; unless given, it is
    as large as the supply of each label allows.
    """
    _check_two_clients(clients)
    if not (np.isfinite(beta) and beta > 0):
        raise InputError(f"beta is {beta}; the Dirichlet concentration must be a number > 0, for instance 0.1")
    shares = rng.dirichlet(np.full(K, beta), size=clients)
    max_size = largest_fitting(shares, supply(y, pool, K))
    n = max_size if samples_per_client is None else samples_per_client
    if max_size == 0:
        raise InputError(
            f"clients is {clients}, but {pool.size} samples are too few for them at beta {beta}; use fewer clients"
        )
    if not 1 <= n <= max_size:
        raise InputError(f"samples_per_client is {n}, which does not fit at beta {beta}; use 1 to {max_size}")
    return _with_target_last(y, pool, largest_remainder(shares, np.full(clients, n)), rng)


def largest_fitting(shares: npt.NDArray[np.float64], available: npt.NDArray[np.int64]) -> int:
    """Return a largest n such that the ``available`` samples of each label suffice for clients of n samples each.

    Largest remainders are not monotone in n, so it is "a largest" n: n fits and n + 1 does not.
    """
    clients = len(shares)

    def fits(n: int) -> bool:
        return bool((largest_remainder(shares, np.full(clients, n)).sum(axis=0) <= available).all())

    low, high = 0, int(available.sum()) // clients + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def draw_clients(
    y: Indices,
    pool: Indices,
    marginals: npt.ArrayLike,
    sizes: npt.ArrayLike,
    rng: np.random.Generator,
) -> tuple[Indices, ...]:
    """Draw clients with given label marginals (M×K) and sizes (M)."""
    return deal(y, pool, largest_remainder(marginals, sizes), rng)


def synthetic_target(delta: float) -> Vector:
    """Return T_δ = (1 − δ) T_proj + δ T_ext, from inside the clients' hull (δ = 0) to outside (δ = 1)."""
    if not 0 <= delta <= 1:
        raise InputError(f"delta is {delta}; it must lie between 0 and 1")
    return (1 - delta) * np.array([0.5, 0.25, 0.25]) + delta * np.array([0.0, 0.5, 0.5])


def synthetic(y: Indices, pool: Indices, K: int, *, delta: float, rng: np.random.Generator) -> Partition:
    """Build the paper's synthetic task: two clients with 40 and 18 samples, and the target T_δ."""
    if K != 3:
        raise InputError(f"the synthetic task has 3 labels, not {K}")
    target = synthetic_target(delta)
    return Partition(draw_clients(y, pool, [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]], [40, 18], rng), target)


def pacs(y: Indices, train: Indices, test: Indices, K: int, rng: np.random.Generator) -> tuple[Partition, Indices]:
    """Build the paper's PACS task: three clients, where client k has no samples of label k.

    The training images are divided among three clients at random, then client k loses label k. The client
    without label 2 keeps a tenth of its remaining samples, and the target loses label 2 as well, so the smallest
    client is the most similar to it. Returns the partition and the target's test set.
    """
    thirds = np.array_split(rng.permutation(train), 3)
    first, second, third = (part[y[part] != k] for k, part in enumerate(thirds))
    tenth = third[: round(0.1 * third.size)]
    target_test = test[y[test] != PACS_ABSENT]
    return Partition((np.sort(first), np.sort(second), np.sort(tenth)), marginal(y, target_test, K)), target_test


def by_domain(domain: Indices, pool: Indices, *, clients: int) -> tuple[Indices, ...]:
    """Assign whole domains to clients: the largest first, each to the client that is smallest at that point.

    Ties go to the lower domain and the lower client, so the result is deterministic.
    """
    pool_domain = domain[pool]
    domains, sizes = np.unique(pool_domain, return_counts=True)
    if not 1 <= clients <= domains.size:
        raise InputError(
            f"clients is {clients} but the samples come from {domains.size} domains, and each stays whole; "
            f"give 1 to {domains.size}"
        )
    owner = np.empty(domain.max() + 1, dtype=np.int64)
    heap = [(0, client) for client in range(clients)]
    for i in np.argsort(-sizes, kind="stable"):
        size, client = heap[0]
        owner[domains[i]] = client
        heapq.heapreplace(heap, (size + int(sizes[i]), client))
    owners = owner[pool_domain]
    return tuple(np.sort(pool[owners == client]) for client in range(clients))


def oracle(
    y: Indices, pool: Indices, target: Vector, sizes: Sequence[int], rng: np.random.Generator
) -> tuple[Indices, ...]:
    """Draw clients of the given sizes whose label marginal is the target's: no label shift at all.

    Together they have the target's marginal; each has it up to the rounding of its counts. The target often
    has few labels, and ``pool`` may have too few samples of them. All sizes are then reduced by the same
    factor until they fit; FedAvg's weights n_i/N stay the same.
    """
    full_sizes = np.asarray(sizes)
    total = min(int(full_sizes.sum()), most(y, pool, target))
    (reduced_sizes,) = largest_remainder(full_sizes[None] / full_sizes.sum(), [total])
    if not reduced_sizes.all():
        raise InputError(
            f"an oracle for {full_sizes.size} clients cannot be built: the pool of {pool.size} samples has only "
            f"{total} with the target's label marginal; use fewer clients"
        )
    samples = rng.permutation(follow(y, pool, target, total, rng))
    # Spread every label evenly over a sequence: any stretch of it has the target's marginal.
    order = np.argsort(y[samples], kind="stable")
    counts = supply(y, samples, target.size)
    position = np.concatenate([(np.arange(count) + 0.5) / count for count in counts if count])
    sequence = samples[order[np.argsort(position, kind="stable")]]
    return tuple(np.sort(part) for part in np.split(sequence, np.cumsum(reduced_sizes)[:-1]))


def held_out(y: Indices, pool: Indices, share: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Split ``pool`` into the rest and a random ``share`` of each label, rounded down."""
    counts = np.floor(np.bincount(y[pool], minlength=1) * share).astype(np.int64)
    (sample,) = deal(y, pool, counts[None], rng)
    return np.setdiff1d(pool, sample, assume_unique=True), sample


def most(y: Indices, pool: Indices, target: Vector) -> int:
    """Return the largest number of samples that `follow` can draw."""
    return largest_fitting(target[None], supply(y, pool, target.size))


def follow(
    y: Indices, pool: Indices, target: Vector, size: int, rng: np.random.Generator, *, what: str = "samples"
) -> Indices:
    """Draw ``size`` samples whose label marginal is T, up to rounding by largest remainders.

    ``what`` is the name of the samples in an error message.
    """
    counts = largest_remainder(target[None], [size])
    available = supply(y, pool, target.size)
    if size < 1 or (counts[0] > available).any():
        k = int(np.argmax(counts[0] - available))
        raise InputError(
            f"{size} {what} with the target's label marginal do not fit: label {k} has {available[k]} samples; "
            f"use at most {most(y, pool, target)}"
        )
    (indices,) = deal(y, pool, counts, rng)
    return indices


def _with_target_last(y: Indices, pool: Indices, counts: Table, rng: np.random.Generator) -> Partition:
    *clients, _ = deal(y, pool, counts, rng)
    return Partition(tuple(clients), counts[-1] / counts[-1].sum())


def _check_two_clients(clients: int) -> None:
    if clients < 2:
        raise InputError(f"clients is {clients}; at least 2 are needed, because the last one is the target")
