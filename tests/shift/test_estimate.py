"""BBSE and EM recover T on Gaussians whose densities are known, and their intervals cover it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, minimize
from scipy.stats import binom

from fedpals.errors import InputError
from fedpals.labels import Vector
from fedpals.shift import Tally, TargetEstimate, bbse, em
from tests.shift.worlds import Gaussians

WORLD = Gaussians(4, 1.6)
PRIOR = np.array([0.1, 0.4, 0.2, 0.3])
TARGET = np.array([0.5, 0.1, 0.3, 0.1])


def by_bbse(target: Vector, m: int, rng: np.random.Generator) -> TargetEstimate:
    y = rng.choice(4, m, p=PRIOR)
    held_out = Tally.of(y, WORLD.logits(WORLD.inputs(y, rng), PRIOR))
    x = WORLD.inputs(rng.choice(4, m, p=target), rng)
    return bbse(held_out, np.bincount(WORLD.logits(x, PRIOR).argmax(axis=1), minlength=4))


def by_em(target: Vector, m: int, rng: np.random.Generator) -> TargetEstimate:
    return em(WORLD.posterior(WORLD.inputs(rng.choice(4, m, p=target), rng), PRIOR), PRIOR)


METHODS = pytest.mark.parametrize("estimate", [by_bbse, by_em])
Method = Callable[[Vector, int, np.random.Generator], TargetEstimate]


@METHODS
def test_t_is_recovered_ever_better(estimate: Method) -> None:
    rng = np.random.default_rng(1)
    errors = [
        np.mean([np.abs(estimate(TARGET, m, rng).target - TARGET).sum() for _ in range(5)]) for m in (500, 50_000)
    ]
    assert errors[1] < 0.03
    assert errors[1] < 0.25 * errors[0]


@METHODS
@pytest.mark.parametrize("target", [TARGET, np.array([0.7, 0.0, 0.3, 0.0])])
def test_intervals_cover_at_the_stated_rate(estimate: Method, target: Vector) -> None:
    rng = np.random.default_rng(2)
    found = [estimate(target, 600, rng) for _ in range(300)]
    covered = np.sum([(e.lower <= target) & (target <= e.upper) for e in found], axis=0)
    low, high = (binom.ppf(q, 300, 0.95) for q in (0.0005, 0.9995))
    inside = target > 0
    assert (covered >= low).all()
    assert (covered[inside] <= high).all()
    for e in found:
        assert e.target.sum() == pytest.approx(1.0)
        assert (e.lower <= e.target).all()
        assert (e.target <= e.upper).all()
        assert e.lower.min() >= 0
        assert e.upper.max() <= 1


def test_em_is_sharper_where_probabilities_are_true() -> None:
    rng = np.random.default_rng(3)
    widths = [np.mean(e.upper - e.lower) for e in (by_bbse(TARGET, 4000, rng), by_em(TARGET, 4000, rng))]
    assert widths[1] < 0.8 * widths[0]


def test_wider_intervals_for_higher_levels() -> None:
    tally = Tally(np.zeros(2), np.zeros(2), np.array([[80, 20], [10, 90]]))
    narrow, wide = (bbse(tally, [310, 690], level=level) for level in (0.5, 0.99))
    assert (wide.lower < narrow.lower).all()
    assert (narrow.upper < wide.upper).all()
    with pytest.raises(InputError, match="level is 95"):
        bbse(tally, [310, 690], level=95)


def test_bbse_inverts_the_confusion_exactly_and_stays_on_the_simplex() -> None:
    tally = Tally(np.zeros(2), np.zeros(2), np.array([[80, 20], [10, 90]]))
    assert bbse(tally, [45, 55]).target == pytest.approx([0.5, 0.5])
    outside = bbse(tally, [95, 5])
    assert outside.target.tolist() == [1.0, 0.0]
    assert outside.upper[1] >= 0


def test_bbse_by_the_delta_method_by_hand() -> None:
    # T₀ = (μ₀ − b)/(a − b) with a = P(0|0), b = P(0|1): its variance from the three independent shares.
    n, m, a, b, mu = 100_000, 200_000, 0.8, 0.1, 0.45
    tally = Tally(np.zeros(2), np.zeros(2), np.array([[80_000, 20_000], [10_000, 90_000]]))
    found = bbse(tally, [90_000, 110_000])
    T = (mu - b) / (a - b)
    variance = (mu * (1 - mu) / m + T**2 * a * (1 - a) / n + (1 - T) ** 2 * b * (1 - b) / n) / (a - b) ** 2
    assert found.upper[0] - found.lower[0] == pytest.approx(2 * 1.959964 * np.sqrt(variance), rel=1e-3)


def test_em_against_a_general_optimiser() -> None:
    rng = np.random.default_rng(4)
    P = WORLD.posterior(WORLD.inputs(rng.choice(4, 300, p=TARGET), rng), PRIOR)

    def loss(T: Vector) -> float:
        return -float(np.log(P @ (T / PRIOR)).sum())

    constraint = LinearConstraint(np.ones((1, 4)), 1, 1)
    answer = minimize(
        loss, PRIOR, method="SLSQP", bounds=[(0, 1)] * 4, constraints=[constraint], options={"ftol": 1e-12}
    )
    found = em(P, PRIOR)
    assert loss(found.target) <= answer.fun + 1e-4
    assert found.target == pytest.approx(answer.x, abs=2e-3)


def test_em_with_certain_predictions_counts_them() -> None:
    found = em(np.eye(3)[[0] * 50 + [1] * 30 + [2] * 20], [0.2, 0.3, 0.5])
    assert found.target == pytest.approx([0.5, 0.3, 0.2])
    # The interval is that of a multinomial share.
    assert found.upper[0] - found.target[0] == pytest.approx(1.959964 * np.sqrt(0.25 / 100), rel=1e-3)


def test_a_model_that_cannot_tell_labels_apart_is_refused_by_their_names() -> None:
    labels = ["coat", "shoe", "shirt"]
    confusion = np.array([[500, 0, 500], [0, 1000, 0], [495, 5, 500]])
    with pytest.raises(InputError, match="distinguish the labels 'coat', 'shirt',"):
        bbse(Tally(np.zeros(3), np.zeros(3), confusion), [400, 300, 300], labels=labels)
    P = np.random.default_rng(5).dirichlet(np.ones(2), 200)
    same = np.column_stack([P[:, 0] / 2, P[:, 1], P[:, 0] / 2])
    with pytest.raises(InputError, match="distinguish the labels 'coat', 'shirt',"):
        em(same, [0.3, 0.4, 0.3], labels=labels)


def test_a_confusion_that_only_chance_makes_regular_is_refused() -> None:
    rng = np.random.default_rng(6)
    refused = 0
    for _ in range(100):
        confusion = rng.multinomial(30, [[0.5, 0.3, 0.2]] * 2 + [[0.1, 0.1, 0.8]])
        try:
            bbse(Tally(np.zeros(3), np.zeros(3), confusion), [100, 100, 100])
        except InputError:
            refused += 1
    assert refused >= 90


def test_labels_nobody_held_out_stay_open() -> None:
    confusion = np.array([[80, 20, 0], [10, 90, 0], [0, 0, 0]])
    found = bbse(Tally(np.zeros(3), np.zeros(3), confusion), [45, 55, 0])
    assert found.unseen == (2,)
    assert found.target == pytest.approx([0.5, 0.5, 0.0])
    assert (found.lower[2], found.upper[2]) == (0.0, 1.0)
    likely = em([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0]], [0.5, 0.5, 0.0])
    assert likely.unseen == (2,)


@pytest.mark.parametrize(
    ("P", "prior", "named"),
    [
        ([0.5, 0.5], [0.5, 0.5], "m×K"),
        ([[0.5, 0.5], [0.7, 0.7]], [0.5, 0.5], "row 1 sums to 1.4"),
        ([[1.5, -0.5]], [0.5, 0.5], "row 0"),
        ([[0.5, 0.5]], [0.5, 0.6], "sums to 1.1"),
        ([[0.0, 1.0]], [1.0, 0.0], "row 0 allows only"),
    ],
)
def test_probabilities_that_are_none_are_refused(P: list[list[float]], prior: list[float], named: str) -> None:
    with pytest.raises(InputError, match=named):
        em(P, prior)
