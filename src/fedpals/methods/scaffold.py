"""SCAFFOLD: control variates take the client drift out of every local step (Karimireddy et al., 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedpals.methods.option import option
from fedpals.methods.rule import ClientRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Scaffold(ClientRule):
    """Every step follows ∇f_i(w) − c_i + c, with c_i renewed by option II.

    The server keeps c = Σ_i a_i c_i over all clients, where a are the weights of the objective
    Σ a_i f_i: n_i/N for FedAvg's, α_i for FedPALS's. A round changes c by the participants' share of
    that sum only, so c stays the mean whoever takes part.
    """

    name: ClassVar[str] = "scaffold"
    server_step: float = option(1.0, "Server step size of SCAFFOLD", gt=0, lt=math.inf)
    """η_g: the global parameters move so far towards the weighted average of the clients'."""

    def correction(self, server: Tensor | None, client: Tensor | None, like: Tensor) -> Tensor | None:
        """c − c_i."""
        zero = like.new_zeros(like.shape)
        return (zero if server is None else server) - (zero if client is None else client)

    def adjust_gradient(self, gradient: Tensor, vector: Tensor, start: Tensor, correction: Tensor | None) -> None:
        """∇ += c − c_i."""
        del vector, start
        if correction is not None:
            gradient.add_(correction)

    def client_state(
        self,
        correction: Tensor | None,
        client: Tensor | None,
        start: Tensor,
        end: Tensor,
        steps: int,
        learning_rate: float,
    ) -> Tensor | None:
        """c_i⁺ = c_i − c + (w_t − w_i)/(steps·η), option II; the first two terms are −correction."""
        del client
        mean_gradient = (start - end) / (max(steps, 1) * learning_rate)
        return mean_gradient if correction is None else mean_gradient - correction

    def server_state(self, server: Tensor | None, changes: list[tuple[float, Tensor]], like: Tensor) -> Tensor | None:
        """c⁺ = c + Σ_{i participates} a_i (c_i⁺ − c_i)."""
        total = like.new_zeros(like.shape).double() if server is None else server.double()
        for share, change in changes:
            total = total + share * change.double()
        return total.float()

    def step(self, start: Tensor, average: Tensor) -> Tensor:
        """w_{t+1} = w_t + η_g (Σ α_i w_i − w_t)."""
        return average if self.server_step == 1.0 else start + self.server_step * (average - start)
