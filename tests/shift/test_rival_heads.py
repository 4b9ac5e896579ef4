"""The heads of other authors, each against its definition computed from samples, in other ways."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression, Ridge

from fedpals.errors import InputError
from fedpals.rng import generator
from fedpals.shift import (
    FeatureSums,
    ccvr_head,
    fed3r_head,
    fedcgs_head,
    fedcof_head,
    gaussian_head,
)
from fedpals.shift.ccvr import _softmax_regression
from fedpals.shift.gaussian import shrink
from fedpals.shift.rival_heads import RIDGE

MEANS = np.array([[0.0, 0.0, 0.0], [1.5, 0.0, 0.5], [0.0, 2.0, -0.5]])
COVARIANCE = np.array([[1.0, 0.3, 0.0], [0.3, 0.8, 0.2], [0.0, 0.2, 1.2]])
TARGET = np.array([0.2, 0.2, 0.6])
FACTOR = np.linalg.cholesky(COVARIANCE)


def drawn(shares: list[float], n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = generator(seed, "rivals")
    y = rng.choice(3, n, p=shares)
    return MEANS[y] + rng.standard_normal((n, 3)) @ FACTOR.T, y


CLIENTS = [drawn(shares, 40, seed) for seed, shares in enumerate(([0.9, 0.1, 0], [0, 0.5, 0.5], [0.2, 0.2, 0.6]))]
SUMS = [FeatureSums.of(f, y, 3) for f, y in CLIENTS]
features, labels = np.concatenate([f for f, _ in CLIENTS]), np.concatenate([y for _, y in CLIENTS])


def by_label(f: np.ndarray, y: np.ndarray, number: int = 3) -> list[FeatureSums]:
    return [FeatureSums.of(f[y == label], y[y == label], number) for label in range(number)]


def test_fedcgs_is_lda_with_the_covariance_of_all_features() -> None:
    inverse = np.linalg.inv(np.cov(features.T))
    expected = np.empty((len(features), 3))
    for label in range(3):
        mean = features[labels == label].mean(axis=0)
        expected[:, label] = features @ inverse @ mean - mean @ inverse @ mean / 2 + np.log(TARGET[label])
    np.testing.assert_allclose(fedcgs_head(SUMS, TARGET)(features), expected, atol=1e-9)


def test_fedcgs_differs_from_the_gaussian_head_by_the_covariance_only() -> None:
    """With the means of labels equal to the common one, both covariances are the same up to n/(n − 1) and shrinkage."""
    rng = generator(0, "one mean")
    y = np.repeat([0, 1], 20_000)
    f = rng.standard_normal((40_000, 3)) @ FACTOR.T
    for label in (0, 1):
        f[y == label] -= f[y == label].mean(axis=0) - 1e-3 * np.arange(3) * label
    sums, target = [FeatureSums.of(f, y, 2)], np.array([0.4, 0.6])
    ours, theirs = gaussian_head(sums, target), fedcgs_head(sums, target)
    np.testing.assert_allclose(ours.weight, theirs.weight, rtol=1e-3, atol=1e-6)
    apart = [FeatureSums.of(f + 3 * y[:, None], y, 2)]
    ratio = np.linalg.norm(fedcgs_head(apart, target).weight) / np.linalg.norm(gaussian_head(apart, target).weight)
    assert ratio < 0.5  # a covariance that includes the distance between labels makes it less certain


def test_fed3r_is_ridge_regression_times_the_ratio_of_priors() -> None:
    x = np.column_stack([features, np.ones(len(features))])
    regression = Ridge(alpha=RIDGE, fit_intercept=False, solver="cholesky").fit(x, np.eye(3)[labels])
    estimated = np.maximum(regression.predict(x), 0.5 / len(features)) * TARGET / (np.bincount(labels) / len(labels))
    np.testing.assert_allclose(
        softmax(fed3r_head(SUMS, TARGET)(features), axis=1), estimated / estimated.sum(axis=1, keepdims=True), atol=1e-9
    )


def test_fed3r_predicts_as_its_authors_do_where_the_target_is_the_clients_pool() -> None:
    pool = np.bincount(labels) / len(labels)
    x = np.column_stack([features, np.ones(len(features))])
    scores = x @ np.linalg.solve(x.T @ x + RIDGE * np.eye(4), x.T @ np.eye(3)[labels])  # without their normalisation
    np.testing.assert_array_equal(fed3r_head(SUMS, pool)(features).argmax(axis=1), scores.argmax(axis=1))


def test_fedcof_takes_the_covariance_from_means_alone() -> None:
    pooled, weight, freedom = np.zeros((3, 3)), 0, 0
    for label in range(3):
        groups = [f[y == label] for f, y in CLIENTS if (y == label).any()]
        mean = np.concatenate(groups).mean(axis=0)
        covariance = sum(len(g) * np.outer(g.mean(axis=0) - mean, g.mean(axis=0) - mean) for g in groups)
        if len(groups) > 1:
            n = sum(map(len, groups))
            pooled = pooled + (n - 1) * covariance / (len(groups) - 1)
            weight, freedom = weight + n - 1, freedom + len(groups) - 1
    inverse = np.linalg.inv(shrink(pooled / weight, freedom))
    means = np.array([features[labels == label].mean(axis=0) for label in range(3)])
    expected = features @ inverse @ means.T - np.einsum("ki,ij,kj->k", means, inverse, means) / 2 + np.log(TARGET)
    head = fedcof_head(SUMS, TARGET)
    np.testing.assert_allclose(head(features), expected, atol=1e-9)
    without = [FeatureSums(s.samples, s.features, 1e6 * np.eye(3)) for s in SUMS]
    np.testing.assert_array_equal(fedcof_head(without, TARGET).weight, head.weight)


def test_fedcof_tends_to_the_gaussian_head_as_clients_grow_in_number() -> None:
    clients = [drawn([0.3, 0.3, 0.4], 50, 100 + i) for i in range(2000)]
    sums = [FeatureSums.of(f, y, 3) for f, y in clients]
    f = features[:50]
    ours, theirs = (
        log_softmax(gaussian_head(sums, TARGET)(f), axis=1),
        log_softmax(fedcof_head(sums, TARGET)(f), axis=1),
    )
    assert np.abs(ours - theirs).max() < 0.6
    few = log_softmax(fedcof_head(sums[:20], TARGET)(f), axis=1)
    assert np.abs(ours - theirs).mean() < 0.25 * np.abs(ours - few).mean()


def test_ccvrs_regression_is_scikit_learns() -> None:
    weight, bias = _softmax_regression(features, labels, 3)
    scale = features.std(axis=0)
    other = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(
        (features - features.mean(axis=0)) / scale, labels
    )
    expected = other.decision_function((features - features.mean(axis=0)) / scale)
    found = features @ weight.T + bias
    np.testing.assert_allclose(log_softmax(found, axis=1), log_softmax(expected, axis=1), atol=2e-5)


def test_ccvr_with_one_client_tends_to_lda_as_samples_grow() -> None:
    rng = generator(1, "same covariance")
    residuals = rng.standard_normal((400, 3)) @ FACTOR.T
    residuals -= residuals.mean(axis=0)
    f, y = np.concatenate([mean + residuals for mean in MEANS]), np.repeat(np.arange(3), 400)
    inverse = np.linalg.inv(np.cov(residuals.T))
    lda = features @ inverse @ MEANS.T - np.einsum("ki,ij,kj->k", MEANS, inverse, MEANS) / 2 + np.log(TARGET)
    errors = []
    for samples in (500, 8_000, 128_000):
        head = ccvr_head(by_label(f, y), TARGET, generator(2, "virtual"), samples=samples)
        errors.append(np.abs(log_softmax(head(features), axis=1) - log_softmax(lda, axis=1)).mean())
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.02


def test_ccvr_depends_on_its_generator_and_on_sums_only() -> None:
    one, same = (ccvr_head(by_label(features, labels), TARGET, generator(3, "virtual"), samples=300) for _ in range(2))
    np.testing.assert_array_equal(one.weight, same.weight)
    other = ccvr_head(by_label(features, labels), TARGET, generator(4, "virtual"), samples=300)
    assert (one.weight != other.weight).any()
    order = generator(5, "order").permutation(len(labels))
    shuffled = ccvr_head(by_label(features[order], labels[order]), TARGET, generator(3, "virtual"), samples=300)
    np.testing.assert_allclose(one.weight, shuffled.weight, rtol=1e-3)


def test_more_of_a_label_in_the_target_is_more_of_it_predicted() -> None:
    rare, common = np.array([0.05, 0.15, 0.8]), np.array([0.8, 0.15, 0.05])
    for build in (fedcgs_head, fed3r_head, fedcof_head):
        assert (build(SUMS, common)(features).argmax(axis=1) == 0).sum() > (
            build(SUMS, rare)(features).argmax(axis=1) == 0
        ).sum()
    heads = [
        ccvr_head(by_label(features, labels), target, generator(0, "v"), samples=2000) for target in (common, rare)
    ]
    assert (heads[0](features).argmax(axis=1) == 0).sum() > (heads[1](features).argmax(axis=1) == 0).sum()


def test_labels_that_nobody_has_or_the_target_lacks_are_never_predicted() -> None:
    sums = [FeatureSums.of(f, y, 5) for f, y in CLIENTS]
    target = np.array([0.0, 0.3, 0.3, 0.4, 0.0])
    heads = [build(sums, target) for build in (fedcgs_head, fed3r_head, fedcof_head)]
    for head in (*heads, ccvr_head(by_label(features, labels, 5), target, generator(0, "v"), samples=500)):
        logits = head(features)
        assert (logits[:, [0, 3, 4]] == -np.inf).all()
        assert np.isfinite(logits[:, [1, 2]]).all()


def test_features_that_never_vary_are_no_trouble() -> None:
    f = np.column_stack([features, np.zeros(len(features)), np.ones(len(features))])
    sums = [
        FeatureSums.of(f[labels < 2], labels[labels < 2], 3),
        FeatureSums.of(f[labels == 2], labels[labels == 2], 3),
    ]
    heads = [build(sums, TARGET) for build in (fedcgs_head, fed3r_head, fedcof_head)]
    for head in (*heads, ccvr_head(by_label(f, labels), TARGET, generator(0, "v"), samples=500)):
        assert np.isfinite(head(f)).all()
    np.testing.assert_allclose(heads[0](f), fedcgs_head(SUMS, TARGET)(features), atol=1e-8)
    zero = np.zeros((6, 2))
    y = np.array([0, 0, 1, 1, 1, 0])
    head = ccvr_head(by_label(zero, y, 2), np.array([0.4, 0.6]), generator(0, "v"), samples=10)
    np.testing.assert_allclose(softmax(head(zero), axis=1), [[0.4, 0.6]] * 6, atol=1e-5)


def test_nothing_to_distinguish_is_an_error() -> None:
    nobody = np.array([0.0, 0.0, 0.0, 1.0])
    for build in (fedcgs_head, fed3r_head, fedcof_head):
        with pytest.raises(InputError, match="no sums"):
            build([], TARGET)
        with pytest.raises(InputError, match="no client has a sample of any label"):
            build([FeatureSums.of(features, labels, 4)], nobody)
    with pytest.raises(InputError, match="no client has a sample of any label"):
        ccvr_head(by_label(features, labels, 4), nobody, generator(0, "v"))
    one = FeatureSums(np.array([5, 0]), np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[9.0, 90.0], [90.0, 9.0]]))
    with pytest.raises(InputError, match="no features have such products"):
        ccvr_head([one, one], np.array([1.0, 0.0]), generator(0, "v"))
