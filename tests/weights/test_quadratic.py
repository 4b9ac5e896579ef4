"""Small quadratic programs: against scipy and quadprog, and what happens where DAQP gives up or is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import quadprog
from scipy.optimize import nnls

import fedpals
from fedpals.labels import LabelCounts, match
from fedpals.weights.problem import Problem
from fedpals.weights.quadratic import QuadraticProgram, nonnegative_least_squares


def random_problem(seed: int, clients: int, labels: int) -> Problem:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 50, (clients, labels)) * (rng.random((clients, labels)) < 0.4)
    counts[:, 0] += 1
    counts[rng.integers(clients)] *= rng.integers(0, 2) * 1000  # one is huge, or empty
    return Problem.of(*match(LabelCounts.of(counts), rng.dirichlet(np.ones(labels))))


def by_quadprog(problem: Problem, mu: float, cap: float) -> Any:
    rows = np.flatnonzero(problem.w)
    S, w = problem.marginals(rows), problem.w[rows]
    one = np.eye(rows.size)
    constraints = np.vstack([np.ones(rows.size), one, -one]).T
    bounds = np.concatenate([[1.0], np.zeros(rows.size), np.full(rows.size, -cap)])
    alpha = np.zeros_like(problem.w)
    alpha[rows] = quadprog.solve_qp(S @ S.T + np.diag(mu / w), S @ problem.T, constraints, bounds, 1)[0]
    return alpha


@pytest.mark.parametrize("mu", [1e-6, 1e-2, 1.0, 1e4])
@pytest.mark.parametrize(("clients", "labels"), [(3, 2), (9, 10), (48, 10), (30, 182)])
def test_weights_are_those_of_another_solver(clients: int, labels: int, mu: float) -> None:
    for seed in range(10):
        problem = random_problem(seed, clients, labels)
        free = QuadraticProgram(problem).solve(mu)
        assert free == pytest.approx(by_quadprog(problem, mu, 1.0), abs=1e-9)
        cap = float(np.linspace(1.0 / np.count_nonzero(problem.w), free.max(), 4)[2])
        capped = QuadraticProgram(replace(problem, cap=cap)).solve(mu)
        assert capped == pytest.approx(by_quadprog(problem, mu, cap), abs=1e-9)
        assert capped.max() <= cap
        assert (capped == cap).any(), "at the cap means exactly"


@pytest.mark.parametrize("shape", [(3, 2), (9, 7), (60, 30)])
def test_least_squares_are_scipys(shape: tuple[int, int]) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A, b = rng.normal(size=shape), np.eye(shape[0])[0]
        assert nonnegative_least_squares(A, b) == pytest.approx(nnls(A, b)[0], abs=1e-12)


@pytest.mark.parametrize("status", [1, -4])
def test_least_squares_end_at_a_minimum_wherever_daqp_ends(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A, b = rng.normal(size=(9, 7)), np.eye(9)[0]
        answer = b, 0.0, status, {"lam": np.maximum(rng.normal(size=7), 0.0)}
        monkeypatch.setattr("daqp.solve", lambda *_, answer=answer, **__: answer)
        assert nonnegative_least_squares(A, b) == pytest.approx(nnls(A, b)[0], abs=1e-12)


@pytest.mark.parametrize("max_weight", [None, 0.3, 0.15])
def test_weights_are_proven_where_daqp_gives_up(max_weight: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        problem = random_problem(seed, 9, 10)
        for lam, target in ((5.0, problem.T), (5.0, problem.mix(problem.w)), (0.0, problem.T)):
            with monkeypatch.context() as patched:
                expected = fedpals.solve(problem.C, target, lam=lam, max_weight=max_weight)
                if lam:
                    patched.setattr("daqp.solve", lambda *_, **__: (None, 0.0, -4, {}))
                else:  # projections give up in their own way
                    patched.setattr(QuadraticProgram, "solve", lambda self, _: self._problem.fedavg)
                found = fedpals.solve(problem.C, target, lam=lam, max_weight=max_weight)
            assert np.abs(found.alpha - expected.alpha).sum() <= found.certificate.error + expected.certificate.error
