"""λ = 0: the projection of T onto the clients' hull, and a proof of whether T is covered.

d(T, S) = min over the simplex ‖T − Sᵀα‖² is a non-negative least-squares problem: with x = tα,

    min over x ≥ 0  ‖(S − T)ᵀx‖² + (1ᵀx − 1)²

has the minimum d/(1 + d), so α = x/Σx is exact and no penalty weight has to be chosen. For many
clients it is solved over a few of them; one product with S prices all the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from fedpals.errors import CertificateError
from fedpals.labels import Vector
from fedpals.weights.problem import EPS, Problem

MAX_LEAST_SQUARES_CLIENTS = 2048
"""Number of clients up to which least squares, which works for any conditioning, takes less than a second."""
_MAX_PRICINGS = 1000
_SLOPE_TOLERANCE = 1e-12
"""Slope of ‖Ax − b‖², per length of a column, that counts as 0."""


@dataclass(frozen=True, eq=False)
class Projection:
    """The point p* of Conv(S) closest to T, and a proof of whether it is T itself.

    ``covered`` is the paper's Assumption 2. If it holds, ``alpha`` are weights that reproduce T
    up to rounding. If not, r = T − p* separates T from the clients: r·s_i ≤ r·T − ``margin`` for every
    client with ``margin`` > 0, so no mix of clients can reach T.
    """

    alpha: Vector
    """Weights with Sᵀα = p*; not unique."""
    point: Vector
    """p*, K probabilities; T itself if covered."""
    squared_distance: float
    """d(T, S) = ‖T − p*‖², the smallest squared distance that any weights reach; exactly 0 if covered."""
    covered: bool
    margin: float
    """Margin by which the separating direction proves that T is not covered, less rounding; 0 if covered."""
    error: float
    """Bound on ‖point − p*‖."""


def least_squares(problem: Problem, rows: npt.NDArray[np.intp] | slice, mu: float = 0.0) -> Vector:
    """Minimise ‖T − Sᵀα‖² + μΣα²/w exactly over weights on ``rows``; return α on those rows."""
    S = problem.marginals(rows)
    clients, labels = S.shape
    A = np.zeros((labels + 1 + (clients if mu else 0), clients))
    b = np.zeros(len(A))
    A[0] = b[0] = 1.0
    np.subtract(S.T, problem.T[:, None], out=A[1 : labels + 1])
    if mu:
        A[labels + 1 :].flat[:: clients + 1] = np.sqrt(mu / problem.w[rows])
    x = _nonnegative_least_squares(A, b)
    return np.asarray(x / x.sum())


def _nonnegative_least_squares(A: Vector, b: Vector) -> Vector:
    """Minimise ‖Ax − b‖ over x ≥ 0, for ‖b‖ = 1.

    Returns scipy's answer if it is a minimum. About one in a thousand is not, when clients have similar labels
    (https://github.com/scipy/scipy/issues/25389); Lawson and Hanson's steps then continue from it.
    """
    max_steps = 100 * (A.shape[1] + 10)
    x, _ = scipy.optimize.nnls(A, b, maxiter=max_steps)
    # A problem with few clients takes microseconds: if x is clearly a minimum, skip the check column by column.
    slope = (b - A @ x) @ A
    if slope.max() <= _SLOPE_TOLERANCE and slope @ x >= -_SLOPE_TOLERANCE:
        return np.asarray(x)
    lengths = np.linalg.norm(A, axis=0)
    for _ in range(max_steps):
        slope = (b - A @ x) @ A / lengths
        free = x > 0
        if np.abs(slope[free]).max(initial=0.0) <= _SLOPE_TOLERANCE:
            if slope.max() <= _SLOPE_TOLERANCE:
                return np.asarray(x)
            free[np.argmax(slope)] = True
        best = np.zeros_like(x)
        best[free] = np.linalg.lstsq(A[:, free], b)[0]
        decreasing = np.flatnonzero((best <= 0) & (best < x))
        ratios = x[decreasing] / (x[decreasing] - best[decreasing])
        step = float(ratios.min(initial=1.0))
        x = x + step * (best - x)
        x[decreasing[ratios <= step]] = 0.0
    raise CertificateError(f"least squares with non-negative weights took more than {max_steps} steps")


def project(problem: Problem) -> Projection:
    """Project T onto Conv(S) exactly; for M ≫ K only a few clients are considered at a time."""
    p = problem
    M, K = p.C.shape
    has_samples = p.w > 0
    rows = np.flatnonzero(has_samples) if M <= 2 * K + 64 else _first_rows(p, has_samples)
    noise = 16 * (p.score_rounding + p.mix_rounding)
    for _ in range(_MAX_PRICINGS):
        alpha = np.zeros(M)
        alpha[rows] = least_squares(p, rows)
        r = p.T - p.mix(alpha)
        size = float(np.abs(r).max())
        if size <= noise:
            return Projection(alpha, p.T, 0.0, covered=True, margin=0.0, error=0.0)
        price = np.where(has_samples, p.scores(r), -np.inf)
        support = np.flatnonzero(alpha)
        # Prices are as accurate as r, which has few digits if T is close. Terms of Sᵀα outside the support are 0.
        slack = noise * size + EPS * (4 + support.size) * float((p.T - r).max())
        entering = np.flatnonzero(price > price[support].max() + slack)
        entering = np.setdiff1d(entering, rows, assume_unique=True)
        if entering.size == 0:
            return _uncovered_projection(p, alpha, r, has_samples, noise, slack)
        if entering.size > K:
            entering = entering[np.argpartition(-price[entering], K)[:K]]
        rows = np.union1d(support, entering)
    raise CertificateError(f"projecting the target took more than {_MAX_PRICINGS} rounds of pricing")


def _first_rows(p: Problem, has_samples: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return, for each label, the client with the most samples of it, and the clients most similar to T."""
    K = p.T.size
    largest = np.asarray(p.C.argmax(axis=0)).ravel()
    similar = np.argpartition(-np.where(has_samples, p.scores(p.T), -np.inf), K)[:K]
    rows = np.union1d(largest, similar)
    return np.asarray(rows[has_samples[rows]], dtype=np.intp)


def _uncovered_projection(
    p: Problem, alpha: Vector, r: Vector, has_samples: npt.NDArray[np.bool_], noise: float, slack: float
) -> Projection:
    """Prove that no mix of clients reaches T, and bound ‖T − r − p*‖.

    At p*, r is orthogonal to the face that the support spans. Its rounding error along the face is removed
    from the separating direction, so that the proof works for a T very close to the hull.
    """
    support = np.flatnonzero(alpha)
    edges = p.marginals(support) - (p.T - r)
    _, singular_values, basis = np.linalg.svd(edges, full_matrices=False)
    nonzero = singular_values > 1e-12  # marginals have size 1: anything smaller is rounding
    basis = basis[nonzero]
    direction = r - (basis @ r) @ basis
    direction -= (basis @ direction) @ basis
    size = float(np.abs(direction).max())
    price = np.where(has_samples, p.scores(direction), -np.inf)
    margin = float(direction @ p.T) - float(price.max()) - noise * size
    if not margin > 0:
        raise CertificateError(
            f"whether the target is covered cannot be decided in double precision: it is {size:.1e} from "
            "the clients' hull, too far for rounding and too close for a proof"
        )
    edge_error = np.abs(edges @ r) + slack
    error = float(np.linalg.norm(edge_error) / singular_values[nonzero][-1]) if nonzero.any() else 0.0
    return Projection(alpha, p.T - r, float(r @ r), covered=False, margin=margin, error=error)
