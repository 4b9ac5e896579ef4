"""Scores with all their digits, and the iteration that needs them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse

from fedpals.labels import LabelCounts
from fedpals.weights.double_double import DoubleDouble, exact_scores
from fedpals.weights.dual import Newton
from fedpals.weights.problem import Problem
from fedpals.weights.refine import refine

Array = npt.NDArray[np.float64]


def problem_of(counts: Any, target: Array | None = None) -> Problem:
    table = LabelCounts.of(counts)
    K = table.shape[1]
    return Problem.of(table, np.full(K, 1 / K) if target is None else target)


def exactly(counts: npt.NDArray[np.int64], z: DoubleDouble) -> list[Fraction]:
    entries = [Fraction(float(a)) + Fraction(float(b)) for a, b in zip(z.high, z.low, strict=True)]
    return [
        sum((int(c) * x for c, x in zip(row, entries, strict=True)), Fraction(0)) / max(1, int(row.sum()))
        for row in counts
    ]


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("largest", [100, 10**6, 10**12, 2**51])
def test_scores_have_all_their_digits(form: Any, largest: int) -> None:
    rng = np.random.default_rng(0)
    counts = np.floor(np.exp(rng.uniform(0, np.log(largest), (40, 5)))).astype(np.int64)
    counts[3] = 0
    # Orthogonal to the first client but for the last bits: what float64 returns is noise.
    z = rng.normal(size=5) * 10.0 ** rng.uniform(0, 12, 5)
    z[0] = -(counts[0, 1:] @ z[1:]) / counts[0, 0]
    both = DoubleDouble.of(z).plus(1e-20 * z)
    scores, error = exact_scores(problem_of(form(counts)), both)
    for found, exact in zip(scores, exactly(counts, both), strict=True):
        assert abs(Fraction(float(found)) - exact) <= Fraction(error) + abs(exact) * Fraction(2) ** -51


def test_a_sum_keeps_what_float64_drops() -> None:
    z = DoubleDouble.of(np.array([1e20, 1.0])).plus(np.array([1.0, 1e-20]))
    assert z.minus(DoubleDouble.of(np.array([1e20, 1.0]))).tolist() == [1.0, 1e-20]
    assert z.without_mean().tolist() == [5e19, -5e19]


@pytest.mark.parametrize("mu", [1e-8, 1e-3])
def test_refinement_ends_where_newton_does_on_an_easy_problem(mu: float) -> None:
    rng = np.random.default_rng(1)
    counts = rng.multinomial(500, rng.dirichlet(np.ones(6), 80))
    problem = problem_of(counts, rng.dirichlet(np.ones(6)))
    point = Newton(problem).solve(mu)
    refined = refine(problem, mu, 0.9 * point.u)
    alphas = [problem.w * np.maximum(solution.v, 0.0) for solution in (point, refined)]
    assert alphas[1] == pytest.approx(alphas[0], abs=1e-9)
    assert np.abs(refined.F).max() <= 1e-15


def test_refinement_reproduces_a_target_of_labels_that_only_small_clients_have() -> None:
    counts = np.array([[10**12, 0, 0], [10**12, 10**12, 0], [0, 3, 1], [1, 0, 5], [0, 2, 2]])
    target = np.array([0.2, 0.3, 0.5])
    problem = problem_of(counts, target)
    point = refine(problem, 0.0, np.zeros(3))
    alpha = problem.w * np.maximum(point.v, 0.0)
    assert problem.mix(alpha) == pytest.approx(target, abs=1e-15)
    assert np.abs(point.u).max() > 1e10
