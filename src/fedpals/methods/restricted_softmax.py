"""FedRS: labels that a client lacks do not push its classifier away from them (Li and Zhan, 2021).

The paper and the program that its authors released differ. ``fedrs_graded``, or ``fedrs`` for short, has the factor of
the program in the first step of a round, held through the round, and is the stronger of the two as trained where
clients have few samples of most labels; ``fedrs_binary`` is the formula of the paper. Where a client has equally many
samples of each of its labels they are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedpals.methods.option import option
from fedpals.methods.rule import ClientRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GradedSoftmax(ClientRule):
    """Scales logits by f = a + (1 − a)·n_c/max n, with n_c the client's samples of a label.

    So rare labels are held back too, not only absent ones. The authors' program has this factor in the first step of a
    round and puts it in the place of n_c in the next, so that 1 − f shrinks by 1 − a with every step, and soon the
    softmax is plain. It is held here, as in the paper, because otherwise a round of more than a few steps is FedAvg's.
    Their classifier has no bias; that of a network here is scaled with the rest of the logit. They also clip gradients.
    """

    name: ClassVar[str] = "graded_softmax"
    absent_factor: float = option(0.5, "Factor a of FedRS on absent labels' logits", ge=0, le=1)
    """1 is the plain softmax, with 0 their weights do not move at all."""

    def adjust_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        """Multiply the logits by the factors."""
        return logits * self._factor(counts)

    def logit_map(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors and the offset 0."""
        factor = self._factor(counts)
        return factor, factor.new_zeros(factor.shape)

    def _factor(self, counts: Tensor) -> Tensor:
        return self.absent_factor + (1.0 - self.absent_factor) * (counts / counts.max())


@dataclass(frozen=True)
class BinarySoftmax(GradedSoftmax):
    """The paper's formula: scales the logits of labels that the client does not have by a, and no others."""

    name: ClassVar[str] = "binary_softmax"

    def _factor(self, counts: Tensor) -> Tensor:
        return (counts > 0).float().clamp(min=self.absent_factor)
