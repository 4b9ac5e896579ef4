"""Small quadratic programs by DAQP, a dual active-set method in C that loads in a millisecond.

Its answers are exact up to rounding, but nobody relies on that: they are checked here or certified by the caller.
"""

from __future__ import annotations

from typing import Any

import daqp
import numpy as np

from fedpals.errors import CertificateError
from fedpals.labels import Vector
from fedpals.weights.problem import Problem

_TOLERANCE = 1e-14
"""By how much DAQP may violate a constraint, or the sign of a multiplier."""
_UNBOUNDED = 1e30
"""What DAQP takes for ∞."""
_EQUALITY = 5
"""DAQP's mark of a constraint that holds with equality."""
_SOLVED = 1
"""DAQP's status of an answer."""
_SLOPE_TOLERANCE = 1e-12
"""Slope of ‖Ax − b‖², per length of a column, that counts as 0."""


class QuadraticProgram:
    """The paper's equation with one unknown per client, x = α/√w, and SSᵀ computed once for every λ.

    With D = diag(√w) it is

        min ½ xᵀ(D SSᵀ D + μI)x − (D S T)·x   subject to   √w·x = 1,  0 ≤ x_i ≤ cap/√w_i,

    whose matrix has no entry above 1 + μ, whatever the clients' sizes. A client without samples has no influence.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._root = root = np.sqrt(problem.w)
        scaled = problem.marginals(slice(None))
        scaled *= root[:, None]
        self._H = scaled.dot(scaled.T)
        self._f = scaled.dot(-problem.T)
        self._sense = np.zeros(root.size + 1, dtype=np.int32)
        self._sense[-1] = _EQUALITY

    def solve(self, mu: float) -> Vector:
        """Return the weights for μ > 0, not yet proven; those for μ = ∞ if DAQP gave up."""
        root, M, cap = self._root, self._root.size, self._problem.cap
        H = self._H.copy()
        H.ravel()[:: M + 1] += mu
        lower, upper = np.zeros(M + 1), np.full(M + 1, _UNBOUNDED)
        lower[-1] = upper[-1] = 1.0
        if cap is not None:
            np.divide(cap, np.maximum(root, cap / _UNBOUNDED), out=upper[:-1])
        x, _, status, found = daqp.solve(H, self._f, root[None], upper, lower, self._sense, **_settings(M))
        if status != _SOLVED:
            return self._problem.fedavg
        # The sign of a multiplier tells which bound holds; there, x is that bound but for rounding.
        multipliers = np.asarray(found["lam"])[:M]
        alpha: Vector = np.maximum(root * x, 0.0)
        np.copyto(alpha, 0.0, where=multipliers < 0)
        if cap is not None:
            np.minimum(alpha, cap, out=alpha)
            np.copyto(alpha, cap, where=multipliers > 0)
        return alpha


def nonnegative_least_squares(A: Vector, b: Vector) -> Vector:
    """Return the x ≥ 0, (n,), that minimises ‖Ax − b‖, for A of shape (m, n) and ‖b‖ = 1.

    The dual is the projection of b onto a cone, min ½‖y − b‖² subject to Aᵀy ≤ 0, whose multipliers are x. If DAQP's
    answer is no minimum, Lawson and Hanson's steps continue from it.
    """
    x = _multipliers(A, b)
    # A problem with few clients takes microseconds: if x is clearly a minimum, skip the check column by column.
    slope = (b - A @ x) @ A
    if slope.max() <= _SLOPE_TOLERANCE and slope @ x >= -_SLOPE_TOLERANCE:
        return x
    lengths = np.linalg.norm(A, axis=0)
    max_steps = _max_steps(A.shape[1])
    for _ in range(max_steps):
        slope = (b - A @ x) @ A / lengths
        free = x > 0
        if np.abs(slope[free]).max(initial=0.0) <= _SLOPE_TOLERANCE:
            if slope.max() <= _SLOPE_TOLERANCE:
                return x
            free[np.argmax(slope)] = True
        best = np.zeros_like(x)
        best[free] = np.linalg.lstsq(A[:, free], b)[0]
        decreasing = np.flatnonzero((best <= 0) & (best < x))
        ratios = x[decreasing] / (x[decreasing] - best[decreasing])
        step = float(ratios.min(initial=1.0))
        x = x + step * (best - x)
        x[decreasing[ratios <= step]] = 0.0
    raise CertificateError(f"least squares with non-negative weights took more than {max_steps} steps")


def _multipliers(A: Vector, b: Vector) -> Vector:
    """Return the multipliers of Aᵀy ≤ 0; zeros if DAQP gave up."""
    m, n = A.shape
    free, inequality = np.full(n, -_UNBOUNDED), np.zeros(n, dtype=np.int32)
    _, _, status, found = daqp.solve(
        np.eye(m), -b, np.ascontiguousarray(A.T), np.zeros(n), free, inequality, **_settings(n)
    )
    return np.asarray(np.maximum(found["lam"], 0.0)) if status == _SOLVED else np.zeros(n)


def _settings(n: int) -> dict[str, Any]:
    return {"primal_tol": _TOLERANCE, "dual_tol": _TOLERANCE, "iter_limit": _max_steps(n)}


def _max_steps(n: int) -> int:
    return 100 * (n + 10)
