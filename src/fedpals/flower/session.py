"""One run of a strategy: the state that a checkpoint stores, and the connection to the clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from torch import Tensor

from fedpals.engine import checkpoint
from fedpals.engine.protection import Protection
from fedpals.engine.recorded import RoundLine, adapter
from fedpals.engine.roster import Member, Roster
from fedpals.engine.server import Server
from fedpals.engine.state import ServerState
from fedpals.errors import InputError
from fedpals.flower import messages
from fedpals.flower.arrays import Layout
from fedpals.flower.patient_grid import PatientGrid
from fedpals.labels import Indices, LabelCounts
from fedpals.methods import ClientRule
from fedpals.shift import Tally


@dataclass(frozen=True, eq=False)
class BestModel:
    """The round with the highest target accuracy, as estimated from the clients' tallies, and its model."""

    round: int
    score: float
    vector: Tensor


@dataclass(eq=False)
class FlowerState(ServerState):
    """The server's state, its clients, and their tallies of its models."""

    members: list[Member[int]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings that must be the same when a run is continued."""
    best: BestModel | None = None
    tallies: dict[int, Tally] = field(default_factory=dict)
    """Last tally of each client, by row."""
    line: RoundLine | None = None
    """The last line of the record, which is written after the checkpoint; None without a record."""

    def save(self, path: Path) -> None:
        """Write the state for its owner alone, as it holds T and all counts; keep the previous one beside it.

        With noise for privacy none is kept: a round that is computed again from it is released again, beyond its ε.
        """
        if self.spent is None:
            checkpoint.keep_previous(path)
        checkpoint.save(path, *self.parts(), private=True)

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Add clients, settings, tallies and the best model to the server's state."""
        tensors, facts = super().parts()
        facts |= {
            "clients": [asdict(m) for m in self.members],
            "settings": self.settings,
            "tallies": {row: tally.to_json() for row, tally in self.tallies.items()},
        }
        if self.line is not None:
            facts["line"] = self.line.to_json()
        if self.best is not None:
            tensors["best"] = self.best.vector
            facts["best"] = {"round": self.best.round, "score": self.best.score}
        return tensors, facts

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        """Build a state from its parts."""
        state = super().of(tensors, facts)
        members = [Member[int](**row) for row in facts["clients"]]
        state.members = [replace(m, counts=tuple(m.counts), noisy=tuple(m.noisy)) for m in members]
        state.settings = facts["settings"]
        state.tallies = {int(row): Tally.from_json(tally) for row, tally in facts.get("tallies", {}).items()}
        if "line" in facts:
            state.line = adapter(RoundLine).validate_python(facts["line"])
        if "best" in facts:
            state.best = BestModel(**facts["best"], vector=tensors["best"])
        return state

    def check(self) -> None:
        """Raise `InputError` if the parts of a state that was read cannot be those of one run."""
        super().check()
        floats = [shape for _, shape, dtype in self.settings["arrays"] if np.dtype(dtype).kind == "f"]
        if (size := sum(map(math.prod, floats))) != self.vector.numel():
            raise InputError(f"its model has {self.vector.numel()} parameters instead of {size}")
        if Protection(**self.settings["protection"]).private:
            if self.spent is None or self.noise_key is None:
                raise InputError("it does not have what its clients have spent of their privacy, or the noise's key")
            if self.spent.size != len(self.members):
                raise InputError(f"{self.spent.size} of its {len(self.members)} clients have spent of their privacy")


@dataclass(eq=False)
class Session:
    """One run of a strategy."""

    layout: Layout
    state: FlowerState
    roster: Roster[int]
    timeout: float | None
    grid: PatientGrid
    server: Server | None = None
    arrays: ArrayRecord = field(default_factory=ArrayRecord)
    config: ConfigRecord = field(default_factory=ConfigRecord)
    participants: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    planned: int | None = None
    """Rounds that there are to be."""
    recorded_at: float | None = None
    """Time of the last round of this process that is in the record."""
    records: bool = False
    """Whether this process has written to the record."""
    named: set[int] = field(default_factory=set)
    """Rows of clients that were named for what they claim to hold out."""

    @property
    def model(self) -> ArrayRecord:
        """The arrays to use: the running mean if there is one, otherwise the last arrays."""
        return self.layout.record(self.state.model)

    def evaluated(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the running mean if there is one, otherwise the ``arrays`` of the round."""
        return arrays if self.state.average is None else self.model

    def admit(self, build: Callable[[LabelCounts], Server]) -> Server:
        """Return the server, updated with all clients of the roster; ``build`` creates it at the first call."""
        if self.server is None:
            self.server = build(self.roster.counts)
        elif self.server.counts.shape[0] == len(self.roster.members):
            return self.server
        # A resumed run may already have new clients.
        self.server.admit(self.roster.counts, self.roster.present, self.roster.numbered)
        return self.server

    def node(self, row: int) -> int:
        """Return the node of a row."""
        return self.roster.members[row].node

    def name(self, row: int) -> str:
        """Return a client's name for the log."""
        member = self.roster.members[row]
        return f"node {member.node}" if member.number is None else f"client {member.number} (node {member.node})"

    def jobs(self, rule: ClientRule, rows: Iterable[int], arrays_key: str, config_key: str) -> list[Message]:
        """Return the training messages of clients; they share all records except the rule's vector for the client."""
        assert self.server is not None
        shared = RecordDict({arrays_key: self.arrays, config_key: self.config})
        shared.update(messages.job(rule, self.server.rule_vector, None))
        jobs = []
        for row in rows:
            vector = self.state.clients.get(row)
            record = shared if vector is None else RecordDict({**shared, **messages.job(rule, None, vector)})
            jobs.append(Message(content=record, message_type=MessageType.TRAIN, dst_node_id=self.node(row)))
        return jobs

    def ask(self, question: str, rows: Sequence[int], record: RecordDict) -> dict[int, RecordDict | str]:
        """Send a question to clients; return the answer of every row, or the reason why there is none."""
        silent = {row for row in rows if self.node(row) in self.grid.silent}
        asked = [row for row in rows if row not in silent]
        requests = [Message(content=record, message_type=question, dst_node_id=self.node(row)) for row in asked]
        answers = dict(self.answers(asked, self.grid.send_and_receive(requests, timeout=self.timeout)))
        return {row: answers.get(row, "it has not answered earlier messages") for row in rows}

    def answers(self, rows: Sequence[int], replies: Iterable[Message]) -> Iterator[tuple[int, RecordDict | str]]:
        """Return each row with its answer, as they arrive; then the others, with the reason why there is none."""
        waiting = {self.node(row): row for row in rows}
        for reply in replies:
            row = waiting.pop(reply.metadata.src_node_id, None)
            if row is not None:
                yield row, reply.content if reply.has_content() else messages.explained(reply)
            del reply
        no_reply = "no reply" if self.timeout is None else f"no reply within {self.timeout:g} s, or the node was lost"
        yield from ((row, no_reply) for row in waiting.values())
