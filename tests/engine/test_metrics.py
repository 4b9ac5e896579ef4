from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    log_loss,
    recall_score,
    roc_auc_score,
)

from fedpals.engine.metrics import held_out_metrics, metrics
from fedpals.shift.prior import prior_shift


def test_metrics_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y, logits = rng.integers(5, size=300), rng.normal(size=(300, 5))
    predicted, result = logits.argmax(axis=1), metrics(y, logits)
    assert result.accuracy == pytest.approx(accuracy_score(y, predicted))
    assert result.macro_f1 == pytest.approx(f1_score(y, predicted, average="macro"))
    assert result.per_label == pytest.approx(recall_score(y, predicted, average=None))
    assert result.balanced_accuracy == pytest.approx(balanced_accuracy_score(y, predicted))
    assert result.log_loss == pytest.approx(log_loss(y, softmax(logits, axis=1)))
    assert result.auc is None


def test_the_area_under_the_curve_agrees_with_scikit_learn_ties_included() -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(2, size=200)
    logits = (rng.normal(size=(200, 2)) + np.eye(2)[y]).round(1)
    assert metrics(y, logits).auc == pytest.approx(roc_auc_score(y, logits[:, 1] - logits[:, 0]))
    assert metrics(np.zeros(5, dtype=np.int64), logits[:5]).auc is None


def test_labels_that_do_not_occur_have_no_accuracy_and_no_part_in_the_mean() -> None:
    result = metrics(np.array([0, 0, 1]), np.eye(4)[[0, 2, 1]])
    assert result.per_label == (0.5, 1.0, None, None)
    assert result.macro_f1 == pytest.approx((2 * 1 / 3 + 1) / 2)


def test_a_label_that_is_ruled_out_has_no_finite_loss() -> None:
    assert metrics(np.array([0]), np.array([[-np.inf, 0.0]])).log_loss is None


def test_estimates_in_the_target_and_their_errors_cover_the_truth() -> None:
    """Draw many sets of held-out samples: estimates are right on average, and their errors say how far they are off."""
    rng = np.random.default_rng(2)
    target, mix = np.array([0.8, 0.2]), np.array([0.4, 0.6])
    draws = []
    for _ in range(300):
        y = rng.choice(2, size=150, p=mix)
        draws.append(held_out_metrics(y, 1.5 * rng.normal(size=(150, 2)) + np.eye(2)[y], target))
    y = rng.choice(2, size=200_000, p=target)
    truth = metrics(y, 1.5 * rng.normal(size=(200_000, 2)) + np.eye(2)[y])
    for name, exact in (
        ("log_loss", truth.log_loss),
        ("balanced_accuracy", truth.balanced_accuracy),
        ("auc", truth.auc),
    ):
        values = [getattr(draw, name).value for draw in draws]
        errors = [getattr(draw, name).standard_error for draw in draws]
        assert np.mean(values) == pytest.approx(exact, abs=0.01)
        assert np.mean(errors) == pytest.approx(np.std(values), rel=0.2)
    accuracies = [draw.target_accuracy for draw in draws]
    assert np.mean(accuracies) == pytest.approx(truth.accuracy, abs=0.01)


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
