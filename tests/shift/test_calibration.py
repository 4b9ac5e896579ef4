"""On Gaussians, where the Bayes classifier is known: what the prior correction and calibration reach."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import norm

from fedpals.labels import Vector
from fedpals.shift.calibration import Calibration, calibrate
from fedpals.shift.prior import prior_shift
from tests.shift.worlds import Gaussians

WORLD = Gaussians(4, 1.5)
MIX = np.array([0.05, 0.45, 0.2, 0.3])
"""p_α, which the model was trained on."""
TARGET = np.array([0.6, 0.1, 0.3, 0.0])

Labels = npt.NDArray[np.int64]


def drawn(prior: Vector, size: int, seed: int) -> tuple[Vector, Labels]:
    rng = np.random.default_rng(seed)
    y = rng.choice(4, size, p=prior)
    return WORLD.inputs(y, rng), y


def error(logits: Vector, y: Labels) -> float:
    return float(np.mean(logits.argmax(axis=1) != y))


@pytest.fixture(scope="module")
def target() -> tuple[Vector, Labels]:
    return drawn(TARGET, 200_000, 1)


@pytest.fixture(scope="module")
def held_out() -> tuple[Vector, Labels]:
    """What clients hold out: their own labels, nothing like the target's."""
    return drawn(MIX, 6000, 2)


def miscalibrated(x: Vector) -> Vector:
    """Overconfident, and with a prior that nobody told the server: neither MIX nor TARGET."""
    return np.asarray(2.5 * WORLD.logits(x, np.array([0.02, 0.6, 0.3, 0.08])))


def test_two_labels_reach_the_bayes_error_that_a_formula_gives() -> None:
    """N(±r, 1) with T = (t, 1 − t): the Bayes classifier cuts at c = log((1 − t)/t) / 2r."""
    world, r, mix, T = Gaussians(2, 0.8), 0.8, np.array([0.3, 0.7]), np.array([0.85, 0.15])
    rng = np.random.default_rng(3)
    y = rng.choice(2, 400_000, p=T)
    logits = world.logits(world.inputs(y, rng), mix)
    cut = np.log(T[1] / T[0]) / (2 * r)
    bayes = T[0] * norm.cdf(cut - r) + T[1] * norm.sf(cut + r)
    found = error(logits + prior_shift(T, mix, 1e6), y)
    assert found == pytest.approx(bayes, abs=4 * np.sqrt(bayes * (1 - bayes) / y.size))
    assert error(logits, y) > bayes + 0.02


def test_the_prior_correction_makes_the_posterior_of_the_mix_the_bayes_classifier_of_the_target(
    target: tuple[Vector, Labels],
) -> None:
    x, y = target
    bayes = WORLD.logits(x, TARGET)
    corrected = Calibration(1.0, prior_shift(TARGET, MIX, 1e6))(WORLD.logits(x, MIX))
    np.testing.assert_array_equal(corrected.argmax(axis=1), bayes.argmax(axis=1))
    np.testing.assert_allclose(log_softmax(corrected, axis=1)[:, :3], log_softmax(bayes, axis=1)[:, :3], atol=1e-9)
    assert error(WORLD.logits(x, MIX), y) > error(bayes, y) + 0.1


def test_a_miscalibrated_model_reaches_the_targets_bayes_error_from_the_clients_samples(
    target: tuple[Vector, Labels], held_out: tuple[Vector, Labels]
) -> None:
    x, y = target
    shift = prior_shift(TARGET, MIX, held_out[1].size)
    fitted = calibrate(miscalibrated(held_out[0]), held_out[1], TARGET, shift)
    bayes = error(WORLD.logits(x, TARGET), y)
    assert error(miscalibrated(x) + shift, y) > bayes + 0.03, "the prior correction alone must fail here"
    assert error(fitted(miscalibrated(x)), y) < bayes + 0.002
    assert fitted.temperature == pytest.approx(2.5, rel=0.1)
    # What is left is the Bayes posterior itself, so b undoes the model's own prior up to a constant.
    wanted = np.log(TARGET[:3]) - np.log([0.02, 0.6, 0.3])
    np.testing.assert_allclose(np.diff(fitted.shift[:3]), np.diff(wanted), atol=0.25)


