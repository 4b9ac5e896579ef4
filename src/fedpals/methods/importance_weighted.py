"""IW-ERM: every client minimises its loss under the target's label marginal, by importance weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from fedpals.labels import LabelCounts, Vector
from fedpals.methods.option import option
from fedpals.methods.rule import ClientRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ImportanceWeighted(ClientRule):
    """Weighs the loss of a sample with label y by w(y) = min(T(y)/S(y), clip), up to a factor; labels nobody has by 0.

    With the source ``client``, S is the client's own marginal S_i, and w is self-normalised: its mean over the client's
    samples is 1. A client without any label of the target stays where it is. With ``pooled``, S is the marginal of all
    clients' samples together, and the mean over all of them is 1: unclipped, and weighted by size, the clients' losses
    add up to the target's.

    Clients must be told T, or weights from which it may be found out: the one method here that needs this.
    """

    name: ClassVar[str] = "importance_weighted"
    tells_target: ClassVar[bool] = True
    importance_source: Literal["client", "pooled"] = option(
        "client", "What IW-ERM divides T by: the marginal of each client, or that of all clients pooled"
    )
    importance_clip: float = option(10.0, "Largest importance weight of IW-ERM", ge=1, lt=math.inf)
    """Before weights are normalised."""

    def server_vector(
        self, clients: Sequence[tuple[float, Tensor]], counts: LabelCounts, target: Vector
    ) -> Tensor | None:
        """T, or the weights for the pooled marginal; (K,)."""
        import torch  # here, because a configuration is read without it

        del clients
        told = torch.from_numpy(np.asarray(target, dtype=np.float64))
        if self.importance_source == "pooled":
            told = self._weights(torch.from_numpy(np.asarray(counts.sizes @ counts.marginals)), told)
        return told.float()

    def label_weights(self, counts: Tensor, server: Tensor | None) -> Tensor | None:
        """w, (…, K)."""
        assert server is not None
        told = server.to(counts.device)
        return told.expand(counts.shape) if self.importance_source == "pooled" else self._weights(counts, told)

    def _weights(self, counts: Tensor, target: Tensor) -> Tensor:
        """Return min(T/S, clip), where S are the shares of ``counts``, (…, K), over its mean under S."""
        total = counts.sum(-1, keepdim=True)
        # T float32 over S float32 is 1 where they are the same, so that nothing is weighted then.
        ratio = (target.float() / (counts / total).float()).clamp(max=self.importance_clip).double()
        ratio = ratio.where(counts > 0, 0.0)
        mean = (counts * ratio).sum(-1, keepdim=True) / total
        return (ratio / mean).where(mean > 0, 0.0).float()
