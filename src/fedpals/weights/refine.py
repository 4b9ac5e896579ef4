"""Refinement of a dual point: Newton steps by QR factorisation, with z in double-double arithmetic.

Where λ is near 0 and sizes have many magnitudes, the Gram matrix of `dual` squares a large condition number, and
terms of s_i·z cancel. This iteration starts where Newton's ended and has neither defect. With B = diag(√w)·S over
the active clients F, a step d solves

    (B_FᵀB_F + μP + νI) d = T − Sᵀα − μPz

by a QR factorisation of the stacked rows [B_F; √μ P; √ν I], which is never squared. Rows are sorted from large to
small and columns pivoted, so that the error of a row is relative to that row: a client of 10⁻¹² of all samples counts
as exactly as a large one. z has twice the digits of float64 (`double_double`), so α = w·(S·z)₊ is correct to its last
digit.

ν is the weight of a proximal term ½ν‖z − centre‖², which settles what the active clients leave open. It falls from
step to step, so that it changes nothing at the end. μ = 0 is allowed: z then stays in the space that rows of S span,
since outside it nothing but the rounding of T would move it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector, row_blocks
from fedpals.weights.double_double import DoubleDouble, exact_scores
from fedpals.weights.dual import Point, line_minimum
from fedpals.weights.problem import EPS, Problem

_FIRST_NU, _LAST_NU = 1e-14, 1e-48
_NU_FACTOR = 1e-2
_MAX_STEPS = 60
"""Newton steps for one ν; few are needed, since the previous ν has led close."""
_MAX_STALLS = 3
"""Steps that do not halve the residual, with the same active clients, after which ν is changed."""
_BLOCK = 1 << 22
"""Entries of B that are factorised at a time."""
_RANK_TOLERANCE = 1e-14
"""Singular value of S, as a fraction of the largest, below which it is rounding."""
_FINAL_SIZE = 2 * EPS
"""Size of the residual at which the iteration ends."""
_NEARLY_FINAL_SIZE = 32 * EPS
"""Size below which a ν that does not halve it counts as a stall; above it, ν is still too large."""
_GAP_FACTOR = 2.0**-8
"""Factor of z·(T − Sᵀα), relative to Σα²/w, in the size of a residual: at the end it is about 10⁻¹³."""


@dataclass(frozen=True, eq=False)
class _Iterate:
    """A dual point z with scores that are correct to the last digit."""

    z: DoubleDouble
    v: Vector
    """s_i·z per client; α = w·v₊, at most the cap."""
    score_error: float
    """Bound on the error of v before it was rounded."""
    q: float
    """Σ α_i²/w_i."""
    marginal: Vector
    """Sᵀα."""
    residual: Vector
    """T − Sᵀα − μPz, which is zero at the optimum."""

    @property
    def size(self) -> float:
        """Size of the residual."""
        return self.size_of(self.residual)

    def size_of(self, residual: Vector) -> float:
        """Return the largest entry of ``residual``, or its product with z relative to q if that is larger.

        A label with a small share of T may have a large z_k, and z·(T − Sᵀα) is a part of the certificate's gap.
        """
        miss = np.abs(residual)
        return max(float(miss.max()), _GAP_FACTOR * float(np.abs(self.z.high) @ miss) / max(self.q, 1.0))

    def as_point(self) -> Point:
        """Return the iterate as a point of `dual`, with u = z − 1 in float64."""
        return Point(self.z.high - 1.0, self.v, self.marginal, -self.residual, self.score_error)


def refine(problem: Problem, mu: float, u: Vector) -> Point:
    """Return the dual optimum for μ ≥ 0 from a nearby ``u``."""
    point = best = _evaluate(problem, mu, DoubleDouble.of(u).plus(np.ones_like(u)))
    if best.size <= _FINAL_SIZE:
        return best.as_point()
    basis = np.eye(u.size) if mu else _row_space(problem)
    nu, stalls = _FIRST_NU, 0
    while nu >= _LAST_NU and stalls < 2 and best.size > _FINAL_SIZE:
        point = _minimise(problem, mu, nu, point, basis)
        stalls = stalls + 1 if 0.5 * best.size < point.size < _NEARLY_FINAL_SIZE else 0
        if point.size < best.size:
            best = point
        nu *= _NU_FACTOR
    return best.as_point()


def _evaluate(p: Problem, mu: float, z: DoubleDouble) -> _Iterate:
    v, score_error = exact_scores(p, z)
    x = p.clip(v)
    marginal = p.mix_samples(x)
    residual = p.T - marginal
    if mu:
        residual -= mu * z.without_mean()
    return _Iterate(z, v, score_error, float(p.w @ np.square(x)), marginal, residual)


def _minimise(p: Problem, mu: float, nu: float, point: _Iterate, basis: Vector) -> _Iterate:
    """Take Newton steps with an exact line search to the optimum with the proximal term around ``point``."""
    centre, residual = point.z, point.residual
    active = p.is_free(point.v)
    factor = _newton_factor(p, active, mu, nu, basis)
    stalls = 0
    for _ in range(_MAX_STEPS):
        size = point.size_of(residual)
        if size <= 2 * _FINAL_SIZE or stalls == _MAX_STALLS:
            break
        step = _newton_step(factor, residual, basis)
        moved = _evaluate(p, mu, point.z.plus(step))
        next_residual = moved.residual - nu * moved.z.minus(centre)
        if moved.size_of(next_residual) > 0.5 * size and step @ next_residual < 0:
            curvature = mu * float(np.square(step - step.mean()).sum()) + nu * float(step @ step)
            t = line_minimum(p, point.v, moved.v - point.v, -float(step @ residual), curvature, EPS)
            moved = _evaluate(p, mu, point.z.plus(t * step))
            next_residual = moved.residual - nu * moved.z.minus(centre)
        next_active = p.is_free(moved.v)
        if not np.array_equal(next_active, active):
            active, stalls = next_active, 0
            factor = _newton_factor(p, active, mu, nu, basis)
        elif moved.size_of(next_residual) > 0.5 * size:
            stalls += 1
        point, residual = moved, next_residual
    return point


def _newton_factor(
    p: Problem, active: npt.NDArray[np.bool_], mu: float, nu: float, basis: Vector
) -> tuple[Vector, npt.NDArray[np.intp]]:
    """Return the factor of B_FᵀB_F + μP + νI in the coordinates of ``basis``."""
    return _triangular_factor(_newton_rows(p, np.flatnonzero(active), mu, nu, basis), basis.shape[1])


def _newton_step(factor: tuple[Vector, npt.NDArray[np.intp]], residual: Vector, basis: Vector) -> Vector:
    """Solve (B_FᵀB_F + μP + νI) d = residual for a d in the space of ``basis``."""
    R, columns = factor
    d = np.empty(columns.size)
    d[columns] = _solve_normal(R, (residual @ basis)[columns])
    return np.asarray(basis @ d)


def _solve_normal(R: Vector, rhs: Vector) -> Vector:
    """Solve RᵀR x = rhs."""
    from scipy.linalg import solve_triangular  # slow to load: only where it is used

    return np.asarray(solve_triangular(R, solve_triangular(R, rhs, trans="T", check_finite=False), check_finite=False))


def _newton_rows(p: Problem, clients: npt.NDArray[np.intp], mu: float, nu: float, basis: Vector) -> Iterator[Vector]:
    """Yield the rows of [B_F; √μ P; √ν I] in blocks, the longest first, in the coordinates of ``basis``."""
    K, rank = basis.shape
    regular = math.sqrt(nu) * np.eye(rank)
    if mu:
        regular = np.vstack([math.sqrt(mu) * (basis - basis.mean(axis=0)), regular])
    roots = np.sqrt(p.w[clients])
    order = np.argsort(-np.concatenate([roots, np.abs(regular).max(axis=1)]), kind="stable")
    for block in row_blocks(order.size, K, _BLOCK):
        chosen = order[block]
        of_client = chosen < clients.size
        rows = np.empty((chosen.size, rank))
        rows[of_client] = (p.marginals(clients[chosen[of_client]]) * roots[chosen[of_client], None]) @ basis
        rows[~of_client] = regular[chosen[~of_client] - clients.size]
        yield rows


def _row_space(p: Problem) -> Vector:
    """Return a basis, orthonormal and K×rank, of the space that the rows of S span.

    If the labels that clients hold are independent, it is these labels: zeros of S remain zeros.
    """
    K = p.T.size
    R, columns = _triangular_factor((p.marginals(block) for block in row_blocks(p.w.size, K, _BLOCK)), K)
    _, lengths, directions = np.linalg.svd(R, full_matrices=False)
    independent = lengths > _RANK_TOLERANCE * lengths[0]
    held = np.flatnonzero(p.mix(p.w))
    if held.size == independent.sum():
        return np.eye(K)[:, held]
    basis = np.empty((K, len(directions)))
    basis[columns] = directions.T
    return basis[:, independent]


def _triangular_factor(blocks: Iterable[Vector], K: int) -> tuple[Vector, npt.NDArray[np.intp]]:
    """Return R and the order of its columns, with RᵀR = AᵀA in that order, for an A of K columns in blocks of rows."""
    from scipy.linalg import lapack  # slow to load: only where it is used

    R, columns = np.zeros((0, K)), np.arange(K)
    for block in blocks:
        stacked = np.empty((len(R) + len(block), K), order="F")
        stacked[: len(R), columns] = R
        stacked[len(R) :] = block
        factored, pivots, *_ = lapack.dgeqp3(stacked, overwrite_a=True)
        R, columns = np.triu(factored[:K]), np.asarray(pivots - 1, dtype=np.intp)
    return R, columns
