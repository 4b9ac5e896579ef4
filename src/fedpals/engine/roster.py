"""The list of clients: the nodes of an engine as rows of the table of label counts.

A node introduces itself once, and again only after it was disconnected. Once settled, rows keep their number for the
whole run, even if other nodes join or leave. How nodes are named is the engine's part: Flower's are numbers, others
have names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from fedpals.engine.refusal import Refused
from fedpals.errors import InputError
from fedpals.labels import Indices, LabelCounts
from fedpals.labels.private import repair

Node = TypeVar("Node", int, str)
"""How the engine names a node."""

_LARGEST_EXACT_COUNT = 2.0**53
"""Bound up to which float64 represents every whole number exactly."""
_GIANT = 10
"""Clients are named in a warning if each claims more than this times the samples of all others together."""

Name = Callable[[int], str]
"""How the engine calls the client of a row."""


@dataclass(frozen=True)
class Introduction:
    """Facts about a client, which it sends once."""

    counts: Sequence[float]
    """Number of training samples of each label, (K,); with noise if ``epsilon`` is given."""
    number: int | None = None
    """Number of its partition, if any."""
    held_out: int = 0
    """Number of samples that it holds out."""
    epsilon: float | None = None
    """ε of the noise in its counts; None if there is no noise."""


@dataclass(frozen=True)
class Member(Generic[Node]):
    """A row: its node, the client's own number, its label counts, and its number of held-out samples."""

    node: Node
    number: int | None
    counts: tuple[int, ...]
    held_out: int = 0
    epsilon: float | None = None
    """ε of the noise in its counts; None if there is no noise."""
    noisy: tuple[int, ...] = ()
    """Its counts as it sent them, with noise; none if there is no noise."""


