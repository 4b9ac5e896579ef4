"""Calibrated for the target: a temperature and a bias per label, fitted to clients' held-out samples.

The prior correction log T − log p_α is right for a network whose softmax is p_α(y|x). Networks are
overconfident, and an average of clients' models is no posterior of any mix. With z the logits and
s the correction, the calibrated logits z/τ + s + b minimise the target risk that clients can estimate,

    Σ_y T(y)/n_y Σ_{i: y_i = y} −log softmax(z_i/τ + s + b)_y  +  (‖b‖² + log²τ) / 2n,

where n = Σ_y n_y, and all sums are over the labels of the target that somebody held out, on which T is
normalised. The last term draws τ to 1 and b to 0, as a standard normal prior would, so that few samples
change little. The problem is convex in (1/τ, b) but for that term.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import log_softmax

from fedpals.labels import Vector


@dataclass(frozen=True, eq=False)
class Calibration:
    """z ↦ z/τ + shift."""

    temperature: float
    """τ."""
    shift: Vector
    """(K,) s + b; −∞ for labels that the target lacks."""

    def __call__(self, logits: Vector) -> Vector:
        """Apply it to logits, (n, K)."""
        with np.errstate(invalid="ignore"):  # a model that is about to diverge has logits of ∞
            return np.asarray(logits / self.temperature + self.shift)


def calibrate(logits: Vector, y: npt.NDArray[np.int64], target: Vector, shift: Vector) -> Calibration:
    """Fit τ and b.

    Parameters
    ----------
    logits
        (n, K) of held-out samples of all clients.
    y
        (n,) their labels.
    target
        (K,) T.
    shift
        (K,) the prior correction s, which b is added to.

    Where no sample has a label of the target, there is nothing to fit and the prior correction is returned.
    """
    wanted = np.flatnonzero(target > 0)
    rows = np.isin(y, wanted)
    if not rows.any():
        return Calibration(1.0, shift)
    z, s = logits[np.ix_(rows, wanted)], shift[wanted]
    column = np.searchsorted(wanted, y[rows])
    n = np.bincount(column, minlength=wanted.size)
    weight = (target[wanted] / np.maximum(n, 1))[column]
    weight /= weight.sum()
    truth = np.eye(wanted.size)[column]

    def objective(parameters: Vector) -> tuple[float, Vector]:
        log_inverse, bias = parameters[0], parameters[1:]
        scaled = np.exp(log_inverse) * z
        log_p = log_softmax(scaled + s + bias, axis=1)
        residual = weight[:, None] * (np.exp(log_p) - truth)
        value = -weight @ log_p[np.arange(len(z)), column] + 0.5 * float(parameters @ parameters) / len(z)
        gradient = np.concatenate([[float((residual * scaled).sum())], residual.sum(axis=0)])
        return float(value), gradient + parameters / len(z)

    found = minimize(objective, np.zeros(wanted.size + 1), jac=True, method="L-BFGS-B")
    fitted = shift.copy()
    fitted[wanted] += found.x[1:]
    return Calibration(float(np.exp(-found.x[0])), fitted)
