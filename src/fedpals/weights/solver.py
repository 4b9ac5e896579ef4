"""`solve`, `ess_grid` and `coverage`, the functions that users call, and the `Weights` they return."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedpals.errors import CertificateError, InputError
from fedpals.labels import LabelCounts, Vector, match
from fedpals.weights.active_set import ActiveSet
from fedpals.weights.cap import check_cap, leaves_one_choice
from fedpals.weights.capped_projection import project_below_cap
from fedpals.weights.certificate import EXACT_CERTIFICATE, FALLBACK_GAP, Certificate, certify_dual, certify_primal
from fedpals.weights.dual import Newton, Point
from fedpals.weights.limit import covering_limit, limit, limit_below_cap
from fedpals.weights.problem import Problem
from fedpals.weights.projection import Projection, least_squares, least_squares_below_cap, project
from fedpals.weights.refine import refine
from fedpals.weights.threads import one_blas_thread
from fedpals.weights.tradeoff import mu_for_ess

_LEAST_SQUARES_CLIENTS = 48
"""Number of clients up to which least squares with an active set is faster than Newton on the dual."""
_FEW_CLIENTS = 4096
"""Number of clients up to which a better answer is looked for from a smaller gap on, since it costs little."""
_REFINE_GAP = 1e-13
"""Relative gap above which weights of few clients are refined."""
_MANY_LABELS = 150
"""Number of labels from which it is tried whether T is covered before it is projected."""
_MIN_MU = 1e-12
"""λ/N below which the weights are those of the limit λ → 0⁺."""
_BARELY_MET = 1e-6
"""Weight above the cap, as a fraction of it, up to which the answer without the cap may be within it."""
_PROJECTION_MU = 1e-7
"""λ/N whose weights a projection with a cap starts from."""
_Start: TypeAlias = tuple[float, Vector]
"""μ and u to start a search from."""
_MAX_MU = 1e17
"""λ/N from which the weights are FedAvg's: no weight differs by more than its rounding."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Aggregation weights for one target, their properties, and the proof that they are optimal."""

    alpha: Vector
    """α_i ≥ 0 per client, Σα = 1, none above ``max_weight``; 0 for a client without samples."""
    lam: float
    """λ of the paper's equation; 0 stands for the limit λ → 0⁺ and ∞ for FedAvg, or the closest that the cap allows."""
    certificate: Certificate
    _instance: _Instance = field(repr=False)
    clamped: bool = False
    """Whether the requested ESS is below that of λ → 0⁺ or, with a cap, above that of λ = ∞: the nearer is returned."""

    @property
    def counts(self) -> LabelCounts:
        """The clients' label counts."""
        return self._instance.counts

    @property
    def target(self) -> Vector:
        """T, normalised."""
        return self._instance.problem.T

    @property
    def max_weight(self) -> float | None:
        """The cap on α; None without one."""
        return self._instance.problem.cap

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
        """The projection of T onto the mixes of the clients with its proof, computed on first access."""
        return self._instance.projection

    @property
    def projection_squared_distance(self) -> float:
        """d(T, S), the smallest squared distance that any weights reach, within ``max_weight`` if there is one."""
        return self.projection.squared_distance

    @property
    def covered(self) -> bool:
        """Whether some weights, none above ``max_weight``, reproduce T exactly (Assumption 2), proven either way."""
        return self.projection.covered


