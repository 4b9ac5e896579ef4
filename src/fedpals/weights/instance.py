"""One problem (counts, target): its weights for every λ and ESS, by the solver that fits its size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from fedpals.labels import LabelCounts, Vector
from fedpals.weights.active_set import ActiveSet
from fedpals.weights.certificate import EXACT_CERTIFICATE, FALLBACK_GAP, Certificate, certify_dual, certify_primal
from fedpals.weights.dual import Newton, Point
from fedpals.weights.limit import covering_limit, limit
from fedpals.weights.problem import Problem
from fedpals.weights.projection import Projection, project
from fedpals.weights.quadratic import QuadraticProgram
from fedpals.weights.refine import refine
from fedpals.weights.threads import one_blas_thread
from fedpals.weights.tradeoff import mu_for_ess

QP_CLIENTS = 100
"""Number of clients up to which a quadratic program with an unknown per client is faster than Newton on the dual."""
_FEW_CLIENTS = 4096
"""Number of clients up to which a better answer is looked for from a smaller gap on, since it costs little."""
_REFINE_GAP = 1e-13
"""Relative gap above which weights of few clients are refined."""
_MANY_LABELS = 150
"""Number of labels from which it is tried whether T is covered before it is projected."""
MIN_MU = 1e-12
"""λ/N below which the weights are those of the limit λ → 0⁺."""
Start: TypeAlias = tuple[float, Vector]
"""μ and u to start a search from."""
MAX_MU = 1e17
"""λ/N from which the weights are FedAvg's: no weight differs by more than its rounding."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Aggregation weights for one target, their properties, and the proof that they are optimal."""

    alpha: Vector
    """α_i ≥ 0 per client, Σα = 1, none above ``max_weight``; 0 for a client without samples."""
    lam: float
    """λ of the paper's equation; 0 stands for the limit λ → 0⁺ and ∞ for FedAvg, or the closest that the cap allows."""
    certificate: Certificate
    _instance: Instance = field(repr=False)
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


class Instance:
    """One pair (counts, target) and what all its weights share: problem, Newton matrix, projection, limit."""

    def __init__(self, counts: LabelCounts, target: Vector) -> None:
        self.counts = counts
        self.problem = Problem.of(counts, target)

    @cached_property
    def projection(self) -> Projection:
        """The projection of T onto the mixes of the clients."""
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
    def program(self) -> QuadraticProgram:
        """The problem of few clients as a quadratic program."""
        return QuadraticProgram(self.problem)

    @cached_property
    def newton(self) -> Newton:
        """Newton's iteration on the dual."""
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
        if mu >= MAX_MU:
            return self.fedavg
        if mu < MIN_MU:
            return self.limit
        if self.problem.w.size > QP_CLIENTS:
            return self.from_dual(mu, self.solver.solve(mu))
        return self.from_program(mu, self.program.solve(mu))

    def at_ess(self, ess: float, start: Start | None = None) -> tuple[Weights, Start | None]:
        """Return the weights with ESS ``ess``, from a nearby (μ, u), and the (μ, u) that they belong to."""
        highest = self.problem.highest_ess
        if ess >= highest:
            return replace(self.fedavg, clamped=ess > highest), start
        solution = mu_for_ess(self.solver, ess, lambda: self.limit.ess, start)
        if solution is None:
            return replace(self.limit, clamped=ess < self.limit.ess), start
        mu, point = solution
        return self.from_dual(mu, point), (mu, point.u)

    def from_program(self, mu: float, alpha: Vector) -> Weights:
        """Return the weights that the quadratic program found; those of another solver if they are not proven."""
        certificate = certify_primal(self.problem, alpha, mu)
        if certificate.relative_gap <= _REFINE_GAP:
            return Weights(alpha, mu * self.problem.N, certificate, self)
        return self.from_dual(mu, self.solver.solve(mu))

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
