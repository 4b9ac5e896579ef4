"""The Gaussian head: sums, shrinkage, and the target's Bayes classifier."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import multivariate_normal
from sklearn.covariance import oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedpals.errors import InputError
from fedpals.rng import generator
from fedpals.shift import FeatureSums, gaussian_head
from fedpals.shift.calibration import Calibration
from fedpals.shift.gaussian import shrink

MEANS = np.array([[0.0, 0.0, 0.0], [1.5, 0.0, 0.5], [0.0, 2.0, -0.5]])
COVARIANCE = np.array([[1.0, 0.3, 0.0], [0.3, 0.8, 0.2], [0.0, 0.2, 1.2]])


def drawn(shares: list[float], n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = generator(seed, "gaussian")
    y = rng.choice(3, n, p=shares)
    return MEANS[y] + rng.multivariate_normal(np.zeros(3), COVARIANCE, n), y


def test_clients_with_different_labels_give_the_targets_bayes_classifier() -> None:
    clients = [drawn(shares, 20_000, seed) for seed, shares in enumerate(([0.9, 0.1, 0], [0, 0.5, 0.5], [0.2, 0, 0.8]))]
    target = np.array([0.1, 0.6, 0.3])
    head = gaussian_head([FeatureSums.of(f, y, 3) for f, y in clients], target)
    features, y = drawn(target.tolist(), 50_000, 9)
    density = np.column_stack([multivariate_normal(mean, COVARIANCE).logpdf(features) for mean in MEANS])
    bayes = (density + np.log(target)).argmax(axis=1)
    found = head(features).argmax(axis=1)
    assert (found == bayes).mean() > 0.99
    assert (found == y).mean() == pytest.approx((bayes == y).mean(), abs=0.002)
    differences = head(features) - (density + np.log(target))
    assert (differences - differences[:, :1]).std() < 0.06  # log p_T up to a constant per sample


def test_agrees_with_linear_discriminant_analysis() -> None:
    f, y = drawn([0.3, 0.3, 0.4], 3_000, 0)
    target = np.array([0.2, 0.2, 0.6])
    head = gaussian_head([FeatureSums.of(f, y, 3)], target)
    other = LinearDiscriminantAnalysis(solver="lsqr", priors=target).fit(f, y)
    logits = head(f)
    assert (logits.argmax(axis=1) == other.predict(f)).mean() > 0.99  # which weighs covariances by the priors


def testshrinkage_is_scikit_learns() -> None:
    rng = generator(0, "shrinkage")
    x = rng.normal(size=(40, 12)) * np.linspace(0.1, 3, 12)
    expected, _ = oas(x, assume_centered=True)
    np.testing.assert_allclose(shrink(x.T @ x / 40, 40), expected, rtol=1e-10)


def test_sums_add_up_and_do_not_depend_on_who_has_which_sample() -> None:
    f, y = drawn([0.3, 0.3, 0.4], 500, 1)
    order = np.argsort(y)
    parts = [FeatureSums.of(f[i], y[i], 3) for i in np.split(order, [100, 320])]
    whole = FeatureSums.of(f, y, 3)
    added = parts[0] + parts[1] + parts[2]
    np.testing.assert_array_equal(added.samples, whole.samples)
    np.testing.assert_allclose(added.features, whole.features)
    np.testing.assert_allclose(added.products, whole.products)


def test_labels_that_the_target_lacks_are_never_predicted() -> None:
    f, y = drawn([0.3, 0.3, 0.4], 400, 2)
    head = gaussian_head([FeatureSums.of(f, y, 3)], np.array([0.0, 0.5, 0.5]))
    assert head.bias[0] == -np.inf
    assert set(head(f).argmax(axis=1)) == {1, 2}
    assert head.stands_for.tolist() == [0, 1, 2]


def test_a_label_that_nobody_has_is_recognised_by_exclusion() -> None:
    means = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [1.0, 7.0]])  # the last is new, and looks like the third
    rng = generator(4, "exclusion")

    def sampled(y: np.ndarray) -> np.ndarray:
        return np.asarray(means[y] + rng.normal(size=(len(y), 2)))

    y = rng.integers(0, 3, 900)
    head = gaussian_head([FeatureSums.of(sampled(y), y, 4)], np.array([0.3, 0.3, 0.0, 0.4]))
    assert head.stands_for.tolist() == [0, 1, 3, 3]
    new = rng.choice(4, 2000, p=[0.3, 0.3, 0.0, 0.4])
    logits = head(sampled(new))
    assert (logits.argmax(axis=1) == new).mean() > 0.98
    assert (logits[:, 2] == -np.inf).all()


def test_a_label_that_nobody_has_is_as_far_from_its_stand_ins_as_labels_are_from_each_other() -> None:
    f, y = drawn([0.3, 0.3, 0.4], 900, 5)
    target = np.array([0.6, 0.0, 0.0, 0.4])
    head = gaussian_head([FeatureSums.of(f, y, 4)], target)
    means = np.array([f[y == label].mean(axis=0) for label in range(3)])
    within = shrink((f - means[y]).T @ (f - means[y]) / 900, 900)
    between = np.cov(means.T)
    known = multivariate_normal(means[0], within).logpdf(f) + np.log(0.6)
    new = [multivariate_normal(means[v], within + between).logpdf(f) + np.log(0.2) for v in (1, 2)]
    logits = head(f)
    np.testing.assert_allclose(logits[:, 3] - logits[:, 0], np.max(new, axis=0) - known, atol=1e-9)


def test_joined_heads_have_the_geometric_mean_of_their_probabilities() -> None:
    f, y = drawn([0.3, 0.3, 0.4], 300, 6)
    one, other = (gaussian_head([FeatureSums.of(f[i::2], y[i::2], 3)], np.array([0.2, 0.8, 0.0])) for i in (0, 1))
    calibration = Calibration(2.0, np.array([0.1, -0.3, -np.inf]))
    expected = softmax(calibration(one(f)), axis=1) * softmax(other(f), axis=1)
    found = softmax(2 * one.calibrated(calibration).joined(other)(f), axis=1)
    np.testing.assert_allclose(found, expected / expected.sum(axis=1, keepdims=True), atol=1e-12)


def test_where_nothing_can_stand_for_a_label_that_nobody_has_it_is_never_predicted() -> None:
    f, y = drawn([0.5, 0.5, 0.0], 400, 2)
    head = gaussian_head([FeatureSums.of(f, y, 3)], np.array([0.3, 0.3, 0.4]))
    assert set(head(f).argmax(axis=1)) == {0, 1}


def test_features_that_never_vary_are_no_trouble() -> None:
    dead = np.zeros((6, 2))
    head = gaussian_head([FeatureSums.of(dead, np.array([0, 0, 1, 1, 1, 0]), 2)], np.array([0.4, 0.6]))
    np.testing.assert_allclose(head(dead), np.log([[0.4, 0.6]] * 6))
    half = np.column_stack([np.array([0.0, 0.1, 1.0, 1.1, 0.9, -0.1]), np.zeros(6)])
    head = gaussian_head([FeatureSums.of(half, np.array([0, 0, 1, 1, 1, 0]), 2)], np.array([0.5, 0.5]))
    assert head(half).argmax(axis=1).tolist() == [0, 0, 1, 1, 1, 0]


def test_what_cannot_be_added_up_or_used_is_an_error() -> None:
    f, y = drawn([0.5, 0.5, 0.0], 10, 3)
    with pytest.raises(InputError, match="same labels and network"):
        FeatureSums.of(f, y, 3) + FeatureSums.of(f[:, :2], y, 3)
    with pytest.raises(InputError, match="no sums"):
        gaussian_head([], np.array([0.5, 0.5, 0.0]))
    with pytest.raises(InputError, match="no client has a sample of any label"):
        gaussian_head([FeatureSums.of(f, y, 3)], np.array([0.0, 0.0, 1.0]))


@pytest.mark.parametrize(
    ("samples", "features", "products", "message"),
    [
        ([1.0, 2.0], np.ones((2, 2)), 9 * np.eye(2), "samples must be whole numbers"),
        ([-1, 2], np.ones((2, 2)), 9 * np.eye(2), "samples must be whole numbers"),
        ([1, 2], np.ones((3, 2)), 9 * np.eye(2), "do not fit 2 labels"),
        ([1, 2], np.ones((2, 2)), 9 * np.eye(3), "do not fit 2 labels"),
        ([1, 2], np.full((2, 2), np.nan), 9 * np.eye(2), "NaN or infinite"),
        ([0, 2], np.ones((2, 2)), 9 * np.eye(2), "a label without samples"),
        ([1, 2], np.ones((2, 2)), 1.4 * np.eye(2), "smaller than their sums allow"),
    ],
)
def test_sums_that_no_samples_can_have_are_an_error(
    samples: list[float], features: np.ndarray, products: np.ndarray, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        FeatureSums(np.array(samples), features, products)


def test_products_that_no_features_can_have_are_an_error() -> None:
    products = np.array([[9.0, 90.0], [90.0, 9.0]])
    sums = FeatureSums(np.array([500, 500]), np.ones((2, 2)), products)
    with pytest.raises(InputError, match="no features have such products"):
        gaussian_head([sums], np.array([0.5, 0.5]))
