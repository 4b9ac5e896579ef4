"""The network's own last layer and the Gaussian head: which is used when, and what is told about held-out samples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from fedpals.errors import InputError
from fedpals.rng import generator
from fedpals.shift import FeatureSums, Head, HeldOutFeatures, gaussian_head, recommended
from fedpals.shift.calibration import calibrate

TARGET, COUNTS = np.array([0.5, 0.5, 0.0]), np.array([100, 100, 100])
SHIFT = np.array([0.2, -0.2, -np.inf])
OWN = Head.of(np.eye(3), np.array([0.1, 0.0, 0.3]))


def drawn(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = generator(0, "joining")
    y = rng.integers(0, 3, n)
    return 2 * np.eye(3)[y] + rng.normal(size=(n, 3)), y


def test_probabilities_are_the_geometric_mean_of_both_calibrated() -> None:
    features, y = drawn()
    told = HeldOutFeatures(features[:150], y[:150])
    gaussian = gaussian_head([FeatureSums.of(features[150:], y[150:], 3)], TARGET)
    layer = recommended(OWN, gaussian, told, COUNTS, TARGET, SHIFT)
    p, q = (
        softmax(calibrate(head(told.features), told.labels, TARGET, shift)(head(features)), axis=1)
        for head, shift in ((OWN, SHIFT), (gaussian, np.array([0.0, 0.0, -np.inf])))
    )
    expected = np.sqrt(p * q)
    np.testing.assert_allclose(
        softmax(layer(features), axis=1), expected / expected.sum(axis=1, keepdims=True), atol=1e-12
    )


def without_label_1() -> tuple[np.ndarray, np.ndarray, Head, HeldOutFeatures]:
    """Return samples of four labels; the target has 0 and 1, but nobody has 1: 2 and 3 stand for it."""
    rng = generator(1, "joining")
    y = rng.integers(0, 4, 800)
    features = 2 * np.eye(4)[y] + rng.normal(size=(800, 4))
    fitted, told = y[:400] != 1, y[400:600] != 1
    gaussian = gaussian_head([FeatureSums.of(features[:400][fitted], y[:400][fitted], 4)], FOUR)
    return features[600:], y[600:], gaussian, HeldOutFeatures(features[400:600][told], y[400:600][told])


FOUR = np.array([0.6, 0.4, 0.0, 0.0])
FOUR_SHIFT = np.array([0.2, 5.0, -np.inf, -np.inf])


def test_samples_of_labels_that_the_target_lacks_calibrate_a_label_that_nobody_has() -> None:
    features, _, gaussian, told = without_label_1()
    own = Head.of(np.eye(4) - 0.5, np.array([0.1, -3.0, 0.0, 0.3]))
    layer = recommended(own, gaussian, told, np.array([9, 0, 9, 9]), FOUR, FOUR_SHIFT)
    labels = np.where(told.labels == 0, 0, 1)
    p = softmax(calibrate(own(told.features), labels, FOUR, FOUR_SHIFT)(own(features)), axis=1)
    expected = np.sqrt(p * softmax(gaussian(features), axis=1))
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(softmax(layer(features), axis=1), expected, atol=1e-12)
    assert set(layer(features).argmax(axis=1)) == {0, 1}


def test_a_network_that_puts_a_label_that_nobody_has_far_too_low_still_helps_to_recognise_it() -> None:
    features, y, gaussian, told = without_label_1()
    own, counts = Head.of(2 * np.eye(4), np.array([0.0, -30.0, 0.0, 0.0])), np.array([9, 0, 9, 9])
    layer = recommended(own, gaussian, told, counts, FOUR, FOUR_SHIFT)
    rows = y < 2
    right, of_head, of_own = ((z.argmax(axis=1) == y)[rows].mean() for z in (
        layer(features), gaussian(features), own(features) + FOUR_SHIFT
    ))  # fmt: skip
    assert right > max(of_head, of_own)


def test_a_label_that_nobody_has_and_none_stands_for_leaves_the_gaussian_head() -> None:
    features, y = drawn()
    everything = np.full(3, 1 / 3)
    gaussian = gaussian_head([FeatureSums.of(features[y != 1], y[y != 1], 3)], everything)
    told = HeldOutFeatures(features[y != 1], y[y != 1])
    assert recommended(OWN, gaussian, told, np.array([9, 0, 9]), everything, np.zeros(3)) is gaussian


def test_a_label_that_only_the_gaussian_head_lacks_is_for_the_network() -> None:
    features, y = drawn()
    gaussian = gaussian_head([FeatureSums.of(features[y != 1], y[y != 1], 3)], TARGET)
    layer = recommended(OWN, gaussian, HeldOutFeatures(features, y), COUNTS, TARGET, SHIFT)
    expected = calibrate(OWN(features), y, TARGET, SHIFT)
    np.testing.assert_allclose(layer(features), expected(OWN(features)))


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.zeros((2, 3)), np.zeros(3, dtype=int), "do not fit"),
        (np.zeros(3), np.zeros(3, dtype=int), "do not fit"),
        (np.zeros((2, 3)), np.zeros(2), "whole numbers ≥ 0"),
        (np.zeros((2, 3)), np.array([0, -1]), "whole numbers ≥ 0"),
        (np.full((2, 3), np.inf), np.array([0, 1]), "NaN or infinite"),
    ],
)
def test_what_no_held_out_samples_can_have_is_an_error(features: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        HeldOutFeatures(features, labels)
