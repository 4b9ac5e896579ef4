from __future__ import annotations

import itertools
import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import fedpals
import fedpals.weights.certificate
import fedpals.weights.dual
import fedpals.weights.limit
import fedpals.weights.projection
import fedpals.weights.refine
from fedpals.weights.active_set import ActiveSet
from fedpals.weights.problem import Problem
from fedpals.weights.quadratic import QuadraticProgram
from tests.weights.problems import Drawn, problems

COUNTS = np.array([[80, 20, 0], [10, 60, 30], [5, 5, 40]])
TARGET = [0.2, 0.3, 0.5]


def random_counts(M: int, K: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.dirichlet(np.full(K, 0.3), M) * rng.lognormal(5, 1, M)[:, None])
    return counts, rng.dirichlet(np.ones(K))


def test_the_answer_says_what_it_achieves() -> None:
    weights = fedpals.solve(COUNTS, TARGET, lam=20)
    S = COUNTS / COUNTS.sum(axis=1, keepdims=True)
    sizes = COUNTS.sum(axis=1)
    assert weights.marginal == pytest.approx(weights.alpha @ S)
    assert weights.squared_distance == pytest.approx(np.sum((TARGET - weights.alpha @ S) ** 2))
    assert weights.effective_samples == pytest.approx(1 / np.sum(weights.alpha**2 / sizes))
    assert weights.ess == pytest.approx(weights.effective_samples / sizes.sum())
    assert weights.fedavg == pytest.approx(sizes / sizes.sum())
    assert weights.fedavg_squared_distance == pytest.approx(np.sum((TARGET - sizes / sizes.sum() @ S) ** 2))
    assert weights.projection_squared_distance <= weights.squared_distance <= weights.fedavg_squared_distance


def test_answers_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        fedpals.solve(COUNTS, TARGET, lam=1).lam = 3  # type: ignore[misc]


@settings(max_examples=150, deadline=None)
@given(problems(most_clients=40, most_labels=8, largest=1e5), st.floats(0.001, 1))
def test_the_asked_for_ess_is_met(drawn: Drawn, ess: float) -> None:
    weights = fedpals.solve(drawn.counts, drawn.target, ess=ess)
    lowest = fedpals.solve(drawn.counts, drawn.target, lam=0).ess
    if ess < lowest:
        assert weights.clamped
        assert weights.lam == 0
        assert weights.ess == lowest
    else:
        # Next to λ = 0 the ESS itself is only so many digits of a difference of large dual numbers.
        near_zero = weights.lam < 1e-6 * drawn.counts.sum()
        assert weights.ess == pytest.approx(ess, rel=1e-3 if near_zero else 1e-7)
        assert not weights.clamped


def test_lambda_of_an_ess_leads_back_to_it() -> None:
    by_ess = fedpals.solve(COUNTS, TARGET, ess=0.7)
    by_lam = fedpals.solve(COUNTS, TARGET, lam=by_ess.lam)
    assert by_lam.alpha == pytest.approx(by_ess.alpha, abs=1e-12)


def test_the_grid_is_equidistributed_between_the_limits() -> None:
    lowest = fedpals.solve(COUNTS, TARGET, lam=0).ess
    grid = fedpals.ess_grid(COUNTS, TARGET, 4)
    assert [w.ess for w in grid] == pytest.approx(np.linspace(lowest, 1, 6)[1:-1], rel=1e-8)
    assert all(a.lam < b.lam for a, b in itertools.pairwise(grid))


@pytest.mark.parametrize("M", [30, 300, 20_000])
def test_sparse_and_dense_agree(M: int) -> None:
    counts, target = random_counts(M, 12)
    for choice in ({"lam": 50.0}, {"lam": 0.0}, {"ess": 0.9}):
        dense = fedpals.solve(counts, target, **choice)
        thin = fedpals.solve(sparse.csr_array(counts), target, **choice)
        assert np.abs(dense.alpha - thin.alpha).sum() <= 1e-7
        assert dense.covered == thin.covered


def test_many_clients_and_many_labels() -> None:
    """Column generation, sketches and updates of the Newton matrix, on sizes where all are in use."""
    counts, target = random_counts(30_000, 40)
    for choice in ({"lam": 1e3}, {"lam": 1.0}, {"ess": 0.5}, {"lam": 0.0}):
        weights = fedpals.solve(counts, target, **choice)
        assert weights.certificate.relative_gap < 1e-9
        assert weights.alpha.sum() == pytest.approx(1)
    assert weights.squared_distance == pytest.approx(weights.projection_squared_distance, abs=1e-14)


def test_starting_from_a_sketch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, target = random_counts(9000, 5)
    sketched = fedpals.solve(counts, target, lam=100.0)
    monkeypatch.setattr(fedpals.weights.dual, "_SKETCH_ROWS", 10**9)
    plain = fedpals.solve(counts, target, lam=100.0)
    assert np.abs(sketched.alpha - plain.alpha).sum() <= 1e-10


