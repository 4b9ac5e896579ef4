"""The paper's propositions and limits, and its worked numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpals
from tests.weights.problems import Drawn, problems

PRINTED = """
7 2 16 114 87 65 10 664 1658 236
100 2 6 172 404 43 191 1189 1576 0
200 4 18 64 207 953 118 654 71 187
1734 4 1 115 537 648 406 21 151 115
57 27 6 211 1101 975 122 58 5 116
2798 1 9 13 157 657 91 170 35 7
762 3 0 845 147 956 2 780 296 51
252 33 14 136 264 87 174 1187 6 38
13 0 9 50 95 837 10 32 2531 21
251 60 0 31 261 213 2 774 892 17
"""
"""CIFAR-10 with β = 0.5: a label per row, nine clients and then the target."""
TABLE = np.array([line.split() for line in PRINTED.strip().splitlines()], dtype=np.int64)
COUNTS, TARGET = TABLE[:, :9].T, TABLE[:, 9] / TABLE[:, 9].sum()

small = problems(most_clients=12, most_labels=6, largest=1e6)


def test_the_worked_example_to_four_digits() -> None:
    weights = fedpals.solve(COUNTS, TARGET, lam=0)
    assert weights.alpha.round(4).tolist() == [0, 0, 0.6847, 0.0889, 0.1663, 0.0375, 0.0226, 0, 0]
    assert weights.projection_squared_distance == pytest.approx(0.0628, abs=5e-5)
    assert weights.squared_distance == pytest.approx(weights.projection_squared_distance, abs=1e-14)
    assert not weights.covered


@settings(max_examples=100, deadline=None)
@given(small)
def test_infinite_lambda_is_fedavg_exactly(drawn: Drawn) -> None:
    weights = fedpals.solve(drawn.counts, drawn.target, lam=math.inf)
    sizes = drawn.counts.sum(axis=1)
    assert (weights.alpha == sizes / sizes.sum()).all()
    assert weights.ess == 1.0


@settings(max_examples=100, deadline=None)
@given(small)
def test_growing_lambda_tends_to_fedavg(drawn: Drawn) -> None:
    """Proposition 2: α^λ → n/N."""
    N = drawn.counts.sum()
    weights = fedpals.solve(drawn.counts, drawn.target, lam=1e9 * N)
    assert np.abs(weights.alpha - weights.fedavg).sum() <= 4e-9


@settings(max_examples=150, deadline=None)
@given(small)
def test_a_target_equal_to_the_pooled_marginal_gives_fedavg_for_every_lambda(drawn: Drawn) -> None:
    pooled = drawn.counts.sum(axis=0) / drawn.counts.sum()
    weights = fedpals.solve(drawn.counts, pooled, lam=drawn.lam)
    assert np.abs(weights.alpha - weights.fedavg).sum() <= weights.certificate.error + 1e-12
    assert fedpals.solve(drawn.counts, pooled, lam=0).covered


@settings(max_examples=150, deadline=None)
@given(small, st.floats(1.01, 1e3))
def test_ess_rises_and_distance_does_not_fall_with_lambda(drawn: Drawn, factor: float) -> None:
    low = fedpals.solve(drawn.counts, drawn.target, lam=drawn.lam)
    high = fedpals.solve(drawn.counts, drawn.target, lam=drawn.lam * factor)
    slack = 1e-9 + 10 * (low.certificate.error + high.certificate.error)
    assert high.ess >= low.ess * (1 - slack)
    assert high.squared_distance >= low.squared_distance - slack


@settings(max_examples=200, deadline=None)
@given(small)
def test_lambda_to_zero_is_the_projection_with_the_largest_ess(drawn: Drawn) -> None:
    """Cases 2 and 3: as close to T as any weights, and of these with the largest ESS."""
    limit = fedpals.solve(drawn.counts, drawn.target, lam=0)
    assert limit.squared_distance == pytest.approx(limit.projection_squared_distance, abs=1e-12)
    other = limit.projection.alpha
    kept = limit.fedavg > 0
    other_ess = 1 / np.sum(other[kept] ** 2 / limit.fedavg[kept])
    assert limit.ess >= other_ess * (1 - 1e-6)
    near = fedpals.solve(drawn.counts, drawn.target, lam=1e-9 * drawn.counts.sum())
    assert near.squared_distance >= limit.squared_distance - 1e-12


@settings(max_examples=100, deadline=None)
@given(small)
def test_covered_targets_are_reproduced_and_uncovered_ones_separated(drawn: Drawn) -> None:
    projection = fedpals.coverage(drawn.counts, drawn.target)
    sizes = drawn.counts.sum(axis=1)
    S = drawn.counts[sizes > 0] / sizes[sizes > 0, None]
    if projection.covered:
        assert np.abs(projection.alpha[sizes > 0] @ S - drawn.target).max() <= 1e-12
        assert projection.squared_distance == 0
    else:
        assert projection.margin > 0
        assert projection.margin == pytest.approx(projection.squared_distance, rel=1e-3)
        r = drawn.target - projection.point
        assert (S @ r <= r @ drawn.target - 0.999 * projection.margin + 1e-16).all()


def test_pooled_target_has_no_trade_off() -> None:
    pooled = COUNTS.sum(axis=0) / COUNTS.sum()
    weights = fedpals.solve(COUNTS, pooled, ess=0.5)
    assert weights.clamped
    assert weights.ess == pytest.approx(1)
    assert all(w.ess > 0.999999 for w in fedpals.ess_grid(COUNTS, pooled, 3))


def test_the_paper_s_synthetic_projection_distances() -> None:
    """T_δ leaves the hull of [.5 .5 0] and [.5 0 .5] along (−1, ½, ½)/2·δ."""
    counts = [[20, 20, 0], [9, 0, 9]]
    for delta in (0.0, 1e-9, 1e-6, 0.25, 1.0):
        target = (1 - delta) * np.array([0.5, 0.25, 0.25]) + delta * np.array([0, 0.5, 0.5])
        assert fedpals.coverage(counts, target).squared_distance == pytest.approx(0.375 * delta**2, rel=1e-6)
