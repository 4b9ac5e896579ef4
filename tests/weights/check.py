"""Solve a member of a family, and check the answer."""

from __future__ import annotations

import warnings
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np

import fedpals
from tests.weights.families import Member
from tests.weights.reference import Reference, l1_distance, largest

_TOLERANCE = 1e-6
"""Relative gap up to which an answer is optimal: what the package promises."""
_RESIDUAL = 1e-12
"""Distance from the projection that counts as rounding."""


class Verdict(Enum):
    """What an answer is."""

    RIGHT = 0
    REFUSED = 1
    WRONG = 2
    FAILED = 3


def answer_to(member: Member) -> fedpals.Weights | Exception:
    """Return the weights, or the exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if member.ess_step is None:
                total = member.counts.astype(np.float64).sum()
                return fedpals.solve(member.counts, member.target, lam=member.mu * float(total))
            lowest = fedpals.solve(member.counts, member.target, lam=0).ess
            ess = lowest + member.ess_step * (1 - lowest)
            return fedpals.solve(member.counts, member.target, ess=ess)
    except Exception as error:  # noqa: BLE001 -- that there is none but the documented one is what is tested
        return error


def check(member: Member, answer: fedpals.Weights | Exception, *, in_high_precision: bool) -> tuple[Verdict, str]:
    """Return the verdict, and for all but RIGHT the reason."""
    if isinstance(answer, fedpals.CertificateError):
        return Verdict.REFUSED, str(answer)
    if isinstance(answer, Exception):
        return Verdict.FAILED, repr(answer)
    problem = _check_in_float64(member, answer) or (_compare(member, answer) if in_high_precision else "")
    return (Verdict.WRONG, problem) if problem else (Verdict.RIGHT, "")


def _dense(counts: Any) -> Any:
    """Return counts as a dense table of int64."""
    dense = counts if isinstance(counts, np.ndarray) else counts.astype(np.float64).toarray()
    return dense.astype(np.int64)


def _check_in_float64(member: Member, weights: fedpals.Weights) -> str:
    """Return what is wrong with the weights as far as float64 shows, or nothing."""
    alpha, sizes = weights.alpha, _dense(member.counts).sum(axis=1)
    if not (alpha.min() >= 0 and abs(alpha.sum() - 1) < 1e-12 and not alpha[sizes == 0].any()):
        return "α is not in the simplex"
    if not np.array_equal(weights.counts.sizes, sizes):
        return "sizes are not the sums of the counts"
    if member.ess_step is not None:
        lowest = fedpals.solve(member.counts, member.target, lam=0).ess
        wanted = lowest + member.ess_step * (1 - lowest)
        if abs(weights.ess - wanted) > 1e-6 * wanted:
            return f"ess {weights.ess} instead of {wanted}"
    return ""


def _compare(member: Member, weights: fedpals.Weights) -> str:
    """Return how the weights differ from the optimum in 500 bits by more than their certificate says, or nothing."""
    reference = Reference(_dense(member.counts), weights.target)
    alpha = reference.exact(weights.alpha)
    claimed = weights.certificate
    if weights.lam > 0:
        if weights.lam == np.inf:
            return ""
        mu = Fraction(weights.lam) / reference.N
        optimum = reference.optimum(reference.T, mu, weights.alpha)
        best = reference.objective(optimum, mu)
        gap = float((reference.objective(alpha, mu) - best) / best)
    else:
        projection = reference.projection(weights.projection.alpha)
        distance = largest(reference.T - projection)
        if distance > _RESIDUAL and weights.covered:
            return f"covered, but {distance:.1e} from the hull"
        if not distance and not weights.covered:
            return "covered, but said to be not"
        miss = largest(projection - reference.mix(alpha))
        if miss > _RESIDUAL:
            return f"{miss:.1e} from the projection"
        optimum = reference.optimum(projection, Fraction(0), weights.alpha)
        gap = float(reference.q(alpha) / reference.q(optimum) - 1)
    error = l1_distance(alpha, optimum)
    if gap > claimed.relative_gap or abs(gap) > _TOLERANCE:
        return f"relative gap {gap:.1e}, certified {claimed.relative_gap:.1e}"
    if error > claimed.error:
        return f"weights off by {error:.1e}, certified {claimed.error:.1e}"
    return ""