def test_more_labels_than_clients() -> None:
    counts, target = random_counts(20, 400)
    weights = fedpals.solve(counts, target, ess=0.5)
    assert weights.ess == pytest.approx(0.5)
    assert not weights.covered


def test_partial_participation_is_a_solve_over_the_participants() -> None:
    counts = fedpals.LabelCounts.of(random_counts(500, 10)[0])
    participants = np.array([3, 77, 12, 401, 5])
    target = np.full(10, 0.1)
    by_subset = fedpals.solve(counts.subset(participants), target, ess=0.8)
    by_rows = fedpals.solve(random_counts(500, 10)[0][participants], target, ess=0.8)
    assert (by_subset.alpha == by_rows.alpha).all()


def test_duplicate_clients_share_in_proportion_to_size() -> None:
    weights = fedpals.solve([[10, 30], [20, 60], [50, 0]], [0.5, 0.5], lam=7)
    assert weights.alpha[1] == pytest.approx(2 * weights.alpha[0], rel=1e-12)


def test_one_client_one_label() -> None:
    assert fedpals.solve([[5]], [1.0], lam=3).alpha.tolist() == [1.0]
    assert fedpals.solve([[5, 1]], [0.1, 0.9], lam=0).alpha.tolist() == [1.0]
    assert fedpals.solve([[5], [15]], [1.0], ess=0.3).alpha.tolist() == [0.25, 0.75]


def test_a_label_no_client_has_is_uncovered_and_still_solved() -> None:
    counts = fedpals.LabelCounts.of([[5, 5], [9, 1]], labels=["a", "b"])
    weights = fedpals.solve(counts, {"a": 0.4, "b": 0.4, "new": 0.2}, lam=0)
    assert not weights.covered
    assert weights.marginal[2] == 0
    assert weights.counts.labels == ("a", "b", "new")


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_many_clients_of_which_each_that_a_sketch_would_take_is_empty(form: Any) -> None:
    counts, target = random_counts(10_000, 3)
    counts[::9] = 0  # 1,024 rows of 10,000 are every ninth
    weights = fedpals.solve(form(counts), target, lam=100)
    held = counts.sum(axis=1) > 0
    assert not weights.alpha[~held].any()
    assert weights.alpha[held] == pytest.approx(fedpals.solve(counts[held], target, lam=100).alpha, abs=1e-12)


def test_a_projection_that_scipy_s_least_squares_misses() -> None:
    """Clients of equal size with three labels each; scipy 1.17 gives the third and fourth a tenth of the weight."""
    held = [[1, 3, 4], [1, 3, 5], [1, 4, 5], [1, 8, 9], [2, 5, 7]]
    counts = np.array([[133 * (label in labels) for label in range(10)] for labels in held])
    target = np.isin(np.arange(10), [0, 4, 7]) / 3
    projection = fedpals.coverage(counts, target)
    assert projection.alpha == pytest.approx([0.5, 0, 0, 0, 0.5])
    assert projection.squared_distance == pytest.approx(5 / 18, rel=1e-12)
    assert fedpals.solve(counts, target, lam=0).ess == pytest.approx(0.4)


