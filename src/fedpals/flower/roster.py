"""Who the clients are: Flower's nodes as rows of the table of label counts.

A node is asked for its counts once, and again only when it comes back from an absence. Rows keep their
number for the whole run, whoever joins or leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import RecordDict

from fedpals.engine.refusal import Refused
from fedpals.errors import InputError
from fedpals.flower import messages
from fedpals.labels import Indices, LabelCounts
from fedpals.labels.private import repair

_EXACT = 2.0**53
"""Up to this, a float64 holds every whole number."""


@dataclass(frozen=True)
class Member:
    """A row: the node that holds it, the client's own number, its label counts, and how many samples it holds out."""

    node: int
    number: int | None
    counts: tuple[int, ...]
    held_out: int = 0


class Roster:
    """The clients that have told their counts, and the nodes that are connected.

    ``labels`` is K; where nobody knows it, the first answer decides. ``cap`` bounds n_i: a client that
    claims more counts as ``cap`` samples with the same labels.
    """

    def __init__(self, labels: int | None, cap: int | None = None, members: Iterable[Member] = ()) -> None:
        self.labels, self.cap = labels, cap
        self.members = list(members)
        self.refused: dict[int, str] = {}
        """Connected nodes whose counts cannot be used, and why."""
        self._heard: set[int] = set()
        """Nodes that have told their counts since they connected."""

    def connected(self, nodes: Iterable[int]) -> list[int]:
        """Note which nodes are there; return those to ask for their counts, in ascending order."""
        there = set(nodes)
        self._heard &= there
        self.refused = {node: why for node, why in self.refused.items() if node in there}
        return sorted(there - self._heard - self.refused.keys())

    def hear(self, answers: Mapping[int, RecordDict]) -> None:
        """Take in what nodes answered; new clients are numbered by their own number, then by node."""
        told: list[tuple[bool, int, int, messages.Introduction]] = []
        for node, content in answers.items():
            try:
                client = messages.read_labelcounts(content)
            except Refused as why:
                self.refused[node] = str(why)
            else:
                told.append((client.number is None, client.number or 0, node, client))
        for *_, node, client in sorted(told, key=lambda row: row[:3]):
            try:
                self._admit(node, client)
            except Refused as why:
                self.refused[node] = str(why)

    def _admit(self, node: int, told: messages.Introduction) -> None:
        counts, row = self._checked(told), self.row(node)
        if row is None and told.number is not None:
            # A node that was restarted, or a resumed run, comes with new node ids.
            free = (i for i, m in enumerate(self.members) if m.number == told.number and m.node not in self._heard)
            row = next(free, None)
        if row is None:
            self.members.append(Member(node, told.number, counts, told.held_out))
        else:
            if told.epsilon is None:  # a restarted node draws other noise; the first counts hold in any case
                self.unchanged(row, counts)
            self.members[row] = replace(self.members[row], node=node, held_out=told.held_out)
        self._heard.add(node)

    def _checked(self, told: messages.Introduction) -> tuple[int, ...]:
        counts = told.counts
        labels = len(counts) if self.labels is None else self.labels
        if len(counts) != labels or not labels:
            raise Refused(f"{len(counts)} label counts instead of {labels}")
        if told.epsilon is not None:
            counts = _repaired(counts)
        if any(counts):
            try:
                LabelCounts.of([counts])
            except InputError as error:
                raise Refused(str(error)) from None
        if (most := max(sum(counts), told.held_out)) > _EXACT:
            raise Refused(f"it claims {most:g} samples")
        self.labels = labels
        return tuple(int(count) for count in counts)

    def unchanged(self, row: int, counts: Sequence[float]) -> None:
        """Raise `Refused` where a client tells other counts than before."""
        known = self.members[row].counts
        if tuple(counts) != known:
            told = f"{sum(counts):g} samples instead of {sum(known):g}" if sum(counts) != sum(known) else "other labels"
            raise Refused(f"its label counts changed ({told}); the first ones hold")

    def row(self, node: int) -> int | None:
        """Return the row of a node, or None."""
        return next((i for i, member in enumerate(self.members) if member.node == node), None)

    @property
    def present(self) -> Indices:
        """The rows of the clients that are connected and whose counts hold, in ascending order."""
        return np.array([i for i, member in enumerate(self.members) if member.node in self._heard], dtype=np.int64)

    @property
    def counts(self) -> LabelCounts:
        """The M×K table; the counts of a client above ``cap`` are scaled down to whole numbers."""
        table = np.array([member.counts for member in self.members], dtype=np.float64)
        for row in self.capped:
            table[row] = np.floor(table[row] * (self.cap or 0) / table[row].sum())
        return LabelCounts.of(table)

    @property
    def capped(self) -> list[int]:
        """The rows that claim more samples than ``cap``."""
        cap = self.cap
        return [] if cap is None else [i for i, member in enumerate(self.members) if sum(member.counts) > cap]


def _repaired(noisy: Sequence[float]) -> Sequence[float]:
    """Return the closest counts that a client can have; none where the noise outweighs its samples."""
    if any(not count.is_integer() or abs(count) > _EXACT for count in noisy):
        raise Refused("its noisy label counts are no whole numbers that a float can hold")
    if sum(noisy) <= 0:
        return [0.0] * len(noisy)
    table = repair(np.array([noisy], dtype=np.int64)).table
    return [float(count) for count in np.asarray(table)[0]]
