"""Federations that were hard for the solver once, as random families: a number draws a member."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from tests.weights.problems import CLIENT_KINDS, TARGET_KINDS, draw

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Member:
    """Counts, a target, and what is asked: λ/N, or an ESS above that of λ → 0⁺ by a fraction of the way to 1."""

    counts: Any
    target: Array
    mu: float = 0.0
    ess_step: float | None = None


@dataclass(frozen=True)
class Family:
    """Random problems of one kind; ``tries`` is how many the full fuzz draws."""

    name: str
    make: Callable[[int], Member]
    tries: int = 200
    may_refuse: bool = False
    """Whether double precision cannot tell the clients apart, so that a refusal is an answer."""


def _counts(rng: np.random.Generator, sizes: Array, K: int, concentration: float) -> Counts:
    counts = np.floor(rng.dirichlet(np.full(K, concentration), sizes.size) * sizes[:, None]).astype(np.int64)
    if not counts.any():
        counts[0, 0] = 1
    return counts


def lognormal(seed: int, M: int, K: int = 10, concentration: float = 0.05) -> Member:
    """Sizes of many magnitudes, clients with one to three labels each, and a target with as few."""
    rng = np.random.default_rng(seed)
    counts = _counts(rng, np.exp(rng.normal(5, 3, M)) + 1, K, concentration)
    return Member(counts, rng.dirichlet(np.full(K, concentration)))


def random_targets(seed: int) -> Member:
    rng = np.random.default_rng(seed)
    M, K = int(np.exp(rng.uniform(1, 8))), int(rng.integers(2, 21))
    counts = _counts(rng, np.exp(rng.normal(5, 3, M)) + 1, K, float(rng.choice([0.05, 0.3, 1.0])))
    return Member(counts, rng.dirichlet(np.full(K, float(rng.choice([0.3, 1.0])))))


def wide_sizes(seed: int) -> Member:
    """Sizes from 1 to 10¹²."""
    rng = np.random.default_rng(seed)
    M, K = int(np.exp(rng.uniform(1, 8))), int(rng.integers(2, 15))
    counts = _counts(rng, np.exp(rng.uniform(0, np.log(1e12), M)), K, float(rng.choice([0.05, 0.3, 1.0])))
    return Member(counts, rng.dirichlet(np.full(K, float(rng.choice([0.05, 0.3, 1.0])))))


def near_the_hull(seed: int) -> Member:
    """A target that is a mix of a few clients, moved by 10⁻¹⁶ to 10⁻⁷ towards or away from the others."""
    rng = np.random.default_rng(seed)
    M, K = int(rng.integers(5, 2000)), int(rng.integers(3, 13))
    counts = _counts(rng, np.exp(rng.normal(6, 1, M)) + 5, K, float(rng.choice([0.05, 0.3])))
    S = counts[counts.any(axis=1)]
    S = S / S.sum(axis=1, keepdims=True)
    direction = rng.normal(size=K)
    best = np.argsort(-(S @ direction))[: int(rng.integers(1, K))]
    target = rng.dirichlet(np.ones(best.size)) @ S[best] + 10 ** rng.uniform(-16, -7) * direction
    target = np.maximum(target, 0)
    return Member(counts, target / target.sum())


def near_duplicates(seed: int) -> Member:
    """Clients of 10⁹ samples that differ in a few of them: their marginals agree in nine digits and more."""
    rng = np.random.default_rng(seed)
    M, K = int(rng.integers(3, 300)), int(rng.integers(2, 9))
    base = rng.dirichlet(np.ones(K), max(1, M // 8)) * 10 ** rng.uniform(4, 12)
    counts = np.floor(base[rng.integers(len(base), size=M)]).astype(np.int64) + rng.integers(0, 4, (M, K))
    target = rng.dirichlet(np.ones(M)) @ (counts / counts.sum(axis=1, keepdims=True))
    return Member(counts, target / target.sum())


def near_the_limit(seed: int) -> Member:
    """An ESS that is hardly more than that of λ → 0⁺."""
    rng = np.random.default_rng(seed)
    member = lognormal(seed, int(rng.integers(5, 1000))) if rng.random() < 0.5 else random_targets(seed)
    return Member(member.counts, member.target, ess_step=float(10 ** rng.uniform(-9, -1)))


def near_duplicates_near_the_limit(seed: int) -> Member:
    member = near_duplicates(seed)
    return Member(member.counts, member.target, ess_step=float(10 ** np.random.default_rng(seed).uniform(-9, -1)))


def equal_sizes(seed: int) -> Member:
    """More clients than a sketch has, all of one size, and a λ/N between 10⁻¹² and 10⁻⁹."""
    rng = np.random.default_rng(seed)
    M, K = int(rng.integers(8_500, 30_000)), int(rng.integers(3, 12))
    counts = rng.multinomial(int(rng.integers(20, 2000)), rng.dirichlet(np.full(K, 0.3), M))
    return Member(counts, rng.dirichlet(np.full(K, float(rng.choice([0.1, 1.0])))), 10 ** rng.uniform(-12, -9))


def small_lambda(seed: int) -> Member:
    """The sizes of ``lognormal`` and a small λ."""
    rng = np.random.default_rng(seed)
    member = lognormal(seed, int(np.exp(rng.uniform(1, 8))), int(rng.integers(2, 15)), float(rng.choice([0.05, 0.3])))
    return Member(member.counts, member.target, float(10 ** rng.uniform(-12, -2)))


def every_kind(seed: int) -> Member:
    """The kinds of clients and targets that the other tests draw, with any λ."""
    rng = np.random.default_rng(seed)
    drawn = draw(
        seed,
        str(rng.choice(CLIENT_KINDS)),
        str(rng.choice(TARGET_KINDS)),
        most_clients=int(rng.choice([6, 60, 400])),
        most_labels=14,
        largest=float(10 ** rng.uniform(1, 9)),
        log_mu=float(rng.uniform(-11, 6)),
    )
    return Member(drawn.counts, drawn.target, drawn.mu if rng.random() < 0.6 else 0.0)


def more_labels_than_clients(seed: int) -> Member:
    rng = np.random.default_rng(seed)
    M = int(rng.integers(2, 60))
    K = M + int(rng.integers(0, 60))
    counts = _counts(rng, np.exp(rng.normal(5, 2, M)) + 5, K, float(rng.choice([0.05, 0.3])))
    return Member(counts, rng.dirichlet(np.full(K, 0.3)), float(rng.choice([0.0, 10 ** rng.uniform(-8, 1)])))


def formats(seed: int) -> Member:
    """A sparse matrix in coordinates, each sample an entry of its own, in a type that cannot hold their sum."""
    rng = np.random.default_rng(seed)
    M, K = int(rng.integers(2, 30)), int(rng.integers(2, 8))
    samples = 600 * M
    kind = rng.choice(np.array(["uint8", "int8", "bool", "int16", "uint16", "float32", "int64"]))
    place = rng.integers(M, size=samples), rng.integers(K, size=samples) ** 2 // K
    form = (sparse.coo_array, sparse.coo_matrix)[seed % 2]
    counts = form((np.ones(samples, dtype=kind), place), shape=(M, K))
    return Member(counts, rng.dirichlet(np.ones(K)), float(10 ** rng.uniform(-4, 1)))


FAMILIES = (
    Family("λ → 0⁺, sizes lognormal(5,3), M = 3,000", lambda seed: lognormal(seed, 3000)),
    Family("λ → 0⁺, sizes lognormal(5,3), M = 20,000", lambda seed: lognormal(seed, 20_000)),
    Family("λ → 0⁺, random targets", random_targets, 1000),
    Family("λ → 0⁺, sizes 1 to 10¹²", wide_sizes, 1000),
    Family("λ → 0⁺, target near the hull", near_the_hull, 1000),
    Family("λ → 0⁺, clients that agree in nine digits", near_duplicates, 500, may_refuse=True),
    Family("ESS near that of λ → 0⁺", near_the_limit, 500),
    Family("ESS near λ → 0⁺, clients agree in nine digits", near_duplicates_near_the_limit, 200, may_refuse=True),
    Family("λ/N below 10⁻⁹, equal sizes, M > 8,192", equal_sizes, 60),
    Family("λ > 0 small, sizes lognormal(5,3)", small_lambda, 1000),
    Family("every kind, every λ", every_kind, 5000),
    Family("more labels than clients", more_labels_than_clients, 500),
    Family("sums that their type cannot hold", formats, 200),
)
