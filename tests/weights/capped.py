"""Random problems with a cap on the weights, and their optimum by another solver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import quadprog

import fedpals
from tests.weights.problems import CLIENT_KINDS, TARGET_KINDS, Drawn, draw

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Capped:
    """A problem with a cap between the smallest possible and sixteen times that."""

    drawn: Drawn
    cap: float

    @property
    def n(self) -> Array:
        return np.asarray(self.drawn.counts.sum(axis=1), dtype=np.float64)

    @property
    def S(self) -> Array:  # noqa: N802 -- a matrix
        return np.asarray(self.drawn.counts / np.maximum(self.n, 1)[:, None])

    def solve(self, **choice: float) -> fedpals.Weights:
        return fedpals.solve(self.drawn.counts, self.drawn.target, max_weight=self.cap, **choice)

    def objective(self, alpha: Array) -> float:
        held = self.n > 0
        return float(
            np.square(self.drawn.target - alpha @ self.S).sum()
            + self.drawn.lam * (np.square(alpha[held]) / self.n[held]).sum()
        )

    def reference(self) -> Array:
        """Return the optimum by quadprog's dual active-set method, in the well-scaled unknowns α/√w."""
        held = self.n > 0
        root = np.sqrt(self.n[held] / self.n.sum())
        if self.cap * root.size < 1 + 1e-12:  # impossible for quadprog, by rounding
            return np.where(held, self.cap, 0.0)
        S, eye = self.S[held] * root[:, None], np.eye(root.size)
        scale = 1 + self.drawn.mu
        x = quadprog.solve_qp(
            (S @ S.T + self.drawn.mu * eye) / scale,
            S @ self.drawn.target / scale,
            np.vstack([root, eye, -eye]).T,
            np.concatenate([[1.0], np.zeros(root.size), -self.cap / root]),
            1,
        )[0]
        found = np.zeros(held.size)
        found[held] = np.clip(root * x, 0.0, self.cap)
        return found


def capped(seed: int, *, most_clients: int = 60, log_mu: tuple[float, float] = (-5, 4)) -> Capped:
    rng = np.random.default_rng(seed)
    drawn = draw(
        seed,
        str(rng.choice(CLIENT_KINDS)),
        str(rng.choice(TARGET_KINDS)),
        most_clients=most_clients,
        most_labels=12,
        largest=10 ** rng.uniform(1, 5),
        log_mu=rng.uniform(*log_mu),
    )
    least = 1.0 / np.count_nonzero(drawn.counts.sum(axis=1))
    factor = 1.0 if rng.random() < 0.1 else 10 ** rng.uniform(0, 1.2)
    return Capped(drawn, min(1.0, least * factor))


def check_feasible(weights: fedpals.Weights, problem: Capped) -> None:
    assert weights.alpha.min() >= 0
    assert weights.alpha.max() <= problem.cap
    assert weights.alpha.sum() == pytest.approx(1, abs=1e-12)
    assert not weights.alpha[problem.n == 0].any()