class Roster(Generic[Node]):
    """The clients that have sent their counts, and the nodes that are connected.

    ``labels`` is K; if None, the first answers decide. ``cap`` bounds n_i: a client that claims more counts as ``cap``
    samples with the same label shares.
    """

    def __init__(self, labels: int | None, cap: int | None = None, members: Iterable[Member[Node]] = ()) -> None:
        self.labels, self.cap = labels, cap
        self.members: list[Member[Node]] = list(members)
        self._settled = len(self.members)
        """Number of rows whose place is final."""
        self.refused: dict[Node, str] = {}
        """Reasons for which connected nodes are refused, by node."""
        self.silent: set[Node] = set()
        """Connected nodes that owe an answer; until it comes they are not present."""
        self._ready_nodes: set[Node] = set()
        """Nodes that have sent their counts since they connected."""
        self._duplicates: dict[Node, Node] = {}
        """Nodes that are refused because another node, which is still there, has their number."""

    def connected(self, nodes: Iterable[Node]) -> list[Node]:
        """Update the connected nodes; return those to ask for their counts, in ascending order."""
        online = set(nodes)
        self._ready_nodes &= online
        freed = {node for node, holder in self._duplicates.items() if not self._is_there(holder)}
        self._duplicates = {node: holder for node, holder in self._duplicates.items() if node not in freed}
        self.refused = {node: reason for node, reason in self.refused.items() if node in online - freed}
        return sorted(online - self._ready_nodes - self.refused.keys())

    def refuse(self, node: Node, reason: str) -> None:
        """Leave a node out, until it has been disconnected."""
        self.refused[node] = reason

    def hear(self, introductions: Mapping[Node, Introduction]) -> None:
        """Add clients that introduced themselves, or refuse them; places of new rows are final after `settle`.

        If K is not known, it is what most of them have; of several, what the first has.
        """
        if self.labels is None and introductions:
            lengths = Counter(len(client.counts) for _, client in sorted(introductions.items()) if client.counts)
            self.labels = lengths.most_common(1)[0][0] if lengths else None
        for node, client in sorted(introductions.items(), key=lambda item: (*_rank(item[1].number), item[0])):
            try:
                self._admit(node, client)
            except Refused as refusal:
                self.refuse(node, str(refusal))

    def settle(self) -> None:
        """Order the new rows by number, then by node, so that it does not matter who answered first."""
        new = self.members[self._settled :]
        self.members[self._settled :] = sorted(new, key=lambda member: (*_rank(member.number), member.node))
        self._settled = len(self.members)

    def _admit(self, node: Node, introduction: Introduction) -> None:
        """Give a node its row: the one that it had, that of its number, or a new one."""
        counts, number = self._valid_counts(introduction), introduction.number
        row = self.row(node)
        if row is not None and introduction.epsilon is None:
            self.unchanged(row, counts)
        elif row is None and number is not None:
            # After a restart of a node or of the run, the same client has a new node id.
            row = next((i for i, member in enumerate(self.members) if member.number == number), None)
            if row is not None:
                self._check_return(row, node, introduction, counts)
        if row is None:
            noisy = () if introduction.epsilon is None else tuple(int(count) for count in introduction.counts)
            self.members.append(Member(node, number, counts, introduction.held_out, introduction.epsilon, noisy))
        else:  # with noise the first counts stay in use: a restarted node has drawn again
            self.members[row] = replace(self.members[row], node=node, held_out=introduction.held_out)
        self._ready_nodes.add(node)

    def _check_return(self, row: int, node: Node, introduction: Introduction, counts: Sequence[float]) -> None:
        """Raise `Refused` unless a new node can be the client of a row: that one has left, and the counts fit."""
        member = self.members[row]
        if self._is_there(member.node):
            self._duplicates[node] = member.node
            raise Refused(
                f"number {member.number} belongs to node {member.node}, which is connected; give every node a "
                "partition-id of its own (if this node replaces that one, it is admitted once that one is gone)"
            )
        if introduction.epsilon != member.epsilon:
            raise Refused(
                f"number {member.number} belongs to a client whose counts have {_noise(member.epsilon)} noise"
            )
        if member.epsilon is None:
            self.unchanged(row, counts)
        elif not _can_be_same(member.noisy, introduction.counts, member.epsilon):
            raise Refused(f"number {member.number} belongs to a client with counts that no noise turns into these")

    def _is_there(self, node: Node) -> bool:
        """Return whether a node is connected, has a row, and answers."""
        return node in self._ready_nodes and node not in self.silent

    def _valid_counts(self, introduction: Introduction) -> tuple[int, ...]:
        counts = introduction.counts
        labels = len(counts) if self.labels is None else self.labels
        if len(counts) != labels or not labels:
            raise Refused(f"{len(counts)} label counts instead of {labels}")
        if introduction.number is not None and introduction.number < 0:
            raise Refused(f"its number is {introduction.number}; give every node a partition-id from 0")
        if introduction.held_out < 0:
            raise Refused(f"it claims to hold {introduction.held_out} samples out")
        if introduction.epsilon is not None:
            if not 0 < introduction.epsilon < math.inf:
                raise Refused(f"ε of its noisy counts is {introduction.epsilon}")
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

    def row(self, node: Node) -> int | None:
        """Return the row of a node, or None."""
        return next((i for i, member in enumerate(self.members) if member.node == node), None)

    @property
    def present(self) -> Indices:
        """Rows of the clients that are connected, have valid counts and answer, in ascending order."""
        rows = [i for i, member in enumerate(self.members) if self._is_there(member.node)]
        return np.array(rows, dtype=np.int64)

    @property
    def numbered(self) -> Indices:
        """Rows of the clients that have a number of their own: no other row is the same client."""
        return np.array([i for i, member in enumerate(self.members) if member.number is not None], dtype=np.int64)

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

    def holders(self, rows: Iterable[int]) -> list[int]:
        """Return those of ``rows`` that hold samples out, and no more than ``cap``: they can judge models."""
        most = math.inf if self.cap is None else self.cap
        return [row for row in rows if 0 < self.members[row].held_out <= most]

    def claims(self, new: Iterable[Node], name: Name) -> list[str]:
        """Return a line for every client whose claim decides the weights or the estimates of held-out samples.

        Clients that are above ``cap``, or hold out more than they train on, are named only if they are ``new``.
        """
        rows, nodes = self.present.tolist(), set(new)
        sizes = {row: sum(self.members[row].counts) for row in rows}
        giants, others = _giants(sizes)
        lines = []
        for row, size in sizes.items():
            if row in self.capped:
                if self.members[row].node in nodes:
                    lines.append(f"{name(row)} claims {size} samples and counts as {self.cap}")
            elif row in giants:
                lines.append(
                    f"{name(row)} claims {size} samples, all {len(rows) - len(giants)} others together {others}: the "
                    "weights depend on whether that is true; max_samples, or FedPALS's max_weight, would bound it"
                )
        return lines + self._held_out_claims(rows, nodes, name)

    def _held_out_claims(self, rows: Sequence[int], new: set[Node], name: Name) -> list[str]:
        holders, lines = set(self.holders(rows)), []
        giants, others = _giants({row: self.members[row].held_out for row in holders})
        for row in rows:
            member = self.members[row]
            claim, own = f"{name(row)} claims to hold {member.held_out} samples out", sum(member.counts)
            if row not in holders:
                if member.held_out and member.node in new:
                    lines.append(f"{claim}, more than max_samples={self.cap}: it is not asked to judge models")
                continue
            reasons = []
            if member.held_out > own and member.node in new:
                reasons.append(f"more than the {own} that it trains on")
            if row in giants:
                reasons.append(f"all {len(holders) - len(giants)} others together {others}")
            if reasons:
                lines.append(
                    f"{claim}, {' and '.join(reasons)}: the estimates, and an ESS that is chosen by them, depend on "
                    "whether that is true; max_samples would bound it"
                )
        return lines


def _giants(claims: Mapping[int, int]) -> tuple[set[int], int]:
    """Return the rows, at most half, that each claim far more than all others together, and what these claim."""
    rows = sorted(claims, key=lambda row: claims[row], reverse=True)
    for count in range(len(rows) // 2, 0, -1):
        others = sum(claims[row] for row in rows[count:])
        if others and claims[rows[count - 1]] > _GIANT * others:
            return set(rows[:count]), others
    return set(), 0


def _rank(number: int | None) -> tuple[bool, int]:
    return number is None, number or 0


def _noise(epsilon: float | None) -> str:
    return "no" if epsilon is None else f"ε = {epsilon:g}"


def _can_be_same(first: Sequence[float], second: Sequence[float], epsilon: float) -> bool:
    """Return whether two draws of noise explain two answers of one client.

    Each draw exceeds t with probability at most 2e^(−εt), so one of 2K does with at most 4K e^(−εt): one in 10⁹ here.
    """
    largest = math.log(4e9 * len(first)) / epsilon
    return all(abs(a - b) <= 2 * largest for a, b in zip(first, second, strict=True))


def _repair(noisy_counts: Sequence[float]) -> Sequence[float]:
    """Return the closest possible counts; zeros if the noisy ones do not sum to a positive number."""
    if any(not float(count).is_integer() or abs(count) > _LARGEST_EXACT_COUNT for count in noisy_counts):
        raise Refused("its noisy label counts are not whole numbers that a float64 represents exactly")
    if sum(noisy_counts) <= 0:
        return [0.0] * len(noisy_counts)
    table = repair(np.array([noisy_counts], dtype=np.int64)).table
    return [float(count) for count in np.asarray(table)[0]]