class _Instance:
    """One pair (counts, target) and what all its weights share: problem, Newton matrix, projection, limit."""

    def __init__(self, counts: LabelCounts, target: Vector) -> None:
        self.counts = counts
        self.problem = Problem.of(counts, target)

    @cached_property
    def projection(self) -> Projection:
        with one_blas_thread(self.problem.C.shape):
            if self._covering_limit is None:
                return project(self.problem)
            alpha, _ = self._covering_limit
            return Projection(alpha, self.problem.T, 0.0, covered=True, margin=0.0, error=0.0)

    @cached_property
    def _covering_limit(self) -> tuple[Vector, Certificate] | None:
        """Weights at λ → 0⁺ that prove T to be covered; None if they are not worth trying, or were not found."""
        M, K = self.problem.C.shape
        return covering_limit(self.problem) if M > K > _MANY_LABELS else None

    @cached_property
    def newton(self) -> Newton:
        return Newton(self.problem)

    @cached_property
    def solver(self) -> Newton | ActiveSet:
        """Newton's iteration in the smaller of its two spaces."""
        return ActiveSet(self.problem) if self.has_few_clients else self.newton

    @property
    def has_few_clients(self) -> bool:
        """Whether there are no more clients than labels."""
        return self.problem.w.size <= self.problem.T.size

    @cached_property
    def limit(self) -> Weights:
        """Weights at λ → 0⁺."""
        alpha, certificate = self._covering_limit or limit(self.problem, self.projection)
        return Weights(alpha, 0.0, certificate.checked(), self)

    @property
    def fedavg(self) -> Weights:
        """Weights at λ = ∞."""
        return Weights(self.problem.fedavg, math.inf, EXACT_CERTIFICATE, self)

    def at_mu(self, mu: float) -> Weights:
        """Return the weights for λ = μN."""
        if mu >= _MAX_MU:
            return self.fedavg
        if mu < _MIN_MU:
            return self.limit
        if self.problem.w.size > _LEAST_SQUARES_CLIENTS:
            return self.from_dual(mu, self.solver.solve(mu))
        alpha, certificate = self._solve_least_squares(mu)
        if certificate.relative_gap <= _REFINE_GAP:
            return Weights(alpha, mu * self.problem.N, certificate, self)
        return self.from_dual(mu, self.newton.solve(mu))

    def at_ess(self, ess: float, start: _Start | None = None) -> tuple[Weights, _Start | None]:
        """Return the weights with ESS ``ess``, from a nearby (μ, u), and the (μ, u) that they belong to."""
        highest = self.problem.highest_ess
        if ess >= highest:
            return replace(self.fedavg, clamped=ess > highest), start
        solution = mu_for_ess(self.solver, ess, lambda: self.limit.ess, start)
        if solution is None:
            return replace(self.limit, clamped=ess < self.limit.ess), start
        mu, point = solution
        return self.from_dual(mu, point), (mu, point.u)

    def from_dual(self, mu: float, point: Point) -> Weights:
        """Return the weights of a dual optimum, refined if rounding errors of a large dual point are visible."""
        alpha, certificate = self._from_point(mu, point)
        few = self.problem.w.size <= _FEW_CLIENTS
        if not certificate.relative_gap <= (_REFINE_GAP if few else FALLBACK_GAP):
            refined = self._from_point(mu, refine(self.problem, mu, point.u))
            if not certificate.gap <= refined[1].gap:
                alpha, certificate = refined
        return Weights(alpha, mu * self.problem.N, certificate.checked(), self)

    def _from_point(self, mu: float, point: Point) -> tuple[Vector, Certificate]:
        alpha, marginal = point.weights(self.problem)
        if self.has_few_clients:
            return alpha, certify_primal(self.problem, alpha, mu, marginal)
        return alpha, certify_dual(self.problem, alpha, mu, point, marginal)

    def _solve_least_squares(self, mu: float) -> tuple[Vector, Certificate]:
        alpha = self._least_squares(mu)
        return alpha, certify_primal(self.problem, alpha, mu)

    def _least_squares(self, mu: float) -> Vector:
        p = self.problem
        if p.n[p.n.argmin()] > 0:
            return least_squares(p, slice(None), mu)
        rows = np.flatnonzero(p.w)
        alpha = np.zeros_like(p.w)
        alpha[rows] = least_squares(p, rows, mu)
        return alpha


class _CappedInstance(_Instance):
    """The same with a cap on the weights. A cap that does not bind changes nothing, to the bit."""

    def __init__(self, counts: LabelCounts, target: Vector, cap: float) -> None:
        self.counts = counts
        self.problem = Problem(counts.table, counts.sizes, target, cap)
        self.cap = cap

    @cached_property
    def uncapped(self) -> _Instance:
        """The same without the cap."""
        return _Instance(self.counts, self.problem.T)

    @property
    def has_few_clients(self) -> bool:
        """Whether there are no more clients than labels, or so few that steps in their space are faster anyway."""
        return self.problem.w.size <= max(self.problem.T.size, _LEAST_SQUARES_CLIENTS)

    def at_mu(self, mu: float) -> Weights:
        """Return the weights for λ = μN."""
        if mu >= _MAX_MU:
            return self.fedavg
        if mu < _MIN_MU:
            return self.limit
        if leaves_one_choice(self.problem.w, self.cap):
            only = replace(self.fedavg, lam=mu * self.problem.N)
            return self._without_cap(lambda: self.uncapped.at_mu(mu)) or only
        if self.problem.w.size <= _LEAST_SQUARES_CLIENTS:
            return self._below_cap(mu) or self.from_dual(mu, self.solver.solve(mu))
        point = self.solver.solve(mu)
        if not self.solver.met_cap:
            return self._without_cap(lambda: self.uncapped.from_dual(mu, point)) or self.from_dual(mu, point)
        weights = self.from_dual(mu, point)
        if (self.problem.w * self.problem.above_cap(point.v)).max() <= _BARELY_MET * self.cap:
            return self._without_cap(lambda: self.uncapped.at_mu(mu)) or weights
        return weights

    @cached_property
    def _covering_limit(self) -> tuple[Vector, Certificate] | None:
        """Weights at λ → 0⁺ below the cap that prove T to be covered; None if not worth trying, or not found."""
        M, K = self.problem.C.shape
        return covering_limit(self.problem) if M > K else None

    @cached_property
    def projection(self) -> Projection:
        """The projection onto the mixes of weights below the cap."""
        with one_blas_thread(self.problem.C.shape):
            if (weights := self._without_cap(lambda: self.uncapped.limit)) is not None:
                return replace(self.uncapped.projection, alpha=weights.alpha)
            if self._covering_limit is not None:
                return Projection(self._covering_limit[0], self.problem.T, 0.0, covered=True, margin=0.0, error=0.0)
            start, _ = self.solver.solve(_PROJECTION_MU).weights(self.problem)
            return project_below_cap(self.problem, start)

    @cached_property
    def limit(self) -> Weights:
        """Weights at λ → 0⁺."""
        if (weights := self._without_cap(lambda: self.uncapped.limit)) is not None:
            return weights
        if leaves_one_choice(self.problem.w, self.cap):
            return replace(self.fedavg, lam=0.0)
        found = self._covering_limit
        if found is None:
            find = limit if self.projection.covered else limit_below_cap
            found = find(self.problem, self.projection)
        return Weights(found[0], 0.0, found[1].checked(), self)

    def _below_cap(self, mu: float) -> Weights | None:
        """Return the weights by least squares with few clients; None if it did not find a minimum."""
        p, alpha = self.problem, self._least_squares(mu)
        if alpha[alpha.argmax()] <= (1.0 + _BARELY_MET) * self.cap:
            return self._without_cap(lambda: self.uncapped.at_mu(mu))
        alpha = least_squares_below_cap(p, alpha, mu)
        certificate = certify_primal(p, alpha, mu)
        return Weights(alpha, mu * p.N, certificate, self) if certificate.relative_gap <= _REFINE_GAP else None

    def _without_cap(self, solve: Callable[[], Weights]) -> Weights | None:
        """Return the answer without the cap; None if it exceeds the cap or was not proven."""
        with suppress(CertificateError):
            weights = solve()
            if weights.alpha.max() <= self.cap:
                return replace(weights, _instance=self)
        return None

    def at_ess(self, ess: float, start: _Start | None = None) -> tuple[Weights, _Start | None]:
        """Return the weights with ESS ``ess``, and the (μ, u) of those without the cap."""
        with suppress(CertificateError):
            weights, start = self.uncapped.at_ess(ess, start)
            if weights.alpha.max() <= self.cap:
                return replace(weights, _instance=self), start
        return super().at_ess(ess, start)[0], start


