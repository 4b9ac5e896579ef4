"""λ = 0: the projection of T onto the clients' hull, coverage, and a proof of either verdict.

d(T, S) = min over the simplex ‖T − Sᵀα‖² is a non-negative least-squares problem: with x = tα,

    min over x ≥ 0  ‖(S − T)ᵀx‖² + (1ᵀx − 1)²

takes the value d/(1 + d), so α = x/Σx is exact and no penalty weight has to be chosen. For many
clients it runs on a few of them; one product with S prices all the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from fedpals.errors import CertificateError
from fedpals.labels import Vector
from fedpals.weights.problem import EPS, Problem

AFFORDABLE = 2048
"""Clients up to which least squares, which stands any conditioning, can take over from faster ways within a second."""
_MAX_PRICINGS = 1000
_FLAT = 1e-12
"""Slope of ‖Ax − b‖², per length of a column, that is 0 up to rounding."""


@dataclass(frozen=True, eq=False)
class Projection:
    """The point p* of Conv(S) closest to T, and the proof whether it is T itself.

    ``covered`` is the paper's Assumption 2. Where it holds, ``alpha`` are weights that reproduce T
    up to rounding. Where it fails, r = T − p* separates: r·s_i ≤ r·T − ``margin`` for every client
    with ``margin`` > 0, so no mix of clients can reach T.
    """

    alpha: Vector
    """Weights with Sᵀα = p*; not unique."""
    point: Vector
    """p*, K probabilities; T itself where covered."""
    squared_distance: float
    """d(T, S) = ‖T − p*‖²; exactly 0 where covered."""
    covered: bool
    margin: float
    """How far the separating direction keeps the clients from T, rounding deducted; 0 where covered."""
    error: float
    """Bound on ‖point − p*‖."""


def least_squares(problem: Problem, rows: npt.NDArray[np.intp] | slice, mu: float = 0.0) -> Vector:
    """Minimise ‖T − Sᵀα‖² + μΣα²/w exactly over weights on a few ``rows``; return α on those rows."""
    S = problem.marginals(rows)
    count, columns = S.shape
    A = np.zeros((columns + 1 + (count if mu else 0), count))
    b = np.zeros(len(A))
    A[0] = b[0] = 1.0
    np.subtract(S.T, problem.T[:, None], out=A[1 : columns + 1])
    if mu:
        A[columns + 1 :].flat[:: count + 1] = np.sqrt(mu / problem.w[rows])
    x = _nonnegative(A, b)
    return np.asarray(x / x.sum())


def _nonnegative(A: Vector, b: Vector) -> Vector:
    """Minimise ‖Ax − b‖ over x ≥ 0, for ‖b‖ = 1.

    scipy's answer where it is a minimum, which one in a thousand is not where clients hold labels alike
    (https://github.com/scipy/scipy/issues/25389): then Lawson and Hanson's own steps lead on from it.
    """
    most = 100 * (A.shape[1] + 10)
    x, _ = nnls(A, b, maxiter=most)
    # A few clients are solved in microseconds: what is plainly a minimum is not measured column by column.
    slope = (b - A @ x) @ A
    if slope.max() <= _FLAT and slope @ x >= -_FLAT:
        return np.asarray(x)
    lengths = np.linalg.norm(A, axis=0)
    for _ in range(most):
        slope = (b - A @ x) @ A / lengths
        free = x > 0
        if np.abs(slope[free]).max(initial=0.0) <= _FLAT:
            if slope.max() <= _FLAT:
                return np.asarray(x)
            free[np.argmax(slope)] = True
        best = np.zeros_like(x)
        best[free] = np.linalg.lstsq(A[:, free], b)[0]
        falling = np.flatnonzero((best <= 0) & (best < x))
        way = x[falling] / (x[falling] - best[falling])
        part = float(way.min(initial=1.0))
        x = x + part * (best - x)
        x[falling[way <= part]] = 0.0
    raise CertificateError(f"least squares with non-negative weights took more than {most} steps")


def project(problem: Problem) -> Projection:
    """Project T onto Conv(S), exactly; for M ≫ K only a few clients at a time are looked at."""
    p = problem
    M, K = p.C.shape
    alive = p.w > 0
    rows = np.flatnonzero(alive) if M <= 2 * K + 64 else _first_rows(p, alive)
    noise = 16 * (p.score_rounding + p.mix_rounding)
    for _ in range(_MAX_PRICINGS):
        alpha = np.zeros(M)
        alpha[rows] = least_squares(p, rows)
        r = p.T - p.mix(alpha)
        size = float(np.abs(r).max())
        if size <= noise:
            return Projection(alpha, p.T, 0.0, covered=True, margin=0.0, error=0.0)
        price = np.where(alive, p.scores(r), -np.inf)
        support = np.flatnonzero(alpha)
        # Prices are as exact as r, whose digits are few where T is close: terms of Sᵀα outside the support are 0.
        slack = noise * size + EPS * (4 + support.size) * float((p.T - r).max())
        better = np.flatnonzero(price > price[support].max() + slack)
        better = np.setdiff1d(better, rows, assume_unique=True)
        if better.size == 0:
            return _not_covered(p, alpha, r, alive, noise, slack)
        if better.size > K:
            better = better[np.argpartition(-price[better], K)[:K]]
        rows = np.union1d(support, better)
    raise CertificateError(f"projecting the target took more than {_MAX_PRICINGS} rounds of pricing")


def _first_rows(p: Problem, alive: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """For each label the client with the most of it, and the clients most like T."""
    K = p.T.size
    top = np.asarray(p.C.argmax(axis=0)).ravel()
    near = np.argpartition(-np.where(alive, p.scores(p.T), -np.inf), K)[:K]
    rows = np.union1d(top, near)
    return np.asarray(rows[alive[rows]], dtype=np.intp)


def _not_covered(
    p: Problem, alpha: Vector, r: Vector, alive: npt.NDArray[np.bool_], noise: float, slack: float
) -> Projection:
    """Prove that no mix of clients reaches T, and bound how far T − r can be from p*.

    At p*, r is orthogonal to the face that the support spans. What rounding left along the face is
    taken out of the separating direction, so that the proof works for a T very close to the hull.
    """
    support = np.flatnonzero(alpha)
    edges = p.marginals(support) - (p.T - r)
    _, singular, basis = np.linalg.svd(edges, full_matrices=False)
    kept = singular > 1e-12  # marginals are of size 1: less than this is rounding
    basis = basis[kept]
    direction = r - (basis @ r) @ basis
    direction -= (basis @ direction) @ basis
    size = float(np.abs(direction).max())
    price = np.where(alive, p.scores(direction), -np.inf)
    margin = float(direction @ p.T) - float(price.max()) - noise * size
    if not margin > 0:
        raise CertificateError(
            f"whether the target is covered cannot be decided in double precision: it is {size:.1e} from "
            "the clients' hull, neither rounding nor provably more"
        )
    slip = np.abs(edges @ r) + slack
    error = float(np.linalg.norm(slip) / singular[kept][-1]) if kept.any() else 0.0
    return Projection(alpha, p.T - r, float(r @ r), covered=False, margin=margin, error=error)
