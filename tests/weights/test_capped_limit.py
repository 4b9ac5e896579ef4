"""λ → 0⁺ with a cap on the weights: the projection within the cap, and the largest ESS among its weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import quadprog
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpals
from tests.weights.capped import capped, check_feasible
from tests.weights.families import Member, near_the_hull, near_the_limit, random_targets, wide_sizes


@pytest.mark.parametrize("block", range(5))
def test_lambda_zero_is_the_projection_of_largest_ess(block: int) -> None:
    for seed in range(40 * block, 40 * (block + 1)):
        problem = capped(seed)
        weights = problem.solve(lam=0)
        check_feasible(weights, problem)
        assert weights.squared_distance == pytest.approx(weights.projection_squared_distance, abs=1e-13)
        # No mix below the cap is further in the direction r: it gives the cap to the highest prices.
        held = problem.n > 0
        r = problem.drawn.target - weights.alpha @ problem.S
        prices = np.sort(problem.S[held] @ r)[::-1]
        furthest = np.clip(1 - problem.cap * np.arange(prices.size), 0, problem.cap) @ prices
        assert furthest <= weights.alpha @ (problem.S @ r) + 1e-12
        # A λ near 0 matches less, and costs fewer samples.
        near = problem.solve(lam=1e-10 * problem.n.sum())
        assert near.ess >= weights.ess * (1 - 1e-6)
        assert near.squared_distance >= weights.squared_distance - 1e-12


@pytest.mark.parametrize("family", [random_targets, wide_sizes, near_the_hull, near_the_limit])
def test_federations_that_were_hard_once_are_solved_with_a_cap_too(family: Callable[[int], Member]) -> None:
    for seed in range(10):
        member = family(seed)
        free = fedpals.solve(member.counts, member.target, lam=0)
        n, largest = np.asarray(member.counts.sum(axis=1), dtype=np.float64), float(free.alpha.max())
        held, S = n > 0, member.counts / np.maximum(n, 1)[:, None]
        for cap in (largest, max(1 / held.sum(), 0.6 * largest)):
            weights = fedpals.solve(member.counts, member.target, lam=0, max_weight=cap)
            assert 0 <= weights.alpha.min() <= weights.alpha.max() <= cap
            assert weights.alpha.sum() == pytest.approx(1, abs=1e-12)
            r = member.target - weights.alpha @ S
            prices = np.sort(S[held] @ r)[::-1]
            furthest = np.clip(1 - cap * np.arange(prices.size), 0, cap) @ prices
            assert furthest <= weights.alpha @ (S @ r) + 1e-12
            if cap == largest:
                off = weights.certificate.error + free.certificate.error
                assert np.abs(weights.alpha - free.alpha).sum() <= off + 1e-9


def test_where_all_that_have_weight_have_the_cap_nobodys_is_free() -> None:
    weights = fedpals.solve([[0, 40], [0, 30], [30, 30], [20, 20]], [0.5, 0.5], lam=0, max_weight=0.5)
    assert weights.alpha.tolist() == [0, 0, 0.5, 0.5]
    assert weights.covered


def test_where_one_client_is_a_rounding_below_the_cap_that_all_with_weight_have() -> None:
    """As 28 of 56 clients, 1/28 each, at different sums of roundings."""
    at_cap = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        clients, labels = int(rng.integers(30, 400)), int(rng.integers(3, 12))
        k = int(rng.integers(20, clients))
        mixes = rng.dirichlet(np.full(labels, 0.5), size=clients)
        counts = np.array([rng.multinomial(200, mix) for mix in mixes])
        weights = fedpals.solve(counts, rng.dirichlet(np.full(labels, 0.1)), lam=0, max_weight=1 / k)
        assert weights.alpha.sum() == pytest.approx(1, abs=1e-12)
        at_cap += np.count_nonzero(weights.alpha >= 1 / k) == k
    assert at_cap > 50


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(2, 6))
def test_clients_that_match_only_together_with_the_cap_each(seed: int, k: int, labels: int) -> None:
    """T is the mean of k clients' mixes, and 1/k the cap."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 40, (k + 3, labels))
    counts[:, 0] += 1
    marginals = counts / counts.sum(axis=1, keepdims=True)
    weights = fedpals.solve(counts, marginals[:k].mean(axis=0), lam=0, max_weight=1 / k)
    assert weights.covered
    assert weights.squared_distance < 1e-25
    assert weights.alpha.max() <= 1 / k


@pytest.mark.parametrize("seed", range(60))
def test_at_lambda_zero_no_other_weights_with_the_same_mix_have_a_larger_ess(seed: int) -> None:
    problem = capped(seed)
    weights = problem.solve(lam=0)
    held = problem.n > 0
    S, n, N = problem.S[held], problem.n[held], problem.n.sum()
    basis, lengths, _ = np.linalg.svd(S.T, full_matrices=False)
    independent = basis[:, lengths > 1e-10].T
    eye = np.eye(n.size)
    try:
        alpha = quadprog.solve_qp(
            np.diag(N / n),
            np.zeros(n.size),
            np.vstack([independent @ S.T, eye, -eye]).T,
            np.concatenate(
                [independent @ weights.marginal, np.full(n.size, -1e-15), np.full(n.size, -problem.cap - 1e-15)]
            ),
            len(independent),
        )[0]
    except ValueError:  # it finds the only possible weights impossible, by rounding
        return
    assert weights.ess == pytest.approx(1 / (np.square(alpha) / n).sum() / N, rel=1e-5)


def test_a_target_out_of_reach_of_the_cap_is_proven_so() -> None:
    """One client has the target's label; with at most 0.3 of the weight, 0.7 of the mix is another label."""
    weights = fedpals.solve([[10, 0], [0, 10], [0, 20], [0, 30]], [1, 0], lam=0, max_weight=0.3)
    assert fedpals.solve([[10, 0], [0, 10], [0, 20], [0, 30]], [1, 0], lam=0).covered
    assert not weights.covered
    assert weights.projection_squared_distance == pytest.approx(2 * 0.7**2)
    # Among the others the ESS is largest in proportion to sizes, but for the cap.
    assert weights.alpha == pytest.approx([0.3, 0.7 / 3 * 0.4 / 0.7, 0.8 / 3, 0.3])
