"""No more clients than labels: the same optimum in the space of clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import sparse

import fedpals
from fedpals.labels import LabelCounts
from fedpals.weights import active_set
from fedpals.weights.active_set import ActiveSet
from fedpals.weights.dual import Newton
from fedpals.weights.problem import Problem
from tests.weights.families import more_labels_than_clients


def problem_of(seed: int) -> Problem:
    member = more_labels_than_clients(seed)
    return Problem.of(LabelCounts.of(member.counts), member.target)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.floats(-5, 12))
def test_both_spaces_have_the_same_optimum(seed: int, log_mu: float) -> None:
    problem, mu = problem_of(seed), 10**log_mu
    by_clients, by_labels = ActiveSet(problem).solve(mu), Newton(problem).solve(mu)
    alphas = [problem.w * np.maximum(point.v, 0.0) for point in (by_clients, by_labels)]
    assert alphas[0].sum() == pytest.approx(1, abs=1e-13)
    assert np.abs(alphas[0] - alphas[1]).sum() <= 1e-9


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(-4, 2))
def test_both_spaces_have_the_same_slope_of_the_ess(seed: int, log_mu: float) -> None:
    problem, mu = problem_of(seed), 10**log_mu
    slopes = []
    for solver in (ActiveSet(problem), Newton(problem)):
        point = solver.solve(mu)
        slopes.append(solver.ess_slope(mu, point))
    assume(slopes[1] > 1e-12)
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-3)


def test_sparse_counts_have_the_same_kernel() -> None:
    member = more_labels_than_clients(7)
    dense, thin = (
        Problem.of(LabelCounts.of(form(member.counts)), member.target) for form in (np.asarray, sparse.csr_array)
    )
    assert dense.kernel() == pytest.approx(thin.kernel(), abs=1e-15)


def test_steps_that_do_not_settle_are_left_to_newton(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    counts = np.floor(rng.dirichlet(np.full(90, 0.1), 80) * 900).astype(np.int64)
    target = rng.dirichlet(np.full(90, 0.2))
    settled = fedpals.solve(counts, target, lam=1.0)
    monkeypatch.setattr(active_set, "_MAX_STEPS", 1)
    assert fedpals.solve(counts, target, lam=1.0).alpha == pytest.approx(settled.alpha, abs=1e-10)
    assert fedpals.solve(counts, target, ess=0.5).ess == pytest.approx(0.5)
