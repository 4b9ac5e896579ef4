from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2

from fedpals.errors import InputError
from fedpals.shift import Estimate, Tally, best, pooled, target_accuracy, target_loss
from tests.shift.worlds import Gaussians

WORLD = Gaussians(4, 1.5)
TARGET = np.array([0.6, 0.1, 0.3, 0.0])
MIXES = np.array([[0.1, 0.6, 0.1, 0.2], [0.3, 0.3, 0.1, 0.3], [0.0, 0.1, 0.8, 0.1]])


def held_out(rng: np.random.Generator, per_client: int) -> Tally:
    """Clients with different labels, and the classifier that is best for none of them."""
    parts = []
    for mix in MIXES:
        y = rng.choice(4, per_client, p=mix)
        parts.append(Tally.of(y, WORLD.logits(WORLD.inputs(y, rng), np.full(4, 0.25))))
    return pooled(parts)


@pytest.fixture(scope="module")
def truth() -> Tally:
    rng = np.random.default_rng(2)
    y = rng.choice(4, 400_000, p=TARGET)
    return Tally.of(y, WORLD.logits(WORLD.inputs(y, rng), np.full(4, 0.25)))


@pytest.fixture(scope="module")
def repeated() -> list[Tally]:
    rng = np.random.default_rng(3)
    return [held_out(rng, 100) for _ in range(1000)]


@pytest.mark.parametrize("measure", [target_loss, target_accuracy])
def test_the_estimate_is_unbiased_and_knows_its_error(
    measure: Callable[[Tally, npt.ArrayLike], Estimate], truth: Tally, repeated: list[Tally]
) -> None:
    exact = measure(truth, TARGET)
    found = [measure(tally, TARGET) for tally in repeated]
    values = np.array([estimate.value for estimate in found])
    z = (values.mean() - exact.value) / math.hypot(values.std() / math.sqrt(len(found)), exact.standard_error)
    assert abs(z) < 3.5
    # The mean squared standard error is the variance, up to χ² with 999 degrees and a little for heavy tails.
    told = np.mean([np.square(estimate.standard_error) for estimate in found])
    low, high = (chi2.ppf(q, 999) / 999 for q in (0.001, 0.999))
    assert 0.95 * low < values.var(ddof=1) / told < 1.05 * high


def test_the_error_falls_with_the_root_of_the_samples() -> None:
    rng = np.random.default_rng(4)
    few, many = (target_loss(held_out(rng, n), TARGET).standard_error for n in (400, 40_000))
    assert few / many == pytest.approx(10, rel=0.2)


def test_by_hand() -> None:
    # Label 0: losses 1, 3; label 1: losses 2, 2, 5. One of each is recognised.
    tally = Tally(np.array([4.0, 9.0]), np.array([10.0, 33.0]), np.array([[1, 1], [2, 1]]))
    loss, accuracy = target_loss(tally, [0.25, 0.75]), target_accuracy(tally, [0.25, 0.75])
    assert loss.value == pytest.approx(0.25 * 2 + 0.75 * 3)
    assert loss.standard_error == pytest.approx(math.sqrt(0.25**2 * 2 / 2 + 0.75**2 * 3 / 3))
    assert loss.bounds == (loss.value, loss.value)
    assert accuracy.value == pytest.approx(0.25 / 2 + 0.75 / 3)
    assert accuracy.standard_error == pytest.approx(math.sqrt(0.25**2 * 0.5 / 2 + 0.75**2 * (1 / 3) / 3))
    assert (loss.unseen, loss.unseen_share) == ((), 0.0)


def test_labels_that_nobody_held_out_are_named_and_bounded() -> None:
    tally = Tally(np.array([4.0, 0, 0]), np.array([10.0, 0, 0]), np.array([[1, 1, 0], [0, 0, 0], [0, 0, 0]]))
    accuracy, loss = target_accuracy(tally, [0.75, 0.25, 0.0]), target_loss(tally, [0.75, 0.25, 0.0])
    assert accuracy.unseen == loss.unseen == (1,)
    assert accuracy.unseen_share == 0.25
    assert accuracy.value == 0.5
    assert accuracy.bounds == (0.375, 0.625)
    assert loss.bounds == (1.5, math.inf)
    with pytest.raises(InputError, match=r"target's labels \(1\)"):
        target_loss(tally, [0.0, 1.0, 0.0])


def test_one_sample_of_a_label_borrows_the_spread_of_the_others() -> None:
    tally = Tally(np.array([4.0, 1.0]), np.array([10.0, 1.0]), np.array([[1, 1], [0, 1]]))
    assert target_loss(tally, [0.5, 0.5]).standard_error == pytest.approx(math.sqrt(0.25 * 2 / 2 + 0.25 * 2))
    alone = Tally(np.array([1.0, 1.0]), np.array([1.0, 1.0]), np.eye(2, dtype=np.int64))
    assert math.isnan(target_loss(alone, [0.5, 0.5]).standard_error)


def test_a_ruled_out_label_matters_only_where_the_target_has_it() -> None:
    tally = Tally.of([0, 0, 1, 1], [[0.0, -np.inf]] * 4)
    assert target_loss(tally, [1.0, 0.0]).value == 0.0
    assert target_loss(tally, [0.5, 0.5]).value == target_loss(tally, [0.5, 0.5]).standard_error == math.inf


def test_the_best_candidate_for_the_target_is_not_the_best_for_the_clients() -> None:
    rng = np.random.default_rng(5)
    y = rng.choice(4, 4000, p=[0.1, 0.4, 0.1, 0.4])
    x = WORLD.inputs(y, rng)
    priors = [np.array([0.1, 0.4, 0.1, 0.4]), np.maximum(TARGET, 1e-6), np.full(4, 0.25)]
    candidates = [Tally.of(y, WORLD.logits(x, prior)) for prior in priors]
    assert int(np.argmax([c.correct.sum() for c in candidates])) == 0
    assert best(candidates, TARGET) == best(candidates, TARGET, by="loss") == 1


def test_ties_are_decided_by_the_other_measure_and_then_by_order() -> None:
    def tally(loss: float) -> Tally:
        return Tally(np.array([loss, 0.0]), np.array([loss**2, 0.0]), np.array([[1, 0], [0, 1]]))

    assert best([tally(2.0), tally(1.0), tally(1.0)], [0.5, 0.5]) == 1
    with pytest.raises(InputError, match=r"'f1'.*accuracy or loss"):
        best([tally(1.0)], [0.5, 0.5], by="f1")
    with pytest.raises(InputError, match="no candidates"):
        best([], [0.5, 0.5])


def test_an_empty_tally_and_a_wrong_target_are_refused() -> None:
    empty = Tally(np.zeros(2), np.zeros(2), np.zeros((2, 2), dtype=np.int64))
    with pytest.raises(InputError, match="hold out samples"):
        target_loss(empty, [0.5, 0.5])
    full = Tally(np.zeros(2), np.zeros(2), np.eye(2, dtype=np.int64))
    with pytest.raises(InputError, match=r"sums to 0\.9"):
        target_loss(full, [0.5, 0.4])
