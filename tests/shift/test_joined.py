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


def test_a_label_that_nobody_has_is_for_the_gaussian_head() -> None:
    features, y = drawn()
    gaussian = gaussian_head([FeatureSums.of(features[y != 1], y[y != 1], 3)], TARGET)
    told = HeldOutFeatures(features[y != 1], y[y != 1])
    assert recommended(OWN, gaussian, told, np.array([9, 0, 9]), TARGET, SHIFT) is gaussian


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
