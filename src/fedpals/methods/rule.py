"""How clients train: the hooks by which methods differ. Loads no torch, as a configuration need not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedpals.labels import Vector

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ClientRule:
    """How a client trains: plain SGD. Other rules override the hooks they need.

    Some rules keep a vector per client and one at the server (control variates); a rule that keeps
    none returns None for them.
    """

    name: ClassVar[str] = "sgd"
    full_batch: ClassVar[bool] = False
    """Take one step with all samples instead of following the plan (FedSGD)."""

    def adjust_logits(self, logits: Tensor, marginal: Tensor) -> Tensor:
        """Change the logits, (batch, K), before the loss; ``marginal`` is the client's own S_i, (K,)."""
        del marginal
        return logits

    def logit_map(self, marginal: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return factor and offset, (K,) both, so that `adjust_logits` is factor · logits + offset; None if it is not.

        With them, some networks compute loss and gradient at once; without, torch differentiates the loss. A
        subclass that overrides `adjust_logits` alone returns None.
        """
        return marginal.new_ones(marginal.shape), marginal.new_zeros(marginal.shape)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        map_owner, logits_owner = (
            next(c for c in cls.__mro__ if name in vars(c)) for name in ("logit_map", "adjust_logits")
        )
        if not issubclass(map_owner, logits_owner):  # the map is that of another adjust_logits
            cls.logit_map = _no_logit_map  # type: ignore[method-assign]

    def learned_prior(self, mix: Vector) -> Vector:
        """Return the label marginal, up to a factor, that a model has built in after training on the ``mix`` p_α."""
        return mix

    def adjust_gradient(self, gradient: Tensor, vector: Tensor, start: Tensor, correction: Tensor | None) -> None:
        """Change the gradient of a step at ``vector`` in place; ``start`` is the round's global vector."""

    def correction(self, server: Tensor | None, client: Tensor | None, like: Tensor) -> Tensor | None:
        """Return what this client adds to every gradient of the round."""
        del server, client, like
        return None

    def client_state(
        self,
        correction: Tensor | None,
        client: Tensor | None,
        start: Tensor,
        end: Tensor,
        steps: int,
        learning_rate: float,
    ) -> Tensor | None:
        """Return the client's new vector after its round."""
        del correction, client, start, end, steps, learning_rate
        return None

    def server_state(self, server: Tensor | None, changes: list[tuple[float, Tensor]], like: Tensor) -> Tensor | None:
        """Return the server's new vector from the clients' changes, each with its share of the population."""
        del server, changes, like
        return None

    def step(self, start: Tensor, average: Tensor) -> Tensor:
        """Return the new global vector from the old one and the weighted average of the clients'."""
        del start
        return average


def _no_logit_map(self: ClientRule, marginal: Tensor) -> None:
    """Say that `adjust_logits` may be anything."""
    del self, marginal
