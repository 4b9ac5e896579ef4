"""One run of a strategy: the state that a checkpoint keeps, and who is there to talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedpals.engine.server import Server
from fedpals.engine.state import ServerState
from fedpals.flower.arrays import Layout
from fedpals.flower.roster import Member, Roster
from fedpals.labels import Indices, LabelCounts
from fedpals.shift import Tally


@dataclass(frozen=True, eq=False)
class BestModel:
    """The round whose model is worth most in the target, as the clients' tallies estimate it."""

    round: int
    score: float
    vector: Tensor


@dataclass(eq=False)
class FlowerState(ServerState):
    """The server's state, who its clients are, and what they said of its models."""

    members: list[Member] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """What a run must have in common with one that it continues."""
    best: BestModel | None = None
    tallies: dict[int, Tally] = field(default_factory=dict)
    """The last ones, by row."""

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Add clients, settings and what tallies said to the server's state."""
        tensors, facts = super().parts()
        facts |= {
            "clients": [asdict(m) for m in self.members],
            "settings": self.settings,
            "tallies": {row: tally.to_json() for row, tally in self.tallies.items()},
        }
        if self.best is not None:
            tensors["best"] = self.best.vector
            facts["best"] = {"round": self.best.round, "score": self.best.score}
        return tensors, facts

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        """Put a state together from its parts."""
        state = super().of(tensors, facts)
        state.members = [Member(**{**m, "counts": tuple(m["counts"])}) for m in facts["clients"]]
        state.settings = facts["settings"]
        state.tallies = {int(row): Tally.from_json(tally) for row, tally in facts.get("tallies", {}).items()}
        if "best" in facts:
            state.best = BestModel(**facts["best"], vector=tensors["best"])
        return state


@dataclass(eq=False)
class Session:
    """One run of a strategy."""

    layout: Layout
    state: FlowerState
    roster: Roster
    timeout: float | None
    server: Server | None = None
    grid: Grid | None = None
    arrays: ArrayRecord = field(default_factory=ArrayRecord)
    config: ConfigRecord = field(default_factory=ConfigRecord)
    participants: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    wrapped: bool = False
    """Whether another strategy runs the rounds, such as Flower's for privacy, and changes what clients get to see."""

    @property
    def model(self) -> ArrayRecord:
        """The arrays that are worth most: the running mean where there is one, else the last."""
        return self.layout.record(self.state.model)

    def evaluated(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the running mean where there is one, else the ``arrays`` of the round."""
        return arrays if self.state.average is None else self.model

    def admit(self, build: Callable[[LabelCounts], Server]) -> Server:
        """Return the server, which knows all clients of the roster; ``build`` makes it when the first are known."""
        if self.server is None:
            self.server = build(self.roster.counts)
            self.server.admit(self.roster.counts)  # a resumed run may have newcomers already
        elif self.server.counts.shape[0] < len(self.roster.members):
            self.server.admit(self.roster.counts)
        return self.server

    def node(self, row: int) -> int:
        """Return the node that holds a row."""
        return self.roster.members[row].node

    def name(self, row: int) -> str:
        """Name a client in the log."""
        member = self.roster.members[row]
        return f"node {member.node}" if member.number is None else f"client {member.number} (node {member.node})"

    def ask(self, question: str, rows: Sequence[int], record: RecordDict) -> dict[int, RecordDict | str]:
        """Send clients a question; return the answer of every row, or why there is none."""
        assert self.grid is not None
        asked = [Message(content=record, message_type=question, dst_node_id=self.node(row)) for row in rows]
        return self.sort(rows, self.grid.send_and_receive(asked, timeout=self.timeout))

    def sort(self, rows: Sequence[int], replies: Iterable[Message]) -> dict[int, RecordDict | str]:
        """Return the answer of every row, or why there is none.

        Flower reports the loss of a node in its own name, so lost nodes are those without any reply.
        """
        received: dict[int, RecordDict | str] = {}
        for reply in replies:
            answer = reply.content if reply.has_content() else f"error: {reply.error.reason}"
            received.setdefault(reply.metadata.src_node_id, answer)
        late = "no reply" if self.timeout is None else f"no reply within {self.timeout:g} s, or the node was lost"
        return {row: received.get(self.node(row), late) for row in rows}
