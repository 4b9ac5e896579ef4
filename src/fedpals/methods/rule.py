"""How clients train: the hooks by which methods differ. Loads no torch, as a configuration need not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedpals.labels import LabelCounts, Vector

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ClientRule:
    """How a client trains: plain SGD. Other rules override the hooks they need.

    Some rules keep a vector per client, and some send every client one of the server (control variates); a rule
    without returns None for them.
    """

    name: ClassVar[str] = "sgd"
    full_batch: ClassVar[bool] = False
    """Take one step with all samples instead of following the plan (FedSGD)."""
    needs_gradients: ClassVar[bool] = False
    """Whether `client_state` takes the mean gradient of the steps, which costs a sum in each of them."""
    tells_target: ClassVar[bool] = False
    """Whether the server's vector lets clients find out the target's label marginal T."""

    @property
    def keeps_vectors(self) -> bool:
        """Whether every client keeps a vector from round to round, which it sends with its update."""
        return type(self).client_state is not ClientRule.client_state

    def adjust_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        """Change the logits, (batch, K), before the loss; ``counts`` are the client's own label counts, (K,)."""
        del counts
        return logits

    def logit_map(self, counts: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return factor and offset, (K,) both, so that `adjust_logits` is factor · logits + offset; None if it is not.

        With them, some networks compute loss and gradient at once; without, torch differentiates the loss. A
        subclass that overrides `adjust_logits` alone returns None.
        """
        return counts.new_ones(counts.shape).float(), counts.new_zeros(counts.shape).float()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        map_owner, logits_owner = (
            next(c for c in cls.__mro__ if name in vars(c)) for name in ("logit_map", "adjust_logits")
        )
        if not issubclass(map_owner, logits_owner):  # the map is that of another adjust_logits
            cls.logit_map = _no_logit_map  # type: ignore[method-assign]

    def label_weights(self, counts: Tensor, server: Tensor | None) -> Tensor | None:
        """Return the weights of labels in the loss of clients with label ``counts``, both (…, K); None for 1.

        ``server`` is the rule's vector of the server.
        """
        del counts, server
        return None

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
        self, client: Tensor | None, start: Tensor, end: Tensor, mean_gradient: Tensor | None
    ) -> Tensor | None:
        """Return the client's new vector after its round from ``start`` to ``end``.

        ``mean_gradient`` is the mean of the steps' gradients before `adjust_gradient`; None unless `needs_gradients`.
        """
        del client, start, end, mean_gradient
        return None

    def server_vector(
        self, clients: Sequence[tuple[float, Tensor]], counts: LabelCounts, target: Vector
    ) -> Tensor | None:
        """Return the vector that the server sends to every client of a round.

        ``clients`` are the vectors of all clients that have one, each with its weight in the population; ``counts``
        and ``target`` are what the server takes for label counts and T.
        """
        del clients, counts, target
        return None

    def step(self, start: Tensor, average: Tensor) -> Tensor:
        """Return the new global vector from the old one and the weighted average of the clients'."""
        del start
        return average


def _no_logit_map(self: ClientRule, counts: Tensor) -> None:
    """Say that `adjust_logits` may be anything."""
    del self, counts
