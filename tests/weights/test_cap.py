"""A cap on the weights, against an independent QP solver, by hand, and by its certificate."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import fedpals
from fedpals.labels import LabelCounts
from fedpals.weights.cap import capped_fedavg
from fedpals.weights.certificate import certify_dual, certify_primal
from fedpals.weights.dual import Newton
from fedpals.weights.problem import Problem
from tests.weights.capped import Array, Capped, capped, check_feasible
from tests.weights.families import near_duplicates

COUNTS = np.array([[80, 20, 0], [10, 60, 30], [5, 5, 40], [1, 1, 8]])
TARGET = [0.2, 0.3, 0.5]


@pytest.mark.parametrize("block", range(20))
def test_thousands_of_problems_have_the_optimum_of_another_solver(block: int) -> None:
    binding = 0
    for seed in range(100 * block, 100 * (block + 1)):
        problem = capped(seed)
        weights, reference = problem.solve(lam=problem.drawn.lam), problem.reference()
        check_feasible(weights, problem)
        best = problem.objective(reference)
        value = problem.objective(weights.alpha)
        assert abs(value - best) <= 1e-9 * best
        # How far the reference may be from the optimum follows from its objective, by strong convexity.
        off = math.sqrt((max(0.0, best - value) + weights.certificate.gap + 1e-14 * best) / problem.drawn.mu)
        assert np.abs(weights.alpha - reference).sum() <= weights.certificate.error + off
        binding += bool((weights.alpha >= problem.cap).any())
    assert binding > 40


@pytest.mark.parametrize("seed", range(8))
def test_the_same_with_hundreds_of_clients_dense_and_sparse(seed: int) -> None:
    problem = capped(seed, most_clients=300)
    dense = problem.solve(lam=problem.drawn.lam)
    best = problem.objective(problem.reference())
    assert abs(problem.objective(dense.alpha) - best) <= 1e-9 * best
    thin = fedpals.solve(
        sparse.csr_array(problem.drawn.counts), problem.drawn.target, lam=problem.drawn.lam, max_weight=problem.cap
    )
    assert np.abs(dense.alpha - thin.alpha).sum() <= dense.certificate.error + thin.certificate.error


@pytest.mark.parametrize("log_mu", [(-9, -5), (-5, 4)])
def test_the_certificate_holds_in_high_precision(log_mu: tuple[float, float]) -> None:
    """The optimum in 300 bits, from the clients that are free: it is one if it satisfies all conditions there."""
    compared = 0
    for seed in range(120):
        problem = capped(seed, most_clients=12, log_mu=log_mu)
        weights = problem.solve(lam=problem.drawn.lam)
        with mpmath.workprec(300):
            optimum = exact_optimum(problem, weights.alpha)
            if optimum is None:
                continue
            compared += 1
            alpha = scaled_below_cap(weights.alpha, problem.cap)
            error = mpmath.fsum(abs(a - b) for a, b in zip(alpha, optimum, strict=True))
            gap = exact_objective(problem, alpha) - exact_objective(problem, optimum)
            assert error <= weights.certificate.error
            assert gap <= weights.certificate.gap
    assert compared > 80


def scaled_below_cap(alpha: Array, cap: float) -> list[Any]:
    """Return weights with the sum 1, which those at the cap leave as they are."""
    exact = [mpmath.mpf(float(a)) for a in alpha]
    at_cap = mpmath.fsum(a for a in exact if a >= cap)
    below = mpmath.fsum(a for a in exact if a < cap)
    return [a if a >= cap else a * (1 - at_cap) / below for a in exact]


def exact_marginals(problem: Capped) -> list[list[Any]]:
    return [[mpmath.mpf(int(c)) / max(1, int(row.sum())) for c in row] for row in problem.drawn.counts]


def exact_target(problem: Capped) -> list[Any]:
    shares = [mpmath.mpf(float(t)) for t in problem.drawn.target]
    return [t / mpmath.fsum(shares) for t in shares]


def exact_objective(problem: Capped, alpha: list[Any]) -> Any:
    S, T = exact_marginals(problem), exact_target(problem)
    r = [t - mpmath.fsum(a * row[k] for a, row in zip(alpha, S, strict=True)) for k, t in enumerate(T)]
    penalty = mpmath.fsum(a * a / int(n) for a, n in zip(alpha, problem.n, strict=True) if n)
    return mpmath.fsum(x * x for x in r) + mpmath.mpf(problem.drawn.lam) * penalty


def exact_optimum(problem: Capped, hint: Array) -> list[Any] | None:
    """Return the optimum, if the clients that are free in ``hint`` are those that are free in it."""
    S, T = exact_marginals(problem), exact_target(problem)
    lam, cap = mpmath.mpf(problem.drawn.lam), mpmath.mpf(float(problem.cap))
    free = np.flatnonzero((hint > 0) & (hint < problem.cap)).tolist()
    at_cap = np.flatnonzero(hint >= problem.cap).tolist()
    if not free:
        return None
    rest = [t - cap * mpmath.fsum(S[i][k] for i in at_cap) for k, t in enumerate(T)]
    A, b = mpmath.matrix(len(free) + 1), mpmath.matrix(len(free) + 1, 1)
    for row, i in enumerate(free):
        for column, j in enumerate(free):
            A[row, column] = mpmath.fdot(S[i], S[j]) + (lam / int(problem.n[i]) if i == j else 0)
        A[row, len(free)] = A[len(free), row] = 1
        b[row] = mpmath.fdot(S[i], rest)
    b[len(free)] = 1 - cap * len(at_cap)
    solved = mpmath.lu_solve(A, b)
    alpha = [cap if i in at_cap else mpmath.mpf(0) for i in range(hint.size)]
    for row, i in enumerate(free):
        alpha[i] = solved[row]
    r = [t - mpmath.fsum(a * row[k] for a, row in zip(alpha, S, strict=True)) for k, t in enumerate(T)]
    for i in np.flatnonzero(problem.n).tolist():
        slope = mpmath.fdot(S[i], r) - lam * alpha[i] / int(problem.n[i]) - solved[len(free)]
        wrong = slope > 0 if hint[i] <= 0 else slope < 0 if i in at_cap else not 0 <= alpha[i] <= cap
        if wrong:
            return None
    return alpha


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_optimality_conditions(seed: int) -> None:
    """The slope 2(s_i·r − λα_i/n_i) is the same for all free clients, lower at 0 and higher at the cap."""
    problem = capped(seed, log_mu=(-3, 3))
    weights = problem.solve(lam=problem.drawn.lam)
    held = problem.n > 0
    alpha, n, S = weights.alpha[held], problem.n[held], problem.S[held]
    slope = S @ (problem.drawn.target - alpha @ S) - problem.drawn.lam * alpha / n
    tolerance = 1e-9 * (1 + np.abs(slope).max())
    could_rise, could_fall = slope[alpha < problem.cap], slope[alpha > 0]
    assert could_rise.max(initial=-np.inf) <= could_fall.min() + tolerance


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.floats(-12, -1))
def test_the_gap_bounds_any_weights_and_any_dual_point(seed: int, log_noise: float) -> None:
    """Weights and dual points away from the optimum: the certificate says at least how far."""
    problem = capped(seed, log_mu=(-2, 2))
    rng = np.random.default_rng(seed)
    model = Problem(problem.drawn.counts.astype(np.float64), problem.n, problem.drawn.target, problem.cap)
    mu = problem.drawn.mu
    newton = Newton(model)
    best, _ = newton.solve(mu).weights(model)
    noise = 10**log_noise * rng.normal(size=model.T.size)
    moved = newton.descend(mu, newton.solve(mu).u + noise, accuracy=math.inf)  # evaluated, no step taken
    other = capped_fedavg(model.w, problem.cap)
    alpha = best + rng.uniform(0, 10**log_noise) * (other - best)  # between two points of a convex set
    for certificate in (
        certify_dual(model, alpha, mu, moved, model.mix(alpha)),
        certify_primal(model, alpha, mu),
    ):
        value = problem.objective(alpha)
        assert value - problem.objective(best) <= certificate.gap + 1e-14 * value
        assert np.abs(alpha - best).sum() <= certificate.error + 1e-12


def test_weights_that_do_not_sum_to_one_prove_nothing() -> None:
    model = Problem.of(LabelCounts.of(COUNTS), np.array(TARGET))
    model = Problem(model.C, model.n, model.T, 0.4)
    assert certify_primal(model, np.array([0.4, 0.4, 0.1, 0.0]), 1.0).gap == math.inf


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.02, 1))
def test_the_asked_for_ess_is_met_or_clamped(seed: int, ess: float) -> None:
    problem = capped(seed)
    weights, lowest, highest = (problem.solve(**choice) for choice in ({"ess": ess}, {"lam": 0}, {"lam": math.inf}))
    check_feasible(weights, problem)
    if weights.clamped:
        end = lowest if ess < lowest.ess else highest
        assert (weights.lam, weights.ess) == (end.lam, end.ess)
        assert not lowest.ess <= ess <= highest.ess
    else:
        near_zero = weights.lam < 1e-6 * problem.n.sum()
        assert weights.ess == pytest.approx(ess, rel=1e-3 if near_zero else 1e-7)


def test_an_ess_is_found_where_a_single_client_is_below_the_cap_at_infinity() -> None:
    """Alone it cannot move: there the search once began, and ended, at μ = 0."""
    counts, target = np.array([[10, 5, 2], [18, 12, 42], [35, 44, 37], [9, 22, 45]]), [0.15, 0.61, 0.24]
    fedavg = capped_fedavg(counts.sum(axis=1) / counts.sum(), 0.3)
    assert (fedavg < 0.3).sum() == 1
    for ess in np.linspace(0.5, 0.9, 9):
        weights = fedpals.solve(counts, target, ess=float(ess), max_weight=0.3)
        assert weights.ess == pytest.approx(ess, rel=1e-6)


_WHERE_ROUNDING_SPOILT_THE_SEARCH = (10235, 70625, 70661, 124597, 128074, 139338, 142206, 149884, 177798)


def test_no_ess_is_refused_with_few_clients_and_any_cap() -> None:
    for seed in (*range(2000), *_WHERE_ROUNDING_SPOILT_THE_SEARCH):
        rng = np.random.default_rng(seed)
        clients, labels = int(rng.integers(2, 9)), int(rng.integers(2, 6))
        counts = rng.integers(0 if seed % 2 else 1, 50, size=(clients, labels))
        target, cap, ess = rng.dirichlet(np.ones(labels)), rng.uniform(1 / clients, 0.9), rng.uniform(0.02, 1)
        if counts.sum(axis=1).all():
            weights = fedpals.solve(counts, target, ess=ess, max_weight=cap)
            if weights.lam not in (0.0, math.inf):  # at a limit it is clamped
                assert weights.ess == pytest.approx(ess, rel=1e-3), seed


@pytest.mark.parametrize(("seed", "cap", "ess"), [(2000897, 0.444, 0.9012481867), (2000851, 0.656, 0.9303902739)])
def test_a_cap_above_every_weight_refuses_nothing_that_is_answered_without_it(
    seed: int, cap: float, ess: float
) -> None:
    hard = near_duplicates(seed)
    free = fedpals.solve(hard.counts, hard.target, ess=ess)
    weights = fedpals.solve(hard.counts, hard.target, ess=ess, max_weight=cap)
    assert weights.alpha.tolist() == free.alpha.tolist()
    assert weights.alpha.max() < cap


@pytest.mark.parametrize("block", range(4))
def test_an_ess_just_below_the_highest_is_no_exception(block: int) -> None:
    for seed in range(100 * block, 100 * (block + 1)):
        problem = capped(seed)
        fedavg = problem.solve(lam=math.inf)
        ess = fedavg.ess
        for step in range(1, 4):
            ess = math.nextafter(ess, 0.0)
            weights = problem.solve(ess=ess)
            check_feasible(weights, problem)
            assert weights.ess == pytest.approx(ess, rel=1e-12), (seed, step)


def test_the_grid_lies_between_the_limits_of_the_cap() -> None:
    lowest, highest = (fedpals.solve(COUNTS, TARGET, lam=lam, max_weight=0.35).ess for lam in (0, math.inf))
    grid = fedpals.ess_grid(COUNTS, TARGET, 3, max_weight=0.35)
    assert highest < 1
    assert [w.ess for w in grid] == pytest.approx(np.linspace(lowest, highest, 5)[1:-1], rel=1e-8)
    assert all(w.alpha.max() <= 0.35 and w.max_weight == 0.35 for w in grid)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["lam", "ess", "limit"]), st.booleans())
def test_a_cap_that_no_weight_exceeds_changes_nothing(seed: int, kind: str, exact: bool) -> None:
    """Other steps may lead to the answer, which is as exact as λ or an ESS determines it."""
    drawn = capped(seed, most_clients=120).drawn
    choice: Any = {"ess": 0.4} if kind == "ess" else {"lam": drawn.lam if kind == "lam" else 0.0}
    free = fedpals.solve(drawn.counts, drawn.target, **choice)
    largest = float(free.alpha.max())
    cap = largest if exact else min(1.0, 1.01 * largest)
    weights = fedpals.solve(drawn.counts, drawn.target, **choice, max_weight=cap)
    assert weights.clamped == free.clamped
    if kind != "ess":
        assert weights.lam == free.lam
        assert np.abs(weights.alpha - free.alpha).sum() <= weights.certificate.error + free.certificate.error
    else:
        assert weights.ess == pytest.approx(free.ess, rel=1e-8)
        assert weights.alpha == pytest.approx(free.alpha, abs=1e-7)


def test_a_cap_that_is_met_on_the_way_only_changes_nothing() -> None:
    """From FedAvg, whose largest weight is above the cap, to weights that are below it."""
    rng = np.random.default_rng(1)
    counts = np.vstack([[5000, 0, 0], rng.integers(1, 60, (80, 3))])
    free = fedpals.solve(counts, [0, 0.5, 0.5], lam=1.0)
    cap = 0.5 * (float(free.alpha.max()) + 5000 / counts.sum())
    assert free.alpha.max() < cap < 5000 / counts.sum()
    assert fedpals.solve(counts, [0, 0.5, 0.5], lam=1.0, max_weight=cap).alpha == pytest.approx(free.alpha, abs=1e-13)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_a_larger_cap_is_never_worse(seed: int) -> None:
    problem = capped(seed)
    larger = Capped(problem.drawn, min(1.0, 1.3 * problem.cap))
    values = [problem.objective(p.solve(lam=problem.drawn.lam).alpha) for p in (problem, larger)]
    assert values[1] <= values[0] * (1 + 1e-10)


@pytest.mark.parametrize("clients", [3, 7, 49, 120])
@pytest.mark.parametrize("lam", [0.0, 1.0, 1e3, math.inf])
def test_the_smallest_cap_leaves_one_choice(clients: int, lam: float) -> None:
    rng = np.random.default_rng(clients)
    counts = rng.multinomial(30, rng.dirichlet([1, 1, 1, 1]), clients)
    weights = fedpals.solve(counts, [0.1, 0.2, 0.3, 0.4], lam=lam, max_weight=1 / clients)
    assert weights.alpha == pytest.approx(np.full(clients, 1 / clients), rel=1e-12)


@pytest.mark.parametrize("cap", [0.24, 1e-3])
def test_a_cap_too_small_is_refused_with_the_smallest_that_works(cap: float) -> None:
    counts = np.vstack([COUNTS, [0, 0, 0]])
    with pytest.raises(fedpals.InputError, match=r"4 clients with samples.* at least 0\.25"):
        fedpals.solve(counts, TARGET, lam=1, max_weight=cap)
    assert fedpals.solve(counts, TARGET, lam=1, max_weight=0.25).alpha.tolist() == [0.25] * 4 + [0]


@pytest.mark.parametrize("cap", [0.0, -0.2, 1.5, math.nan])
def test_bad_caps(cap: float) -> None:
    with pytest.raises(fedpals.InputError, match="max_weight is"):
        fedpals.solve(COUNTS, TARGET, lam=1, max_weight=cap)


def test_water_filling_by_hand() -> None:
    """Two clients at 0.3, and 0.4 left for the others, who have 0.3: a third more than their shares."""
    assert capped_fedavg(np.array([0.4, 0.1, 0.3, 0.0, 0.2]), 0.3) == pytest.approx([0.3, 0.4 / 3, 0.3, 0, 0.8 / 3])
    assert capped_fedavg(np.array([0.4, 0.6]), 0.6).tolist() == [0.4, 0.6]


def test_many_clients_start_from_a_sketch() -> None:
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.dirichlet(np.full(12, 0.3), 12_000) * rng.lognormal(4, 1.5, 12_000)[:, None])
    target = rng.dirichlet(np.ones(12))
    free = fedpals.solve(counts, target, lam=300)
    cap = 0.4 * float(free.alpha.max())
    for form in (np.asarray, sparse.csr_array):
        weights = fedpals.solve(form(counts), target, lam=300, max_weight=cap)
        assert (weights.alpha >= cap).sum() > 1
        assert weights.alpha.max() <= cap
        assert weights.certificate.relative_gap < 1e-12
