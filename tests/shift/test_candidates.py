"""The choice among candidates: sums by label, paired errors and ties, on cases computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedpals.errors import InputError
from fedpals.shift import Tally, target_loss
from fedpals.shift.candidates import LARGEST_LOSS, CandidateLosses, Comparison, pooled_comparison

HALF, QUARTER = np.log(2.0), np.log(4.0)
OUTPUTS = [np.zeros((3, 2)), np.log([[0.5, 0.5], [0.75, 0.25], [0.25, 0.75]])]
"""Two models on three samples: the first always says ½."""
LABELS = [0, 1, 1]


def test_sums_by_label() -> None:
    comparison = Comparison.of(LABELS, OUTPUTS)
    third = np.log(4 / 3)
    assert comparison.samples.tolist() == [1, 2]
    np.testing.assert_allclose(comparison.loss, [[HALF, HALF], [2 * HALF, QUARTER + third]])
    np.testing.assert_allclose(comparison.product[0], np.full((2, 2), HALF**2))
    both = HALF * (QUARTER + third)
    np.testing.assert_allclose(comparison.product[1], [[2 * HALF**2, both], [both, QUARTER**2 + third**2]])


def test_clients_add_up() -> None:
    whole = Comparison.of(LABELS, OUTPUTS)
    parts = [Comparison.of([LABELS[i]], [values[i : i + 1] for values in OUTPUTS]) for i in range(3)]
    for name, values in vars(pooled_comparison(parts)).items():
        np.testing.assert_allclose(values, getattr(whole, name))


def test_estimates_are_those_of_the_tallies() -> None:
    """Value and error of one candidate are `target_loss`'s; that of a difference is the error of the differences."""
    rng = np.random.default_rng(0)
    y, target = rng.integers(0, 4, 200), np.array([0.5, 0.3, 0.2, 0.0])
    outputs = [rng.normal(size=(200, 4)) for _ in range(3)]
    losses = CandidateLosses.of(Comparison.of(y, outputs), target)
    for j, values in enumerate(outputs):
        expected = target_loss(Tally.of(y, values), target)
        assert losses.value[j] == pytest.approx(expected.value)
        assert losses.covariance[j, j] ** 0.5 == pytest.approx(expected.standard_error)
    each = [np.array([Tally.of(y[i : i + 1], v[i : i + 1]).loss.sum() for i in range(200)]) for v in outputs]
    best = int(losses.value.argmin())
    for j in range(3):
        difference = [(each[j] - each[best])[y == label] for label in range(3)]
        variance = sum(t**2 * d.var(ddof=1) / d.size for t, d in zip(target[:3], difference, strict=True))
        assert losses.errors[j] == pytest.approx(variance**0.5, abs=1e-12)


def test_of_candidates_within_the_error_the_largest_ess_is_chosen() -> None:
    independent = np.diag([0.01, 0.01, 0.01]) ** 2
    assert CandidateLosses(np.array([0.50, 0.52, 0.53]), independent).best == 1  # an error is 0.0141, two are 0.0283
    assert CandidateLosses(np.array([0.50, 0.51, 0.53]), np.zeros((3, 3))).best == 0
    paired = np.full((3, 3), 0.01**2)  # the same chance in all of them
    assert CandidateLosses(np.array([0.50, 0.51, 0.52]), paired).best == 0
    assert CandidateLosses(np.full(3, 0.5), paired).best == 2


def test_a_label_with_one_sample_has_the_spread_of_the_others() -> None:
    comparison = Comparison.of([0, 1, 1], [np.log([[0.5, 0.5], [0.75, 0.25], [0.25, 0.75]])])
    losses = CandidateLosses.of(comparison, [0.5, 0.5])
    spread = np.var([QUARTER, np.log(4 / 3)], ddof=1)
    assert losses.covariance[0, 0] == pytest.approx(0.25 * spread / 1 + 0.25 * spread / 2)


def test_an_impossible_output_counts_as_the_largest_loss() -> None:
    outputs = [np.array([[np.nan, 0.0]]), np.array([[-np.inf, 0.0]]), np.array([[-1e9, 0.0]])]
    assert Comparison.of([0], outputs).loss.tolist() == [[LARGEST_LOSS] * 3, [0.0] * 3]


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("samples", [1.0, 2.0], "whole numbers"),
        ("samples", [-1, 2], "whole numbers"),
        ("samples", [1, 2, 3], "shapes"),
        ("loss", [[0.7, -0.1], [1.4, 1.0]], "loss: label 0"),
        ("loss", [[0.7, 0.7], [1.4, np.nan]], "loss: label 1"),
        ("loss", [[0.7, 30.0], [1.4, 1.0]], "loss: label 0"),
        ("product", np.zeros((2, 2, 2)), "product: label 0"),
        ("product", np.full((2, 2, 2), np.inf), "product: label 0"),
        ("product", np.ones((2, 2)), "shapes"),
    ],
)
def test_sums_that_no_samples_have(field: str, value: object, complaint: str) -> None:
    fields = {**vars(Comparison.of(LABELS, OUTPUTS)), field: np.asarray(value)}
    with pytest.raises(InputError, match=complaint):
        Comparison(**fields)


def test_nobody_has_a_label_of_the_target() -> None:
    comparison = Comparison.of([0, 0], [np.zeros((2, 2))])
    with pytest.raises(InputError, match="target's labels"):
        CandidateLosses.of(comparison, [0.0, 1.0])
