"""The same problem with a cap on every client's weight, `max_weight`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np

from fedpals.errors import CertificateError
from fedpals.labels import LabelCounts, Vector
from fedpals.weights.cap import check_cap, leaves_one_choice
from fedpals.weights.capped_projection import project_below_cap
from fedpals.weights.certificate import FALLBACK_GAP, Certificate, certify_primal
from fedpals.weights.instance import MAX_MU, MIN_MU, QP_CLIENTS, Instance, Start, Weights
from fedpals.weights.limit import covering_limit, limit, limit_below_cap
from fedpals.weights.problem import Problem
from fedpals.weights.projection import Projection
from fedpals.weights.threads import one_blas_thread
from fedpals.weights.tradeoff import ROUNDING

_FEW_CLIENTS = 48
"""Number of clients up to which steps in their space are faster than on the dual, even with fewer labels."""
_PROJECTION_MU = 1e-6
"""λ/N whose weights a projection with a cap starts from."""


class CappedInstance(Instance):
    """The same with a cap on the weights. A cap that does not bind changes nothing but, at most, the last bits."""

    def __init__(self, counts: LabelCounts, target: Vector, cap: float) -> None:
        clients = int(np.count_nonzero(counts.sizes))
        check_cap(cap, clients)
        self.counts = counts
        self.problem = Problem.of(counts, target, cap)
        self.cap = cap
        self._has_one_choice = leaves_one_choice(cap, clients)

    @cached_property
    def uncapped(self) -> Instance:
        """The same problem without the cap."""
        return Instance(self.counts, self.problem.T)

    @property
    def has_few_clients(self) -> bool:
        """Whether there are no more clients than labels, or so few that steps in their space are faster anyway."""
        return self.problem.w.size <= max(self.problem.T.size, _FEW_CLIENTS)

    def at_mu(self, mu: float) -> Weights:
        """Return the weights for λ = μN."""
        if mu >= MAX_MU:
            return self.fedavg
        if mu < MIN_MU:
            return self.limit
        if self._has_one_choice:
            only = replace(self.fedavg, lam=mu * self.problem.N)
            return self._without_cap(lambda: self.uncapped.at_mu(mu)) or only
        if self.problem.w.size <= QP_CLIENTS:
            return self.from_program(mu, self.program.solve(mu))
        return self.from_dual(mu, self.solver.solve(mu))

    def at_ess(self, ess: float, start: Start | None = None) -> tuple[Weights, Start | None]:
        """Return the weights with ESS ``ess``; the highest that the cap allows is known up to rounding."""
        highest = self.problem.highest_ess
        ess = max(ess, highest) if ess >= highest * (1.0 - ROUNDING) else ess
        try:
            return super().at_ess(ess, start)
        except CertificateError:
            if (free := self._without_cap(lambda: self.uncapped.at_ess(ess)[0])) is None:
                raise
            return free, start

    @cached_property
    def _covering_limit(self) -> tuple[Vector, Certificate] | None:
        """Weights at λ → 0⁺ below the cap that prove T to be covered; None if not worth trying, or not found."""
        M, K = self.problem.C.shape
        if max(K, QP_CLIENTS) >= M:
            return None
        with suppress(CertificateError):
            if not self.uncapped.projection.covered:
                return None
        return covering_limit(self.problem)

    @cached_property
    def _near_limit(self) -> Vector:
        """Weights for a λ near 0, to start a projection from."""
        if self.problem.w.size <= QP_CLIENTS:
            alpha = self.program.solve(_PROJECTION_MU)
            if certify_primal(self.problem, alpha, _PROJECTION_MU).relative_gap <= FALLBACK_GAP:
                return alpha
        return self.solver.solve(_PROJECTION_MU).weights(self.problem)[0]

    @cached_property
    def _free_limit(self) -> Weights | None:
        """Weights at λ → 0⁺ without the cap, if none exceeds it.

        Of few clients, they are not computed where weights for a λ near 0, which take less time, have come to the cap.
        """
        if self.problem.w.size <= QP_CLIENTS and not self._has_one_choice and self._near_limit.max() >= self.cap:
            return None
        return self._without_cap(lambda: self.uncapped.limit)

    @cached_property
    def projection(self) -> Projection:
        """The projection onto the mixes of weights below the cap."""
        with one_blas_thread(self.problem.C.shape):
            if self._covering_limit is not None:
                return Projection(self._covering_limit[0], self.problem.T, 0.0, covered=True, margin=0.0, error=0.0)
            if self._free_limit is not None:
                return replace(self.uncapped.projection, alpha=self._free_limit.alpha)
            return project_below_cap(self.problem, self._near_limit)

    @cached_property
    def limit(self) -> Weights:
        """Weights at λ → 0⁺."""
        if self._covering_limit is None and self._free_limit is not None:
            return self._free_limit
        if self._has_one_choice:
            return replace(self.fedavg, lam=0.0)
        found = self._covering_limit
        if found is None:
            find = limit if self.projection.covered else limit_below_cap
            found = find(self.problem, self.projection)
        return Weights(found[0], 0.0, found[1].checked(), self)

    def _without_cap(self, solve: Callable[[], Weights]) -> Weights | None:
        """Return the answer without the cap; None if it exceeds the cap or was not proven."""
        with suppress(CertificateError):
            weights = solve()
            if weights.alpha.max() <= self.cap:
                return replace(weights, _instance=self)
        return None
