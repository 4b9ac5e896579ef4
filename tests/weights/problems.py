"""Random problems of every awkward kind, for hypothesis and for plain loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

CLIENT_KINDS = ("mixed", "one-hot", "duplicates", "two labels", "similar", "sparse")
TARGET_KINDS = ("random", "vertex", "pooled", "covered", "a client", "sparse")


@dataclass(frozen=True)
class Drawn:
    counts: npt.NDArray[np.int64]
    target: npt.NDArray[np.float64]
    mu: float

    @property
    def lam(self) -> float:
        return self.mu * float(self.counts.sum())


def _clients(kind: str, M: int, K: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    if kind == "one-hot":
        return np.asarray(np.eye(K)[rng.integers(K, size=M)])
    if kind == "duplicates":
        few = rng.dirichlet(np.full(K, 0.3), max(1, M // 3))
        return np.asarray(few[rng.integers(len(few), size=M)])
    if kind == "two labels":
        pairs = [np.bincount(rng.choice(K, min(K, 2), replace=False), minlength=K) for _ in range(M)]
        return np.asarray(pairs, dtype=np.float64) / min(K, 2)
    return np.asarray(rng.dirichlet(np.full(K, {"mixed": 0.3, "similar": 5.0, "sparse": 0.05}[kind]), M))


def _target(kind: str, counts: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    K = counts.shape[1]
    S = counts[counts.sum(axis=1) > 0]
    S = S / S.sum(axis=1, keepdims=True)
    makers: dict[str, Callable[[], npt.NDArray[np.float64]]] = {
        "random": lambda: rng.dirichlet(np.ones(K)),
        "vertex": lambda: np.eye(K)[rng.integers(K)],
        "pooled": lambda: counts.sum(axis=0) / counts.sum(),
        "covered": lambda: rng.dirichlet(np.ones(len(S))) @ S,
        "a client": lambda: S[rng.integers(len(S))],
        "sparse": lambda: np.where(rng.random(K) < 0.5, rng.dirichlet(np.ones(K)), 0.0) + 1e-3 * np.eye(K)[0],
    }
    T = makers[kind]()
    return np.asarray(T / T.sum())


def draw(
    seed: int,
    clients: str,
    target: str,
    *,
    most_clients: int,
    most_labels: int,
    largest: float,
    log_mu: float,
) -> Drawn:
    rng = np.random.default_rng(seed)
    M, K = int(rng.integers(1, most_clients + 1)), int(rng.integers(1, most_labels + 1))
    sizes = np.exp(rng.uniform(0, np.log(largest), M)).astype(np.int64)
    counts = np.floor(_clients(clients, M, K, rng) * sizes[:, None] + 0.5).astype(np.int64)
    if counts.sum() == 0:
        counts[0, 0] = 1
    return Drawn(counts, _target(target, counts, rng), float(10.0**log_mu))


def problems(*, most_clients: int, most_labels: int, largest: float = 1e9) -> st.SearchStrategy[Drawn]:
    return st.builds(
        draw,
        seed=st.integers(0, 2**32 - 1),
        clients=st.sampled_from(CLIENT_KINDS),
        target=st.sampled_from(TARGET_KINDS),
        most_clients=st.just(most_clients),
        most_labels=st.just(most_labels),
        largest=st.floats(10, largest),
        log_mu=st.floats(-10, 6),
    )
