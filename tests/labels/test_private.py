"""The noise has the stated ε, exactly; the repair is the closest; the spread tells how far α is off."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, minimize
from scipy.stats import chisquare, dlaplace

from fedpals import LabelCounts, solve
from fedpals.errors import InputError
from fedpals.labels.private import discrete_laplace, noisy_counts, repair, secure_counts
from fedpals.rng import generator
from fedpals.weights.uncertainty import weight_uncertainty

Counts = npt.NDArray[np.int64]


def whole(counts: LabelCounts) -> Counts:
    return np.rint(np.asarray(counts.marginals) * counts.sizes[:, None]).astype(np.int64)


def fits(noise: Counts, epsilon: float) -> float:
    """P-value of the hypothesis that P(Z = z) ∝ e^(−ε|z|), by χ² over values and pooled tails."""
    edge = int(dlaplace.isf(20 / noise.size, epsilon))
    values = np.arange(-edge, edge + 1)
    inner = [np.sum(noise == z) for z in values]
    observed = [np.sum(noise < -edge), *inner, np.sum(noise > edge)]
    tail = dlaplace.sf(edge, epsilon)
    expected = np.array([tail, *dlaplace.pmf(values, epsilon), tail])
    return float(chisquare(observed, noise.size * expected / expected.sum()).pvalue)


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0, math.log(3), 4.0])
def test_the_sampler_has_the_stated_distribution(epsilon: float) -> None:
    noise = discrete_laplace(epsilon, 200_000, generator(0, "test", str(epsilon)))
    assert fits(noise, epsilon) > 1e-3
    assert fits(noise, 1.1 * epsilon) < 1e-6


def test_opendp_has_the_stated_distribution() -> None:
    pytest.importorskip("opendp")
    noise = secure_counts(np.full(50_000, 1000), 0.5) - 1000
    assert fits(noise, 0.5) > 1e-9  # unseeded: a false alarm once in a billion runs
    assert fits(noise, 0.6) < 1e-12
    assert (secure_counts(np.full(50, 1000), 0.5) != secure_counts(np.full(50, 1000), 0.5)).any()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=3, max_size=3), st.integers(0, 2), st.sampled_from([0.1, 1.0, 3.0]))
def test_one_sample_more_changes_no_answer_by_more_than_e_to_the_epsilon(
    counts: list[int], label: int, epsilon: float
) -> None:
    """Over every answer of three counts in a box; the bound is reached, so ε is neither more nor less."""
    box = np.arange(-12, 20)

    def log_chance(c: npt.ArrayLike) -> npt.NDArray[np.float64]:
        x, y, z = (dlaplace.logpmf(box - n, epsilon) for n in np.asarray(c))
        return np.asarray(x[:, None, None] + y[:, None] + z)

    more, moved = np.array(counts), np.array(counts)
    more[label] += 1
    moved[label] += 1
    moved[(label + 1) % 3] -= 1
    difference = np.abs(log_chance(more) - log_chance(counts))
    assert difference.max() == pytest.approx(epsilon, abs=1e-9)
    # One label changed for another: two cells, twice the ε.
    assert np.abs(log_chance(moved) - log_chance(counts)).max() == pytest.approx(2 * epsilon, abs=1e-9)


def test_noise_has_an_address_for_every_client() -> None:
    counts = np.full((3, 50), 100)
    noisy = noisy_counts(counts, 1.0, seed=4)
    assert (noisy == noisy_counts(counts, 1.0, seed=4)).all()
    assert (noisy[:2] == noisy_counts(counts[:2], 1.0, seed=4)).all()
    assert (noisy[0] != noisy[1]).any()
    assert (noisy != noisy_counts(counts, 1.0, seed=5)).any()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 1e-12])
def test_an_epsilon_that_is_none_is_refused(epsilon: float) -> None:
    with pytest.raises(InputError, match="epsilon is"):
        discrete_laplace(epsilon, 3, generator(0, "test"))


rows = st.lists(st.integers(-20, 40), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(rows, st.integers(1, 60))
def test_the_repair_is_the_closest_that_a_client_can_have(noisy: list[int], size: int) -> None:
    fixed = whole(repair([noisy], sizes=[size]))[0]
    assert fixed.sum() == size
    assert fixed.min() >= 0
    a = np.array(noisy, dtype=float)
    start = np.full(a.size, size / a.size, dtype=np.float64)

    def miss(c: npt.NDArray[np.float64]) -> float:
        return float(np.square(c - a).sum())

    constraint = LinearConstraint(np.ones((1, a.size)), size, size)
    answer = minimize(miss, start, method="SLSQP", bounds=[(0, 1000)] * a.size, constraints=[constraint])
    assert np.abs(fixed - answer.x).max() <= 1.0 + 1e-3  # rounding to whole numbers moves none by 1


@given(rows)
def test_counts_without_noise_stay_as_they_are(row: list[int]) -> None:
    counts = np.abs([row, [1] * len(row)])
    assert (whole(repair(counts)) == counts).all()


def test_the_repair_knows_sizes_better_than_cutting_off() -> None:
    """A client with two of a hundred labels: what is cut off at 0 adds up to more than what it has."""
    counts = np.zeros((200, 100), dtype=np.int64)
    counts[:, :2] = 150
    noisy = noisy_counts(counts, 0.2, seed=0)
    cut = np.maximum(noisy, 0)
    repaired = repair(noisy)
    assert abs(repaired.sizes.mean() - 300) < 4 * repaired.sizes.std() / math.sqrt(200)
    assert cut.sum(axis=1).mean() > 450
    S = counts / 300

    def error(table: Counts) -> float:
        return float(np.abs(table / table.sum(axis=1, keepdims=True) - S).sum(axis=1).mean())

    assert error(whole(repaired)) < 0.6 * error(cut)
    assert error(whole(repair(noisy, sizes=np.full(200, 300)))) < 0.6 * error(cut)


def test_a_client_with_nothing_left_is_empty_and_names_are_kept() -> None:
    names = LabelCounts.of([[1, 1], [5, 5]], clients=["a", "b"], labels=["x", "y"])
    repaired = repair([[-3, 1], [4, 6]], like=names)
    assert repaired.sizes.tolist() == [0, 10]
    assert (repaired.clients, repaired.labels) == (("a", "b"), ("x", "y"))


def test_what_cannot_be_repaired_is_refused() -> None:
    with pytest.raises(InputError, match="whole numbers"):
        repair([[0.5, 1.0]])
    with pytest.raises(InputError, match="2 whole numbers"):
        repair([[1, 2], [3, 4]], sizes=[3])
    with pytest.raises(InputError, match="draws is 0"):
        weight_uncertainty(LabelCounts.of([[1, 2]]), [0.5, 0.5], 1.0, 0, draws=0, lam=0)


COUNTS = np.array([[400, 50, 10, 0], [20, 300, 100, 40], [0, 30, 250, 220], [90, 80, 70, 60]])
TARGET = [0.3, 0.2, 0.3, 0.2]


def test_the_spread_is_what_the_noise_really_does() -> None:
    """From one noisy report the server tells, within a factor of two, how far noise moves weights on average."""
    exact = solve(COUNTS, TARGET, ess=0.5)
    reports = [repair(noisy_counts(COUNTS, 0.1, seed)) for seed in range(60)]
    alphas = np.array([solve(report, TARGET, ess=0.5).alpha for report in reports])
    moved = 0.5 * np.abs(alphas - exact.alpha).sum(axis=1).mean()
    reached = np.square(np.array(TARGET) - alphas @ (COUNTS / COUNTS.sum(axis=1, keepdims=True))).sum(axis=1).mean()
    told = [weight_uncertainty(report, TARGET, 0.1, seed, draws=40, ess=0.5) for seed, report in enumerate(reports[:6])]
    assert 0.5 < np.mean([s.moved for s in told]) / moved < 2
    assert 0.5 < np.mean([s.squared_distance for s in told]) / reached < 2
    inside = [(s.lower - 0.02 <= exact.alpha) & (exact.alpha <= s.upper + 0.02) for s in told]
    assert np.mean(inside) > 0.7


def test_the_spread_falls_with_epsilon_and_repeats() -> None:
    repaired = LabelCounts.of(COUNTS)
    wide, narrow = (weight_uncertainty(repaired, TARGET, epsilon, 0, draws=30, ess=0.5) for epsilon in (0.05, 1.0))
    assert narrow.moved < 0.2 * wide.moved
    assert (narrow.upper - narrow.lower).sum() < (wide.upper - wide.lower).sum()
    assert narrow.squared_distance <= narrow.worst_squared_distance <= wide.worst_squared_distance
    assert weight_uncertainty(repaired, TARGET, 1.0, 0, draws=30, ess=0.5).moved == narrow.moved
    known = weight_uncertainty(repaired, TARGET, 0.05, 0, draws=30, known_sizes=True, ess=0.5)
    assert known.moved > 0
