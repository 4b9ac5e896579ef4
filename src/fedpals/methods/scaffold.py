"""SCAFFOLD: control variates take the client drift out of every local step (Karimireddy et al., 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedpals.labels import LabelCounts, Vector
from fedpals.methods.option import option
from fedpals.methods.rule import ClientRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Scaffold(ClientRule):
    """Every step follows ∇f_i(w) − c_i + c, where c_i is the mean gradient ∇f_i of the client's last round.

    With plain SGD that is option II of the paper, c_i − c + (w_t − w_i)/(steps·η), up to rounding. With momentum,
    weight decay, clipping or Adam the way w_t − w_i is not a sum of gradients, but the mean is what it was.

    The server sends c = Σ_i a_i c_i over all clients, where a are the weights of the objective Σ a_i f_i: n_i/N for
    FedAvg's, α_i for FedPALS's, the mixture for AFL's. It adds c up afresh in every round, so c is the mean for the
    weights of that round, whoever takes part and however they change. A client that never took part has c_i = 0.
    """

    name: ClassVar[str] = "scaffold"
    needs_gradients: ClassVar[bool] = True
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
        self, client: Tensor | None, start: Tensor, end: Tensor, mean_gradient: Tensor | None
    ) -> Tensor | None:
        """c_i⁺ = mean of ∇f_i over the steps."""
        del client, start, end
        return mean_gradient

    def server_vector(
        self, clients: Sequence[tuple[float, Tensor]], counts: LabelCounts, target: Vector
    ) -> Tensor | None:
        """c = Σ a_i c_i, in double precision."""
        del counts, target
        if not clients:
            return None
        total = clients[0][1].new_zeros(clients[0][1].shape).double()
        for share, vector in clients:
            total.add_(vector.double(), alpha=share)
        return total.float()

    def step(self, start: Tensor, average: Tensor) -> Tensor:
        """w_{t+1} = w_t + η_g (Σ α_i w_i − w_t)."""
        return average if self.server_step == 1.0 else start + self.server_step * (average - start)
