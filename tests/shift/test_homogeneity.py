"""The test keeps its level for any counts, gains power with them, and names who is to blame."""

from __future__ import annotations

import dataclasses
import json
from importlib import import_module

import numpy as np
import pytest
from scipy.stats import binom, chi2_contingency, false_discovery_control, hypergeom, kstest
from scipy.stats.contingency import association

from fedpals.errors import InputError
from fedpals.shift import Tally, homogeneity
from fedpals.shift.contingency import compare_rows, cramers_v, fisher, holm
from tests.shift.worlds import Counts, behaviour, tallies

rng_of = np.random.default_rng


def uniform_enough(p: list[float], level: float) -> bool:
    """Whether the share of p ≤ level is what it should be."""
    low, high = (binom.ppf(q, len(p), level) for q in (0.0005, 0.9995))
    return bool(low <= np.sum(np.array(p) <= level) <= high)


def test_statistics_and_large_counts_against_scipy() -> None:
    table = rng_of(0).multinomial(400, [0.6, 0.3, 0.1], size=5)
    test = compare_rows(table, rng_of(0), 999)
    assert test is not None
    expected = chi2_contingency(table)
    assert test.statistic == pytest.approx(expected.statistic)
    assert test.p == pytest.approx(expected.pvalue)
    for i, row in enumerate(table):
        against = chi2_contingency([row, table.sum(axis=0) - row])
        assert test.row_statistics[i] == pytest.approx(against.statistic)
        assert test.row_p[i] == pytest.approx(against.pvalue)


def test_small_counts_against_the_exact_distribution() -> None:
    """With two clients and two predictions the null distribution can be written down."""
    for table in ([[5, 1], [2, 6]], [[3, 0], [1, 9]], [[4, 4], [4, 4]]):
        a = np.array(table)
        n, right, first = a.sum(), a[:, 0].sum(), a[0].sum()
        k = np.arange(max(0, right + first - n), min(right, first) + 1)
        chance = hypergeom.pmf(k, n, right, first)
        deviation = np.abs(k - right * first / n)
        observed = abs(a[0, 0] - right * first / n)
        above, reached = chance[deviation > observed + 1e-9].sum(), chance[deviation > observed - 1e-9].sum()
        p = np.array([_p(a, seed) for seed in range(200)])
        # The coin spreads p evenly between P(X² > x) and P(X² ≥ x).
        assert p.min() >= above - 0.08
        assert p.max() <= reached + 0.08
        assert p.mean() == pytest.approx((above + reached) / 2, abs=0.06)


def _p(table: Counts, seed: int) -> float:
    test = compare_rows(table, rng_of(seed), 999)
    assert test is not None
    return test.p


@pytest.mark.parametrize(("mean", "clients"), [(2, 4), (6, 12), (300, 4)])
def test_p_values_of_one_label_are_uniform_under_label_shift(mean: int, clients: int) -> None:
    rng = rng_of(mean)
    tables, rows = [], []
    for _ in range(1500):
        n = 1 + rng.poisson(mean, clients)
        test = compare_rows(rng.multinomial(n, [0.7, 0.2, 0.07, 0.03]), rng, 999)
        if test is not None:
            tables.append(test.p)
            rows.append(float(test.row_p[0]))
    for p in (tables, rows):
        assert kstest(p, "uniform").pvalue > 1e-3
        assert uniform_enough(p, 0.05)
        assert uniform_enough(p, 0.01)