def solve(
    counts: Any,
    target: npt.ArrayLike | Mapping[str, float],
    *,
    lam: float | None = None,
    ess: float | None = None,
    max_weight: float | None = None,
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
    max_weight
        Largest weight that a client may have; no limit unless given. At least 1/(number of clients with samples). An
        ESS that no such weights reach is ``clamped`` as well.

    Raises
    ------
    InputError
        If the input is not valid; names argument, row, label and value.
    CertificateError
        If the answer could not be proven optimal.

    Examples
    --------
    >>> weights = solve([[80, 20], [10, 90]], [0.5, 0.5], lam=0)
    >>> weights.alpha.round(4).tolist()
    [0.5714, 0.4286]
    >>> weights.covered
    True
    """
    if (lam is None) == (ess is None):
        raise InputError("give either lam=… or ess=…, for instance ess=0.5")
    if lam is not None and not lam >= 0:
        raise InputError(f"lam is {lam}; it must be a number ≥ 0, or math.inf for FedAvg")
    if ess is not None and not 0 < ess <= 1:
        raise InputError(f"ess is {ess}; it must be a fraction of all samples in (0, 1], for instance 0.5")
    with one_blas_thread(getattr(counts, "shape", ())):
        instance = _instance(counts, target, max_weight)
        if lam is not None:
            return instance.at_mu(float(lam) / instance.problem.N)
        assert ess is not None
        return instance.at_ess(ess)[0]


def ess_grid(
    counts: Any,
    target: npt.ArrayLike | Mapping[str, float],
    l: int,  # noqa: E741
    *,
    max_weight: float | None = None,
) -> tuple[Weights, ...]:
    """Solve for ``l`` equally spaced ESS between that of λ → 0⁺ and FedAvg's 100 %, both excluded.

    This is the paper's strategy if it is unclear which λ to try (appendix "Choice of λ"), in ascending
    order of ESS. The result is empty if T is the pooled marginal: there is no ESS in between. With ``max_weight``,
    the grid ends below the highest ESS that it allows.
    """
    if l < 1:
        raise InputError(f"l is {l}; a grid needs at least one value")
    with one_blas_thread(getattr(counts, "shape", ())):
        instance = _instance(counts, target, max_weight)
        lowest, highest = instance.limit.ess, instance.problem.highest_ess
        if lowest >= highest:
            return ()
        answers, start = [], None
        for ess in np.linspace(highest, lowest, l + 2)[1:-1].tolist():
            weights, start = instance.at_ess(ess, start)
            answers.append(weights)
        return tuple(reversed(answers))


def coverage(counts: Any, target: npt.ArrayLike | Mapping[str, float]) -> Projection:
    """Decide, with a proof, whether T is covered by the clients (Assumption 2); also return its squared distance."""
    with one_blas_thread(getattr(counts, "shape", ())):
        return _instance(counts, target).projection


def _instance(counts: Any, target: npt.ArrayLike | Mapping[str, float], max_weight: float | None = None) -> _Instance:
    checked, T = match(LabelCounts.of(counts), target)
    if max_weight is None:
        return _Instance(checked, T)
    check_cap(max_weight, checked.sizes)
    return _CappedInstance(checked, T, float(max_weight))
