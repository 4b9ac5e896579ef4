from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, recall_score

from fedpals.engine.metrics import metrics
from fedpals.shift.prior import prior_shift


def test_metrics_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y, predicted = rng.integers(5, size=300), rng.integers(5, size=300)
    found = metrics(y, predicted, 5)
    assert found.accuracy == pytest.approx(accuracy_score(y, predicted))
    assert found.macro_f1 == pytest.approx(f1_score(y, predicted, average="macro"))
    assert found.per_label == pytest.approx(recall_score(y, predicted, average=None))


def test_labels_that_do_not_occur_have_no_accuracy_and_no_part_in_the_mean() -> None:
    found = metrics(np.array([0, 0, 1]), np.array([0, 2, 1]), 4)
    assert found.per_label == (0.5, 1.0, None, None)
    assert found.macro_f1 == pytest.approx((2 * 1 / 3 + 1) / 2)


def test_the_correction_is_bayes_rule_on_gaussians() -> None:
    """Posteriors under the mix p, shifted by log T − log p, are the posteriors under T."""
    rng = np.random.default_rng(1)
    means = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    x = rng.normal(size=(50, 2))
    likelihood = np.exp(-0.5 * ((x[:, None] - means) ** 2).sum(axis=2))
    mix, target = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.3, 0.6])
    shifted = np.exp(np.log(likelihood * mix) + prior_shift(target, mix, 1000))
    expected = likelihood * target
    assert shifted / shifted.sum(axis=1, keepdims=True) == pytest.approx(expected / expected.sum(axis=1, keepdims=True))


def test_absent_labels_give_no_nan() -> None:
    shift = prior_shift(np.array([0.0, 0.5, 0.5, 0.0]), np.array([0.5, 0.5, 0.0, 0.0]), 100)
    assert shift[0] == shift[3] == -np.inf
    assert np.isfinite(shift[[1, 2]]).all()
    assert (np.zeros(4) + shift).argmax() == 2
