"""λ = 0: the projection of T onto the clients' hull, and a proof of whether T is covered.

d(T, S) = min over the simplex ‖T − Sᵀα‖² is a non-negative least-squares problem: with x = tα,

    min over x ≥ 0  ‖(S − T)ᵀx‖² + (1ᵀx − 1)²

has the minimum d/(1 + d), so α = x/Σx is exact and no penalty weight has to be chosen. For many
clients it is solved over a few of them; one product with S prices all the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpals.errors import CertificateError
from fedpals.labels import Vector
from fedpals.weights.double_double import DoubleDouble, exact_scores
from fedpals.weights.problem import EPS, Problem
from fedpals.weights.quadratic import nonnegative_least_squares
from fedpals.weights.wolfe import Face, nearest_face

_MAX_PRICINGS = 1000
_COVERED_ROUNDINGS = 32
"""Distance of T from the hull, in roundings of a score, up to which it is covered."""


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
    """p*, K probabilities; T itself, up to rounding, if covered."""
    squared_distance: float
    """d(T, S) = ‖T − p*‖², the smallest squared distance that any weights reach; exactly 0 if covered."""
    covered: bool
    margin: float
    """Margin by which the separating direction proves that T is not covered, less rounding; 0 if covered."""
    error: float
    """Bound on ‖point − p*‖."""


def _least_squares(problem: Problem, rows: npt.NDArray[np.intp]) -> Vector:
    """Minimise ‖T − Sᵀα‖ over weights on ``rows``; return α on those rows."""
    S = problem.marginals(rows)
    A = np.ones((S.shape[1] + 1, S.shape[0]))
    np.subtract(S.T, problem.T[:, None], out=A[1:])
    x = nonnegative_least_squares(A, np.eye(1, len(A))[0])
    return np.asarray(x / np.add.reduce(x))


def project(problem: Problem) -> Projection:
    """Project T onto Conv(S) exactly; for M ≫ K only a few clients are considered at a time."""
    p = problem
    M, K = p.C.shape
    has_samples = p.w > 0
    rows = np.flatnonzero(has_samples) if M <= 2 * K + 64 else _first_rows(p, has_samples)
    noise, previous = _COVERED_ROUNDINGS * p.score_rounding, math.inf
    for _ in range(_MAX_PRICINGS):
        alpha = np.zeros(M)
        alpha[rows] = _least_squares(p, rows)
        r = p.T - p.mix(alpha)
        size = float(np.abs(r).max())
        if size <= 4 * EPS:
            return Projection(alpha, p.T, 0.0, covered=True, margin=0.0, error=0.0)
        support = np.flatnonzero(alpha)
        distance = float(r @ r)
        if size <= noise or distance >= previous:  # least squares see no further: steps that do are left
            return _decide(p, nearest_face(p, support, alpha[support]), noise)
        previous = distance
        price = np.where(has_samples, p.scores(r), -np.inf)
        # Prices are as accurate as r, which has few digits if T is close. Terms of Sᵀα outside the support are 0.
        slack = noise * size + EPS * (4 + support.size) * float((p.T - r).max())
        entering = np.flatnonzero(price > price[support].max() + slack)
        entering = np.setdiff1d(entering, rows, assume_unique=True)
        if entering.size == 0:
            return _decide(p, nearest_face(p, support, alpha[support]), noise)
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


def _decide(p: Problem, face: Face, noise: float) -> Projection:
    """Return the projection onto a face with the proof of either verdict, and a bound on ‖T − r − p*‖."""
    alpha = np.zeros_like(p.w)
    alpha[face.rows] = face.weights
    r, size = face.r, float(np.abs(face.r).max())
    if size <= 4 * EPS:
        return Projection(alpha, p.T, 0.0, covered=True, margin=0.0, error=0.0)
    S = p.marginals(face.rows)
    mix = face.weights @ S
    point = np.where((mix > 0) & (r < p.T), p.T - r, mix)  # exactly 0 for a label that no client of the face has
    edges = S[1:] - S[0]
    edge_error = np.abs(edges @ r) + p.score_rounding * size
    singular_values = np.linalg.svd(edges, compute_uv=False)
    lengths = singular_values[singular_values > 1e-12]  # marginals have size 1: anything smaller is rounding
    error = EPS * float(np.linalg.norm(point))  # the point's own rounding
    error += float(np.linalg.norm(edge_error) / lengths[-1]) if lengths.size else 0.0
    margin = _margin(p, r)
    if size <= noise:
        # Without a proof that T is outside, p* may be anything between the point and T.
        error += 0.0 if margin > 0 else float(np.linalg.norm(r))
        return Projection(alpha, point, 0.0, covered=True, margin=0.0, error=error)
    if not margin > 0:
        raise CertificateError(
            f"whether the target is covered cannot be decided in double precision: it is {size:.1e} from "
            "the clients' hull, too far for rounding and too close for a proof"
        )
    return Projection(alpha, point, float(r @ r), covered=False, margin=margin, error=error)


def _margin(p: Problem, r: Vector) -> float:
    """Return by how much every client stays short of T in the direction r, less rounding."""
    scores, score_error = exact_scores(p, DoubleDouble.of(r))
    terms = r * p.T
    reach = math.fsum(terms.tolist())
    rounding = score_error + EPS * (2 * float(np.abs(scores).max()) + float(np.abs(terms).sum()))
    # T stands for T/ΣT.
    rounding += abs(reach) * (EPS + abs(math.fsum(p.T.tolist()) - 1.0))
    return reach - float(scores[p.w > 0].max()) - rounding
