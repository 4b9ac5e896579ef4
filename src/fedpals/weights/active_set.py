"""λ > 0 with no more clients than labels: an active-set method with M unknowns.

Its steps are those of `dual`, which has K unknowns.

With D = diag(√w), Q = SSᵀ and the active clients F, the optimum α = w + D·η satisfies

    (D Q D + μI)_F η = D_F (S_F (T − S_Fᵀw_F)) + κ √w_F,       Σ_F α = 1,

one Cholesky factorisation of an F×F matrix for a step; κ follows from the sum. Q is computed once and serves every λ.
η = 0 is FedAvg, so a huge λ loses no digits. For a μ near 0 the matrix is ill-conditioned and `dual` takes over.
Clients at a cap are no part of F; what they contribute to Sᵀα and Σα is fixed.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector
from fedpals.weights.dual import Newton, Point
from fedpals.weights.problem import Problem
from fedpals.weights.quadratic import QuadraticProgram

_MIN_MU = 1e-6
_MAX_STEPS = 30
"""Changes of the active set after which steps without a line search are given up, if they have not cycled before."""
_PROGRAM_CLIENTS = 500
"""Number of clients up to which, where steps cycle at a cap, a quadratic program is faster than the dual."""


class ActiveSet:
    """Active-set iteration for one problem; each solve starts from the active clients of the previous one."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._newton = Newton(problem)
        self._root = np.sqrt(problem.w)
        self._active = np.ones(problem.w.size, dtype=np.bool_)
        self._at_cap = np.zeros(problem.w.size, dtype=np.bool_)
        self._factor: tuple[Vector, npt.NDArray[np.intp], Vector] | None = None

    @cached_property
    def _Q(self) -> Vector:  # noqa: N802 -- a matrix
        return self.problem.kernel()

    @cached_property
    def _scaled_Q(self) -> Vector:  # noqa: N802 -- a matrix
        scaled = self._Q * self._root
        scaled *= self._root[:, None]
        return scaled

    @cached_property
    def _program(self) -> QuadraticProgram:
        return QuadraticProgram(self.problem)

    @cached_property
    def _scores_of_T(self) -> Vector:  # noqa: N802 -- the paper's name
        return self.problem.scores(self.problem.T)

    def solve(self, mu: float, start: Vector | None = None) -> Point:
        """Return the dual optimum for μ; ``start`` is for `dual`, where that has to take over."""
        found = self._find(mu) if mu >= _MIN_MU else None
        if found is None:
            self._factor = None
            return self._newton.solve(mu, start)
        v, alpha, kappa = found
        p = self.problem
        marginal = p.mix(alpha)
        y = (p.T - marginal) / mu
        return Point(y + kappa / mu, v, marginal, np.zeros_like(y))

    def _find(self, mu: float) -> tuple[Vector, Vector, float] | None:
        """Return v, α and κ at the optimum; None if the active set does not settle."""
        found, cap = self._settle(mu, self._active, self._at_cap), self.problem.cap
        if found is None and cap is not None and self._root.size <= _PROGRAM_CLIENTS:
            alpha = self._program.solve(mu)
            found = self._settle(mu, (alpha > 0) & (alpha < cap), alpha >= cap)
        return found

    def _settle(
        self, mu: float, active: npt.NDArray[np.bool_], at_cap: npt.NDArray[np.bool_]
    ) -> tuple[Vector, Vector, float] | None:
        """Return the same, by steps from the clients between 0 and the cap and those at the cap."""
        from scipy.linalg import lapack  # slow to load: only where it is used

        p, b = self.problem, self._scores_of_T
        visited: set[bytes] = set()
        state = active.tobytes() + at_cap.tobytes()
        while len(visited) < _MAX_STEPS and state not in visited:
            visited.add(state)
            rows = np.flatnonzero(active)
            root, w = self._root[rows], p.w[rows]
            if p.cap is not None and not w.any():  # all are at 0 or at the cap, which leaves κ open
                return None
            fixed = np.zeros_like(p.w) if p.cap is None else np.where(at_cap, p.cap, 0.0)
            H = self._scaled_Q[rows[:, None], rows]
            H.flat[:: rows.size + 1] += mu
            rhs = np.empty((rows.size, 2), order="F")
            rhs[:, 0] = root * (b - self._Q @ (p.w * active + fixed))[rows]
            rhs[:, 1] = root
            factor, x, failed = lapack.dposv(H, rhs, lower=True)
            if failed:
                return None
            kappa = (1.0 - float(fixed.sum()) - float(w.sum()) - float(root @ x[:, 0])) / float(root @ x[:, 1])
            eta = x[:, 0] + kappa * x[:, 1]
            alpha = fixed
            alpha[rows] = w + root * eta
            v = (b - self._Q @ alpha + (kappa + mu)) / mu
            v[rows] = 1.0 + np.divide(eta, root, out=np.zeros_like(eta), where=root > 0)
            active, at_cap, previous = p.is_free(v), p.is_at_cap(v), state
            state = active.tobytes() + at_cap.tobytes()
            if state == previous:
                self._active, self._at_cap, self._factor = active, at_cap, (factor, rows, x[:, 1])
                return v, alpha, kappa
        return None

    def ess_slope(self, mu: float, point: Point) -> float:
        """Return −½ dq/dμ for q = Σ α_i²/w_i at the last solve's optimum ``point``."""
        from scipy.linalg import lapack  # slow to load: only where it is used

        if self._factor is None:
            return self._newton.ess_slope(mu, point)
        factor, rows, of_root = self._factor
        root = self._root[rows]
        eta = root * (point.v[rows] - 1.0)
        solved = np.asarray(lapack.dpotrs(factor, eta, lower=True)[0])
        return float(eta @ solved) - float(root @ solved) ** 2 / float(root @ of_root)