@pytest.mark.parametrize("seed", range(20))
def test_a_little_of_a_label_that_no_client_has(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = np.zeros((100, 3), dtype=np.int64)
    for _ in range(3):
        counts[np.arange(100), rng.integers(0, 2, 100)] += rng.integers(5, 2000, 100)
    missing = 10 ** rng.uniform(-7, -5)
    projection = fedpals.coverage(counts, np.array([*(rng.dirichlet([1, 1]) * (1 - missing)), missing]))
    assert not projection.covered
    # Of the closest mix each of the two labels has half of what is missing more.
    assert projection.squared_distance == pytest.approx(1.5 * missing**2, rel=1e-6)


def test_the_limit_leaves_nobody_out_for_what_is_unknown_of_the_projection() -> None:
    counts = np.array([[40, 10, 0], [10, 40, 0], [25, 25, 0], [30, 20, 0]])
    problem = Problem.of(fedpals.LabelCounts.of(counts), np.array([0.45, 0.35, 0.2]))
    known = fedpals.weights.projection.project(problem)
    off = np.array([2e-11, -2e-11, 0.0])
    vague = replace(known, point=known.point + off, error=3e-11)
    alpha, _ = fedpals.weights.limit.limit(problem, known)
    assert (alpha > 0).all()
    assert fedpals.weights.limit.limit(problem, vague)[0] == pytest.approx(alpha, abs=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_a_few_samples_that_have_to_stand_for_many(seed: int) -> None:
    """Sizes from 1 to a million, and a target of a few labels that the large clients do not have."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.normal(5, 3, 150)) + 1
    counts = np.floor(rng.dirichlet(np.full(10, 0.05), 150) * sizes[:, None]).astype(np.int64)
    target = rng.dirichlet(np.full(10, 0.05))
    limit, near = (fedpals.solve(counts, target, lam=lam * counts.sum()) for lam in (0, 1e-11))
    assert limit.squared_distance == pytest.approx(limit.projection_squared_distance, abs=1e-12)
    assert limit.ess <= near.ess * (1 + 1e-6)


def test_an_ess_whose_slope_rounding_spoils_is_found() -> None:
    counts = [[982, 996, 1006], [989, 961, 984], [983, 1002, 928]]
    target = {"a": 1 - 1.306312e-05, "b": 8.514e-08, "c": 1.297798e-05}
    named = fedpals.LabelCounts.of(counts, labels=list(target))
    assert fedpals.solve(named, target, ess=0.4582).ess == pytest.approx(0.4582, abs=1e-8)


def test_exactly_one_of_lam_and_ess() -> None:
    with pytest.raises(fedpals.InputError, match=r"either lam=… or ess=…"):
        fedpals.solve(COUNTS, TARGET)
    with pytest.raises(fedpals.InputError, match=r"either lam=… or ess=…"):
        fedpals.solve(COUNTS, TARGET, lam=1, ess=0.5)


@pytest.mark.parametrize("lam", [-1.0, math.nan])
def test_bad_lambda(lam: float) -> None:
    with pytest.raises(fedpals.InputError, match="lam is"):
        fedpals.solve(COUNTS, TARGET, lam=lam)


@pytest.mark.parametrize("ess", [0.0, -0.1, 1.01, math.nan])
def test_bad_ess(ess: float) -> None:
    with pytest.raises(fedpals.InputError, match="ess is"):
        fedpals.solve(COUNTS, TARGET, ess=ess)


@pytest.mark.parametrize("ulps", [-2, -1, 0, 1, 2])
def test_an_ess_that_is_the_limit_s_up_to_rounding(ulps: int) -> None:
    """T = (½, ½) needs α = (⅓, ⅔), whose ESS is 0.9: no μ > 0 has it, whatever the last bit of either says."""
    ess = 0.9 + ulps * 2.0**-53
    weights = fedpals.solve([[90, 10], [30, 70]], [0.5, 0.5], ess=ess)
    assert weights.alpha == pytest.approx([1 / 3, 2 / 3], abs=1e-12)
    assert weights.lam == 0


def test_bad_grid() -> None:
    with pytest.raises(fedpals.InputError, match="l is 0"):
        fedpals.ess_grid(COUNTS, TARGET, 0)


def test_an_answer_that_fails_its_certificate_is_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage the solvers: what comes out is an error, not wrong weights."""
    monkeypatch.setattr(fedpals.weights.dual.Newton, "solve_linear", lambda *arguments: 0.0 * arguments[-1])
    monkeypatch.setattr(ActiveSet, "_find", lambda *_: None)
    monkeypatch.setattr(QuadraticProgram, "solve", lambda program, *_: np.square(program._root))
    monkeypatch.setattr(fedpals.weights.refine, "_solve_normal", lambda *arguments: 0.0 * arguments[-1])
    with pytest.raises(fedpals.CertificateError, match="could not be proven optimal"):
        fedpals.solve(COUNTS, TARGET, lam=1e-3)


NO_NUMBERS = ["0.5", "auto", b"1", [0.5], {}, 1j, np.array([0.5]), np.complex128(0.5), object(), 10**400, 10**5000]


@pytest.mark.parametrize("name", ["lam", "ess", "max_weight"])
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_is_no_number_is_refused_by_name(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"lam": 1.0, name: value} if name != "ess" else {"ess": value}
    with pytest.raises(fedpals.InputError, match=f"^{name} is .*; it must be "):
        fedpals.solve([[3, 1], [0, 4]], [0.5, 0.5], **arguments)


@pytest.mark.parametrize("value", [Decimal("0.5"), Fraction(1, 2), np.float32(0.5), np.array(0.5)])
@pytest.mark.parametrize("name", ["lam", "ess", "max_weight"])
def test_every_type_of_number_will_do(name: str, value: Any) -> None:
    def solve(value: Any) -> Any:
        arguments: dict[str, Any] = {"lam": 1.0, name: value} if name != "ess" else {"ess": value}
        return fedpals.solve([[3, 1], [0, 4], [7, 1]], [0.5, 0.5], **arguments).alpha.tolist()

    assert solve(value) == solve(0.5)


@pytest.mark.parametrize("l", ["auto", 2.0, [2], None])
def test_a_grid_has_a_whole_number_of_values(l: Any) -> None:  # noqa: E741
    with pytest.raises(fedpals.InputError, match=r"^l is .*; it must be a whole number"):
        fedpals.ess_grid([[3, 1], [0, 4]], [0.5, 0.5], l)
