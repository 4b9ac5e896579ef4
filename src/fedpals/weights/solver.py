"""`solve`, `ess_grid` and `coverage`, the functions that users call, and the `Weights` they return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError
from fedpals.labels import LabelCounts, Vector, match
from fedpals.weights.certificate import EXACT_CERTIFICATE, FALLBACK_GAP, Certificate, certify, certify_primal
from fedpals.weights.dual import Newton, Point, subtract_mean
from fedpals.weights.limit import limit
from fedpals.weights.problem import Problem
from fedpals.weights.projection import MAX_LEAST_SQUARES_CLIENTS, Projection, least_squares, project
from fedpals.weights.tradeoff import mu_for_ess

_LEAST_SQUARES_CLIENTS = 48
"""Number of clients up to which least squares with an active set is faster than Newton on the dual."""
_POLISH_GAP = 1e-13
"""Relative gap above which weights are polished."""
_MIN_MU = 1e-12
"""λ/N below which the weights are those of the limit λ → 0⁺."""
_MAX_MU = 1e17
"""λ/N from which the weights are FedAvg's: no weight differs by more than its rounding."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Aggregation weights for one target, their properties, and the proof that they are optimal."""

    alpha: Vector
    """α_i ≥ 0 per client, Σα = 1; 0 for a client without samples."""
    lam: float
    """λ of the paper's equation; 0 stands for the limit λ → 0⁺ and ∞ for FedAvg."""
    certificate: Certificate
    _instance: _Instance = field(repr=False)
    clamped: bool = False
    """Whether the requested ESS is below that of the limit λ → 0⁺, which is returned instead."""

    @property
    def counts(self) -> LabelCounts:
        """The clients' label counts."""
        return self._instance.counts

    @property
    def target(self) -> Vector:
        """T, normalised."""
        return self._instance.problem.T

    @cached_property
    def ess(self) -> float:
        """Effective sample size 1/Σ(α_i²/n_i) as a fraction of N; FedAvg has 1."""
        return self._instance.problem.ess(self.alpha)

    @property
    def effective_samples(self) -> float:
        """Effective sample size in samples."""
        return self.ess * self.counts.total

    @cached_property
    def marginal(self) -> Vector:
        """Σ α_i S_i, the label marginal that the weights imply."""
        return self._instance.problem.mix(self.alpha)

    @property
    def squared_distance(self) -> float:
        """‖T − Σ α_i S_i‖²."""
        return float(np.square(self.target - self.marginal).sum())

    @property
    def fedavg(self) -> Vector:
        """FedAvg's weights n_i/N."""
        return self._instance.problem.w

    @property
    def fedavg_squared_distance(self) -> float:
        """‖T − Σ (n_i/N) S_i‖², the squared distance of FedAvg from the target."""
        return self._instance.problem.squared_distance(self.fedavg)

    @property
    def projection(self) -> Projection:
        """The projection of T onto the clients' hull with its proof, computed on first access."""
        return self._instance.projection

    @property
    def projection_squared_distance(self) -> float:
        """d(T, S), the smallest squared distance that any weights reach."""
        return self.projection.squared_distance

    @property
    def covered(self) -> bool:
        """Whether some weights reproduce T exactly (Assumption 2), proven either way."""
        return self.projection.covered


class _Instance:
    """One pair (counts, target) and what all its weights share: problem, Newton matrix, projection, limit."""

    def __init__(self, counts: LabelCounts, target: Vector) -> None:
        self.counts = counts
        self.problem = Problem.of(counts, target)

    @cached_property
    def projection(self) -> Projection:
        return project(self.problem)

    @cached_property
    def newton(self) -> Newton:
        return Newton(self.problem)

    @cached_property
    def limit(self) -> Weights:
        """Weights at λ → 0⁺."""
        alpha, certificate = limit(self.problem, self.projection)
        return Weights(alpha, 0.0, certificate.checked(), self)

    @property
    def fedavg(self) -> Weights:
        """Weights at λ = ∞."""
        return Weights(self.problem.w, math.inf, EXACT_CERTIFICATE, self)

    def at_mu(self, mu: float) -> Weights:
        """Return the weights for λ = μN."""
        if mu >= _MAX_MU:
            return self.fedavg
        if mu < _MIN_MU:
            return self.limit
        if self.problem.w.size <= _LEAST_SQUARES_CLIENTS:
            w = self.problem.w
            alpha, certificate = self._solve_least_squares(slice(None) if w.all() else np.flatnonzero(w), mu)
            if certificate.relative_gap <= _POLISH_GAP:
                return Weights(alpha, mu * self.problem.N, certificate, self)
        return self.from_dual(mu, self.newton.solve(mu))

    def from_dual(self, mu: float, point: Point) -> Weights:
        """Return the weights of a dual optimum, polished if a large dual point has visible rounding errors."""
        p = self.problem
        alpha = np.maximum(point.v, 0.0)
        alpha *= p.w
        total = alpha.sum()
        alpha /= total
        marginal, mean = point.marginal / total, float(point.u.mean())
        certificate = certify(p, alpha, marginal, mu, subtract_mean(point.u), 1.0 + mean, point.v)
        if certificate.relative_gap > _POLISH_GAP:
            alpha, certificate = self._polish(mu, alpha, certificate)
        return Weights(alpha, mu * p.N, certificate.checked(), self)

    def _polish(self, mu: float, alpha: Vector, certificate: Certificate) -> tuple[Vector, Certificate]:
        """Correct α by least squares over its support; if that is not enough, over all clients, unless too many."""
        p = self.problem
        for rows, max_rows, max_gap in (
            (np.flatnonzero(alpha), max(_LEAST_SQUARES_CLIENTS, p.T.size), _POLISH_GAP),
            (np.flatnonzero(p.w), MAX_LEAST_SQUARES_CLIENTS, FALLBACK_GAP),
        ):
            if certificate.relative_gap > max_gap and rows.size <= max_rows:
                polished = self._solve_least_squares(rows, mu)
                if polished[1].gap < certificate.gap:
                    alpha, certificate = polished
        return alpha, certificate

    def _solve_least_squares(self, rows: npt.NDArray[np.intp] | slice, mu: float) -> tuple[Vector, Certificate]:
        """Optimise over ``rows`` alone; the certificate shows whether that is the optimum over all clients."""
        p = self.problem
        alpha = np.zeros_like(p.w)
        alpha[rows] = least_squares(p, rows, mu)
        return alpha, certify_primal(p, alpha, mu)