@pytest.mark.parametrize(("samples", "clients", "labels"), [(2, 4, 3), (400, 4, 4)])
def test_false_alarms_keep_the_level(samples: int, clients: int, labels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a handful of samples, where tables are drawn, and with many, where χ² is used."""
    monkeypatch.setattr(import_module("fedpals.shift.homogeneity"), "detectable_effect", lambda *_: 1.0)
    rng = rng_of(samples + clients)
    shape = 1.0 if samples < 10 else 50.0
    alarms = named = 0
    repetitions = 1000
    for seed in range(repetitions):
        n = rng.poisson(samples * rng.gamma(shape, 1 / shape, (clients, labels)))
        found = homogeneity(tallies(n, behaviour(labels, 0.8, rng), rng), seed)
        alarms += found.p <= 0.05
        named += bool(found.broken_labels or found.broken_clients or found.breaks)
    allowed = binom.ppf(0.999, repetitions, 0.05)
    assert named <= alarms <= allowed
    # Three looks share the level, and are not the same look: the test must not be idle either.
    assert alarms >= 0.01 * repetitions


def test_power_grows_with_samples() -> None:
    rng = rng_of(8)
    P, Q = behaviour(4, 0.9, rng), behaviour(4, 0.75, rng)
    powers = []
    for n in (3, 12, 48):
        found = [homogeneity(tallies(np.full((6, 4), n), P, rng, {2: Q}), s) for s in range(30)]
        powers.append(np.mean([h.p <= 0.05 for h in found]))
    assert powers[0] < powers[1] < powers[2]
    assert powers[2] > 0.95


def test_a_single_odd_client_is_named_and_left_out() -> None:
    rng = rng_of(9)
    P, Q = behaviour(5, 0.9, rng), behaviour(5, 0.5, rng)
    names = ["Oslo", "Rome", "Lima", "Cairo", "Quito", "Delhi"]
    labels = ["a", "b", "c", "d", "e"]
    found = homogeneity(tallies(np.full((6, 5), 60), P, rng, {3: Q}), 0, clients=names, labels=labels)
    assert found.light == "red"
    assert found.broken_clients[0] == "Cairo"
    assert found.leave_out == ("Cairo",)
    assert found.breaks[0].client == "Cairo"
    assert {b.label for b in found.breaks if b.client == "Cairo"} == set(labels)
    assert found.breaks[0].accuracy < 0.7 < found.breaks[0].elsewhere
    gap = next(test.gap for test in found.clients if test.client == "Cairo")
    assert gap == pytest.approx(0.5 - 0.9, abs=0.1)
    assert "leave out client Cairo" in found.advice


def test_one_of_three_clients_can_be_left_out_but_not_one_of_two() -> None:
    rng = rng_of(10)
    P, Q = behaviour(4, 0.9, rng), behaviour(4, 0.4, rng)
    assert homogeneity(tallies(np.full((3, 4), 100), P, rng, {1: Q}), 0).leave_out == ("1",)
    pair = homogeneity(tallies(np.full((2, 4), 100), P, rng, {1: Q}), 0)
    assert (pair.light, pair.leave_out) == ("red", ())
    assert "raise the ESS" in pair.advice


def test_clients_that_all_differ_ask_for_a_larger_ess() -> None:
    rng = rng_of(11)
    odd = {i: behaviour(5, 0.7, rng) for i in range(8)}
    found = homogeneity(tallies(np.full((8, 5), 60), odd[0], rng, odd), 0)
    assert (found.light, found.leave_out) == ("red", ())
    assert "raise the ESS" in found.advice


def test_one_label_that_breaks_it_is_named() -> None:
    rng = rng_of(12)
    P = behaviour(6, 0.9, rng)
    Q = P.copy()
    Q[2] = np.roll(P[2], 1)
    found = homogeneity(tallies(np.full((5, 6), 80), P, rng, {0: Q, 1: Q}), 0)
    assert found.broken_labels == ("2",)
    assert {b.label for b in found.breaks} == {"2"}
    effects = {t.label: t.effect for t in found.labels}
    assert effects.pop("2") > 0.3 > max(effects.values())


def test_a_tiny_difference_that_many_samples_show_is_amber() -> None:
    rng = rng_of(13)
    P = np.array([[0.90, 0.10], [0.10, 0.90]])
    Q = np.array([[0.88, 0.12], [0.12, 0.88]])
    found = homogeneity(tallies(np.full((2, 2), 50_000), P, rng, {1: Q}), 0)
    assert found.p < 1e-10
    assert found.effect < 0.1
    assert found.light == "amber"
    assert "you can use weights" in found.advice


def test_too_few_samples_are_not_a_green_light() -> None:
    one = [Tally.of([0, 1], [[1.0, 0.0], [0.0, 1.0]]), Tally.of([0, 1], [[0.0, 1.0], [0.0, 1.0]])]
    found = homogeneity(one, 0)
    assert found.light == "amber"
    assert found.detectable > 0.3
    assert "Too few" in found.advice


def test_without_common_labels_nothing_can_be_checked() -> None:
    found = homogeneity([Tally.of([0] * 9, np.eye(2)[[0, 1, 0] * 3]), Tally.of([1] * 9, np.eye(2)[[1] * 9])], 0)
    assert (found.light, found.p, found.untested) == ("amber", 1.0, ("0", "1"))
    assert "cannot be tested" in found.advice


def test_plenty_of_alike_samples_are_a_green_light() -> None:
    rng = rng_of(14)
    found = homogeneity(tallies(np.full((5, 4), 200), behaviour(4, 0.8, rng), rng), 0)
    assert found.light == "green"
    assert (*found.broken_labels, *found.broken_clients, *found.breaks) == ()
    assert "no evidence against label shift" in found.advice


def test_a_hundred_clients_and_many_labels() -> None:
    """As in iWildCam: many labels with few samples; one client among a hundred is found all the same."""
    rng = rng_of(15)
    n = rng.poisson(rng.gamma(0.5, 2.0, (100, 182)))
    P, Q = behaviour(182, 0.8, rng), behaviour(182, 0.4, rng)
    assert homogeneity(tallies(n, P, rng), 0).light == "green"
    found = homogeneity(tallies(n, P, rng, {7: Q}), 0)
    assert (found.light, found.broken_clients, found.leave_out) == ("red", ("7",), ("7",))


def test_the_same_seed_gives_the_same_answer_as_plain_numbers() -> None:
    rng = rng_of(16)
    made = tallies(rng.poisson(4, (5, 4)), behaviour(4, 0.8, rng), rng, {0: behaviour(4, 0.2, rng)})
    a, b = homogeneity(made, 3), homogeneity(made, 3)
    assert a == b
    assert json.loads(json.dumps(dataclasses.asdict(a)))["p"] == a.p


def test_cramers_v() -> None:
    many = rng_of(17).multinomial(100_000, [[0.6, 0.3, 0.1], [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]])
    test = compare_rows(many, rng_of(0), 999)
    assert test is not None
    assert cramers_v([test]) == pytest.approx(association(many, method="cramer"), rel=1e-3)
    # Bergsma's correction by hand: X² = n (9·9 − 1·1)²/10⁴ = 12.8, φ² = 0.64, minus 1/19; r̃ = c̃ = 2 − 1/19.
    test = compare_rows(np.array([[9, 1], [1, 9]]), None, 999)
    assert test is not None
    assert test.statistic == pytest.approx(12.8)
    assert cramers_v([test]) == pytest.approx(np.sqrt((0.64 - 1 / 19) / (1 - 1 / 19)))
    perfect = compare_rows(np.array([[50, 0], [0, 50]]), None, 999)
    assert perfect is not None
    assert cramers_v([perfect]) == pytest.approx(1.0)


def test_effects_of_alike_clients_are_unbiased() -> None:
    rng = rng_of(18)
    tests = [compare_rows(rng.multinomial([5, 9, 30], [0.6, 0.3, 0.1]), None, 0) for _ in range(3000)]
    excess = np.array([test.excess for test in tests if test is not None])
    assert abs(excess.mean()) < 3.5 * excess.std() / np.sqrt(excess.size)


def test_holm_by_hand() -> None:
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 = 0.02, 0.03, 0.06, 0.04, made monotone.
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == [0.03, 0.06, 0.06, 0.02]
    assert holm([0.9, 0.8]).tolist() == [1.0, 1.0]


def test_holm_lies_between_nothing_and_bonferroni() -> None:
    for seed in range(50):
        p = rng_of(seed).random(8) ** 3
        adjusted = holm(p)
        assert (adjusted <= np.minimum(8 * p, 1.0) + 1e-12).all()
        assert (adjusted >= false_discovery_control(p) - 1e-12).all()
        assert adjusted.min() == pytest.approx(min(1.0, 8 * p.min()))


def test_fisher_by_hand() -> None:
    # Two tests: with x = p₁p₂ the combination is x(1 − log x).
    assert fisher([0.1, 0.3]) == pytest.approx(0.03 * (1 - np.log(0.03)))


def test_what_cannot_be_compared_is_refused() -> None:
    two, three = Tally.of([0, 1], np.eye(2)), Tally.of([0, 1], np.eye(3)[:2])
    with pytest.raises(InputError, match="at least two"):
        homogeneity([two], 0)
    with pytest.raises(InputError, match="2 and 3 labels"):
        homogeneity([two, three], 0)
    with pytest.raises(InputError, match="1 names for 2 clients"):
        homogeneity([two, two], 0, clients=["a"])
