"""Calibration for the target: a temperature and a bias per label, fitted to clients' held-out samples.

The prior correction log T − log p_α is right for a network whose softmax is p_α(y|x). Networks are
overconfident, and an average of clients' models is not the posterior of any mix. With z the logits and
s the correction, the calibrated logits z/τ + s + b minimise the target risk that clients can estimate,

    Σ_y T(y)/n_y Σ_{i: y_i = y} −log softmax(z_i/τ + s + b)_y  +  (‖b‖² + log²τ) / 2n,

where n = Σ_y n_y, and all sums, that of the softmax too, are over the labels of the target that some client held out,
over which T is normalised. The last term pulls τ to 1 and b to 0, like a standard normal prior, so that a few samples
change little. Without that term, the problem is convex in (1/τ, b). A label that nobody held out keeps b = 0: samples
of other labels alone would only teach never to predict it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from fedpals.labels import Vector
from fedpals.shift.softmax import log_softmax


@dataclass(frozen=True, eq=False)
class Calibration:
    """A map of logits, z ↦ z/τ + shift."""

    temperature: float
    """τ."""
    shift: Vector
    """(K,) s + b; −∞ for labels that are not in the target."""

    def __call__(self, logits: Vector) -> Vector:
        """Return the calibrated logits of ``logits``, (n, K)."""
        with np.errstate(invalid="ignore"):  # a model that is about to diverge has infinite logits
            return np.asarray(logits / self.temperature + self.shift)


def calibrate(logits: Vector, y: npt.NDArray[np.int64], target: Vector, shift: Vector) -> Calibration:
    """Fit τ and b.

    Parameters
    ----------
    logits
        (n, K) logits of the held-out samples of all clients.
    y
        (n,) their labels.
    target
        (K,) T.
    shift
        (K,) the prior correction s, to which b is added.

    If no sample has a label of the target, there is nothing to fit and the prior correction is returned.
    """
    held = np.flatnonzero((target > 0) & (np.bincount(y, minlength=target.size) > 0))
    rows = np.isin(y, held)
    if not rows.any():
        return Calibration(1.0, shift)
    z, s = logits[np.ix_(rows, held)], shift[held]
    column = np.searchsorted(held, y[rows])
    weight = (target[held] / np.bincount(column))[column]
    weight /= weight.sum()
    one_hot = np.eye(held.size)[column]

    def objective(parameters: Vector) -> tuple[float, Vector]:
        log_inverse, bias = parameters[0], parameters[1:]
        scaled = np.exp(log_inverse) * z
        log_p = log_softmax(scaled + s + bias)
        residual = weight[:, None] * (np.exp(log_p) - one_hot)
        value = -weight @ log_p[np.arange(len(z)), column] + 0.5 * float(parameters @ parameters) / len(z)
        gradient = np.concatenate([[float((residual * scaled).sum())], residual.sum(axis=0)])
        return float(value), gradient + parameters / len(z)

    solution = scipy.optimize.minimize(objective, np.zeros(held.size + 1), jac=True, method="L-BFGS-B")
    fitted_shift = shift.copy()
    fitted_shift[held] += solution.x[1:]
    return Calibration(float(np.exp(-solution.x[0])), fitted_shift)