def solve(
    counts: Any,
    target: npt.ArrayLike | Mapping[str, float],
    *,
    lam: float | None = None,
    ess: float | None = None,
) -> Weights:
    """Solve for the aggregation weights.

        α = argmin over the simplex  ‖T − Σ α_i S_i‖² + λ Σ α_i²/n_i

    Parameters
    ----------
    counts
        M×K label counts, one client per row: numpy, nested lists, scipy sparse, or `LabelCounts`.
        For partial participation pass the participants' rows (`LabelCounts.subset`).
    target
        T: K probabilities, or a mapping from label name to probability.
    lam
        λ ≥ 0. ``math.inf`` is FedAvg; 0 is the limit λ → 0⁺, which is the projection of T onto the
        clients' hull with the largest effective sample size.
    ess
        Effective sample size as a fraction of N in (0, 1], given instead of λ. If it is below the ESS of
        the limit λ → 0⁺, that limit is returned and ``clamped`` is true.

    Raises
    ------
    InputError
        If the input is not valid; names argument, row, label and value.
    CertificateError
        If the answer could not be proven optimal.

    >>> weights = solve([[80, 20], [10, 90]], [0.5, 0.5], lam=0)
    >>> weights.alpha.round(4).tolist()
    [0.5714, 0.4286]
    >>> weights.covered
    True
    """
    if (lam is None) == (ess is None):
        raise InputError("give either lam=… or ess=…, for instance ess=0.5")
    instance = _instance(counts, target)
    if lam is not None:
        if not lam >= 0:
            raise InputError(f"lam is {lam}; it must be a number ≥ 0, or math.inf for FedAvg")
        return instance.at_mu(float(lam) / instance.problem.N)
    assert ess is not None
    if not 0 < ess <= 1:
        raise InputError(f"ess is {ess}; it must be a fraction of all samples in (0, 1], for instance 0.5")
    return next(iter(_solve_by_ess(instance, [ess])))


def ess_grid(counts: Any, target: npt.ArrayLike | Mapping[str, float], l: int) -> tuple[Weights, ...]:  # noqa: E741
    """Solve for ``l`` equally spaced ESS between that of λ → 0⁺ and FedAvg's 100 %, both excluded.

    This is the paper's strategy if it is unclear which λ to try (appendix "Choice of λ"), in ascending
    order of ESS. The result is empty if T is the pooled marginal: there is no ESS in between.
    """
    if l < 1:
        raise InputError(f"l is {l}; a grid needs at least one value")
    instance = _instance(counts, target)
    lowest = instance.limit.ess
    if lowest >= 1.0:
        return ()
    return tuple(reversed(_solve_by_ess(instance, np.linspace(1.0, lowest, l + 2)[1:-1].tolist())))


def coverage(counts: Any, target: npt.ArrayLike | Mapping[str, float]) -> Projection:
    """Decide, with a proof, whether T is covered by the clients (Assumption 2); also return its squared distance."""
    return _instance(counts, target).projection


def _instance(counts: Any, target: npt.ArrayLike | Mapping[str, float]) -> _Instance:
    return _Instance(*match(LabelCounts.of(counts), target))


def _solve_by_ess(instance: _Instance, fractions: list[float]) -> list[Weights]:
    """Return the weights for ESS ``fractions`` in descending order; each solve starts from the previous one."""
    answers, start = [], None
    for ess in fractions:
        if ess >= 1.0:
            answers.append(instance.fedavg)
            continue
        solution = mu_for_ess(instance.newton, ess, lambda: instance.limit.ess, start)
        if solution is None:
            lowest = instance.limit
            answers.append(Weights(lowest.alpha, lowest.lam, lowest.certificate, instance, clamped=ess < lowest.ess))
        else:
            mu, point = solution
            start = mu, point.u
            answers.append(instance.from_dual(mu, point))
    return answers
