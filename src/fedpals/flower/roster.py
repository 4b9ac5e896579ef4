"""The list of clients: Flower's nodes as rows of the table of label counts.

A node is asked for its counts once, and again only after it was disconnected. Rows keep their number for the whole run,
even if other nodes join or leave.
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

_LARGEST_EXACT_COUNT = 2.0**53
"""Bound up to which float64 represents every whole number exactly."""


@dataclass(frozen=True)
class Member:
    """A row: its node, the client's own number, its label counts, and its number of held-out samples."""

    node: int
    number: int | None
    counts: tuple[int, ...]
    held_out: int = 0


class Roster:
    """The clients that have sent their counts, and the nodes that are connected.

    ``labels`` is K; if None, the first answer decides. ``cap`` bounds n_i: a client that claims more counts as ``cap``
    samples with the same label shares.
    """

    def __init__(self, labels: int | None, cap: int | None = None, members: Iterable[Member] = ()) -> None:
        self.labels, self.cap = labels, cap
        self.members = list(members)
        self.refused: dict[int, str] = {}
        """Reasons for which connected nodes are refused, by node."""
        self._ready_nodes: set[int] = set()
        """Nodes that have sent their counts since they connected."""

    def connected(self, nodes: Iterable[int]) -> list[int]:
        """Update the connected nodes; return those to ask for their counts, in ascending order."""
        online = set(nodes)
        self._ready_nodes &= online
        self.refused = {node: reason for node, reason in self.refused.items() if node in online}
        return sorted(online - self._ready_nodes - self.refused.keys())

    def hear(self, answers: Mapping[int, RecordDict]) -> None:
        """Add the clients that answered; new rows are ordered by the clients' own number, then by node."""
        clients: list[tuple[bool, int, int, messages.Introduction]] = []
        for node, content in answers.items():
            try:
                client = messages.read_labelcounts(content)
            except Refused as refusal:
                self.refused[node] = str(refusal)
            else:
                clients.append((client.number is None, client.number or 0, node, client))
        for *_, node, client in sorted(clients, key=lambda row: row[:3]):
            try:
                self._admit(node, client)
            except Refused as refusal:
                self.refused[node] = str(refusal)

    def _admit(self, node: int, introduction: messages.Introduction) -> None:
        counts, row, number = self._valid_counts(introduction), self.row(node), introduction.number
        if row is None and number is not None:
            # After a restart of a node or of the run, the same client has a new node id.
            free = (i for i, m in enumerate(self.members) if m.number == number and m.node not in self._ready_nodes)
            row = next(free, None)
        if row is None:
            self.members.append(Member(node, number, counts, introduction.held_out))
        else:
            if introduction.epsilon is None:  # a restarted node draws new noise; the first counts stay in use
                self.unchanged(row, counts)
            self.members[row] = replace(self.members[row], node=node, held_out=introduction.held_out)
        self._ready_nodes.add(node)

    def _valid_counts(self, introduction: messages.Introduction) -> tuple[int, ...]:
        counts = introduction.counts
        labels = len(counts) if self.labels is None else self.labels
        if len(counts) != labels or not labels:
            raise Refused(f"{len(counts)} label counts instead of {labels}")
        if introduction.epsilon is not None:
            counts = _repair(counts)
        if any(counts):
            try:
                LabelCounts.of([counts])
            except InputError as error:
                raise Refused(str(error)) from None
        if (most := max(sum(counts), introduction.held_out)) > _LARGEST_EXACT_COUNT:
            raise Refused(f"it claims {most:g} samples")
        self.labels = labels
        return tuple(int(count) for count in counts)

    def unchanged(self, row: int, counts: Sequence[float]) -> None:
        """Raise `Refused` if a client sends other counts than before."""
        first = self.members[row].counts
        if tuple(counts) != first:
            size, first_size = sum(counts), sum(first)
            change = f"{size:g} samples instead of {first_size:g}" if size != first_size else "other labels"
            raise Refused(f"its label counts changed ({change}); the first counts stay in use")

    def row(self, node: int) -> int | None:
        """Return the row of a node, or None."""
        return next((i for i, member in enumerate(self.members) if member.node == node), None)

    @property
    def present(self) -> Indices:
        """Rows of the clients that are connected and have valid counts, in ascending order."""
        rows = [i for i, member in enumerate(self.members) if member.node in self._ready_nodes]
        return np.array(rows, dtype=np.int64)

    @property
    def counts(self) -> LabelCounts:
        """The M×K table; counts of a client above ``cap`` are scaled down and rounded down to whole numbers."""
        table = np.array([member.counts for member in self.members], dtype=np.float64)
        for row in self.capped:
            table[row] = np.floor(table[row] * (self.cap or 0) / table[row].sum())
        return LabelCounts.of(table)

    @property
    def capped(self) -> list[int]:
        """Rows of clients that claim more than ``cap`` samples."""
        cap = self.cap
        return [] if cap is None else [i for i, member in enumerate(self.members) if sum(member.counts) > cap]


def _repair(noisy_counts: Sequence[float]) -> Sequence[float]:
    """Return the closest possible counts; zeros if the noisy ones do not sum to a positive number."""
    if any(not count.is_integer() or abs(count) > _LARGEST_EXACT_COUNT for count in noisy_counts):
        raise Refused("its noisy label counts are not whole numbers that a float64 represents exactly")
    if sum(noisy_counts) <= 0:
        return [0.0] * len(noisy_counts)
    table = repair(np.array([noisy_counts], dtype=np.int64)).table
    return [float(count) for count in np.asarray(table)[0]]