def test_labels_that_the_target_lacks_stay_out(held_out: tuple[Vector, Labels]) -> None:
    x, y = held_out
    fitted = calibrate(miscalibrated(x), y, TARGET, prior_shift(TARGET, MIX, y.size))
    assert fitted.shift[3] == -np.inf
    assert np.isfinite(fitted.shift[:3]).all()
    assert not (fitted(miscalibrated(x)).argmax(axis=1) == 3).any()


def test_a_label_that_nobody_held_out_keeps_its_prior_correction(
    target: tuple[Vector, Labels], held_out: tuple[Vector, Labels]
) -> None:
    """Samples of other labels alone would teach never to predict it."""
    x, y = held_out[0][held_out[1] != 0], held_out[1][held_out[1] != 0]
    shift = prior_shift(TARGET, MIX, len(y))
    fitted = calibrate(WORLD.logits(x, MIX), y, TARGET, shift)
    assert fitted.shift[0] == shift[0]
    logits = WORLD.logits(target[0], MIX)
    # The model is the posterior of MIX already: nothing is to be gained, and no more than chance is lost.
    assert error(fitted(logits), target[1]) <= error(logits + shift, target[1]) + 0.005


@pytest.mark.parametrize("label", [3, None])
def test_without_samples_of_the_target_it_is_the_prior_correction(
    label: int | None, held_out: tuple[Vector, Labels]
) -> None:
    x, y = held_out
    kept = y == (-1 if label is None else label)
    shift = prior_shift(TARGET, MIX, y.size)
    fitted = calibrate(miscalibrated(x[kept]), y[kept], TARGET, shift)
    assert fitted.temperature == 1.0
    np.testing.assert_array_equal(fitted.shift, shift)


def test_few_samples_change_little(held_out: tuple[Vector, Labels]) -> None:
    """One sample of each label can be fitted perfectly, with b → ∞; but ‖(log τ, b)‖² ≤ 2n × the loss there was."""
    x, y = held_out
    shift = prior_shift(TARGET, MIX, y.size)
    rows = [int(np.flatnonzero(y == label)[0]) for label in range(3)]
    fitted = calibrate(miscalibrated(x[rows]), y[rows], TARGET, shift)
    moved = np.array([np.log(fitted.temperature), *(fitted.shift[:3] - shift[:3])])
    before = -TARGET[:3] @ np.diag(log_softmax(miscalibrated(x[rows])[:, :3] + shift[:3], axis=1))
    assert 0 < float(moved @ moved) < 6 * before


def test_a_calibrated_model_stays_as_it_is(target: tuple[Vector, Labels]) -> None:
    x, y = drawn(MIX, 20_000, 4)
    shift = prior_shift(TARGET, MIX, y.size)
    fitted = calibrate(WORLD.logits(x, MIX), y, TARGET, shift)
    assert fitted.temperature == pytest.approx(1.0, abs=0.05)
    np.testing.assert_allclose(np.diff(fitted.shift[:3] - shift[:3]), 0.0, atol=0.15)
    inputs, labels = target
    assert error(fitted(WORLD.logits(inputs, MIX)), labels) < error(WORLD.logits(inputs, TARGET), labels) + 0.001


def test_it_minimises_the_stated_objective() -> None:
    """Against the docstring's formula, sample by sample, minimised without gradients."""
    x, y = drawn(MIX, 60, 5)
    logits, shift = miscalibrated(x), prior_shift(TARGET, MIX, 60)
    fitted = calibrate(logits, y, TARGET, shift)
    n = int(np.sum(y < 3))

    def objective(parameters: Vector) -> float:
        log_temperature, b = parameters[0], parameters[1:]
        value = float(parameters @ parameters) / (2 * n)
        for label in range(3):
            for row in logits[y == label]:
                z = row[:3] / np.exp(log_temperature) + shift[:3] + b
                value -= TARGET[label] / np.sum(y == label) * float(log_softmax(z)[label])
        return value

    found = np.array([np.log(fitted.temperature), *(fitted.shift[:3] - shift[:3])])
    best = minimize(
        objective, np.zeros(4), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-10, "maxfev": 4000}
    )
    assert objective(found) <= best.fun + 1e-6
