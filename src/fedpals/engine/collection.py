"""Which updates a round uses: refuse what cannot be used, and weigh the other clients afresh."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedpals.engine.client import Update
from fedpals.engine.outliers import Lengths, outliers, shortened_update, with_far
from fedpals.engine.protection import Protection
from fedpals.engine.refusal import usual_shape, why_refused
from fedpals.engine.round import Outlier, Refusal
from fedpals.errors import FedpalsError
from fedpals.labels import Indices, Vector


class DivergedError(FedpalsError, ArithmeticError):
    """No client returned an update that can be used, or all together are not finite."""


Train = Callable[[Sequence[int]], Iterable[Update | str]]
"""Trains clients; for each in order its update, or why there is none."""
Weigh = Callable[[Indices], Sequence[Vector]]
"""Returns the candidates for the weights of participants."""


@dataclass(frozen=True, eq=False)
class Collected:
    """The updates of a round, and the weights that they may get."""

    participants: Indices
    candidates: Sequence[Vector]
    updates: dict[int, Update]
    refused: tuple[Refusal, ...]
    outliers: tuple[Outlier, ...]
    lengths: Lengths
    """What is usual for each client from now on."""
    distrusted: frozenset[int]
    """Clients that have sent what was refused: no vector of the rule of theirs counts until they are in line again."""

    @property
    def vectors(self) -> list[Tensor | None]:
        """The participants' parameters; None for those that have weight in no candidate."""
        weighed = np.any(self.candidates, axis=0).tolist()
        return [self.updates[i].vector if w else None for i, w in zip(self.participants.tolist(), weighed, strict=True)]

    @property
    def trained(self) -> int:
        """How many participants have weight in a candidate."""
        return int(np.any(self.candidates, axis=0).sum())

    def loss(self, alpha: Vector) -> float:
        """Σ α_i of the clients' mean losses, without those that count as no change; NaN if one, or nobody, tells it."""
        no_change = {refusal.client for refusal in self.refused}
        shares = {i: a for i, a in zip(self.participants.tolist(), alpha.tolist(), strict=True) if a > 0}
        told = {i: loss for i in shares if i not in no_change and (loss := self.updates[i].loss) is not None}
        if not told or len(told) < len(shares.keys() - no_change):
            return float("nan")
        loss = sum(shares[i] * told[i] for i in told)
        return float(loss if len(told) == len(shares) else loss / sum(shares[i] for i in told))


def collect(
    number: int,
    participants: Indices,
    weigh: Weigh,
    train: Train,
    *,
    start: Tensor,
    sizes: Vector,
    lengths: Lengths,
    keeps_vectors: bool,
    rule_vector: Tensor | None,
    protection: Protection,
) -> Collected:
    """Train every participant that has weight in a candidate; refuse what cannot be used, weigh the rest afresh.

    ``start`` is the global vector; ``sizes`` are all clients' numbers of samples, and ``lengths`` what is usual for
    them; ``rule_vector`` is one of the rule's vectors, where it ``keeps_vectors`` and has some. With privacy an update
    with values that cannot be used counts as no change, because weights must not depend on samples; nor must it whether
    the round takes place, so that this holds for all updates of a round at once, too.
    """
    updates: dict[int, Update] = {}
    refused: list[Refusal] = []
    named: list[Outlier] = []
    distrusted: set[int] = set()
    shape = None if rule_vector is None else rule_vector.shape
    while participants.size:
        candidates = weigh(participants)
        weighed = participants[np.any(candidates, axis=0)].tolist()
        missing = [i for i in weighed if i not in updates]
        replies = list(train(missing)) if missing else []
        if replies and keeps_vectors and shape is None:
            shape = usual_shape(replies, start)
        for i, update in zip(missing, replies, strict=True):
            reason = update if isinstance(update, str) else why_refused(update, start, shape)
            if isinstance(update, Update) and reason is None:
                updates[i] = update
            elif isinstance(update, Update) and protection.private and update.vector.shape == start.shape:
                updates[i] = Update(start, None, update.steps)
                refused.append(Refusal(i, f"{reason}; with noise for privacy it counts as no change"))
            else:
                distrusted |= {i} if isinstance(update, Update) else set()
                refused.append(Refusal(i, str(reason)))
                participants = participants[participants != i]
        if missing:
            continue
        far: list[Outlier] = []
        after = lengths
        if not protection.private:
            far, after = outliers({i: updates[i] for i in weighed}, start, sizes, lengths)
        named += far
        for outlier in far if protection.outliers == "clip" else ():
            updates[outlier.client] = shortened_update(updates[outlier.client], start, outlier)
        if far and protection.outliers == "refuse":
            reasons = {outlier.client: str(outlier) for outlier in far}
            refused += [Refusal(client, reason) for client, reason in reasons.items()]
            distrusted |= reasons.keys()
            lengths = with_far(lengths, after)
            updates = {i: update for i, update in updates.items() if i not in reasons}
            participants = participants[~np.isin(participants, list(reasons))]
            continue
        return Collected(participants, candidates, updates, tuple(refused), tuple(named), after, frozenset(distrusted))
    examples = "; ".join(f"client {refusal.client}: {refusal.reason}" for refusal in refused[:3])
    raise DivergedError(f"round {number}: no client returned a usable update ({examples or 'nobody took part'})")
