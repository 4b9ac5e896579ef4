"""Flower's grid with limits: no message outlives the time it is waited for, and who owes an answer is known.

Flower waits for every node until the timeout, again in every round, and keeps messages for twelve hours. Here, a node
that leaves a message unanswered is silent: it is left out, and costs nobody any more time, until it answers something.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

_EXPIRED = {3, 4}
"""Flower's codes for a message, or a reply, that is no longer valid."""
_UNREADABLE = 0
"""Flower's code for an unknown error."""
_CONNECTION_ERRORS = (OSError, httpx.HTTPError)
"""The connection to the SuperLink is lost, which no node is to blame for."""
_SHORTEST_PAUSE, _LONGEST_PAUSE, _BACK_OFF = 0.05, 3.0, 1.5
"""Seconds between two looks for replies, from the first to the last, and the factor between them."""


class PatientGrid(Grid):
    """A grid whose replies are read one by one, as they arrive, and each on its own."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.silent: set[int] = set()
        """Nodes that left a message unanswered for as long as they were waited for."""
        self._open: dict[str, Message] = {}
        """Messages without a reply, by id, without their contents."""

    @classmethod
    def over(cls, grid: Grid, last: PatientGrid | None = None) -> PatientGrid:
        """Return ``grid`` with limits; ``last`` if it is the same one."""
        if isinstance(grid, cls):
            return grid
        return last if last is not None and last.grid is grid else cls(grid)

    @property
    def awaited(self) -> set[int]:
        """Nodes that have a message without a reply."""
        return {message.metadata.dst_node_id for message in self._open.values()}

    def send(self, messages: Iterable[Message], life: float | None) -> list[str]:
        """Send messages that are valid for ``life`` seconds; return the ids of those that were sent."""
        letters = list(messages)
        for letter in letters:
            if life is not None:
                letter.metadata.ttl = life
        sent = set(self.grid.push_messages(letters)) if letters else set()
        ids = [letter.metadata.message_id for letter in letters if letter.metadata.message_id in sent]
        for letter in letters:
            if letter.metadata.message_id in sent:
                self._open[letter.metadata.message_id] = _without_content(letter)
        return ids

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages now; return their replies as they arrive, at most until ``timeout``."""
        return self._replies(self.send(messages, timeout), timeout)

    def late_replies(self) -> list[Message]:
        """Return the replies that have arrived to messages that nobody waits for any more."""
        return [reply for message_id in list(self._open) if (reply := self._pull(message_id)) is not None]

    def give_up(self, nodes: Iterable[int]) -> None:
        """Wait no longer for these nodes; an answer is still welcome."""
        self.silent |= set(nodes)

    def _replies(self, ids: Iterable[str], timeout: float | None) -> Iterator[Message]:
        deadline, pending, pause = None if timeout is None else time.monotonic() + timeout, list(ids), _SHORTEST_PAUSE
        while pending:
            for message_id in pending:
                if (reply := self._pull(message_id)) is not None:
                    pause = _SHORTEST_PAUSE
                    yield reply
                    del reply
            pending = [message_id for message_id in pending if message_id in self._open]
            rest = _LONGEST_PAUSE if deadline is None else deadline - time.monotonic()
            if rest <= 0:
                break
            if pending:
                time.sleep(min(pause, rest))
                pause = min(pause * _BACK_OFF, _LONGEST_PAUSE)
        self.give_up(self._open[message_id].metadata.dst_node_id for message_id in pending)

    def _pull(self, message_id: str) -> Message | None:
        """Return the reply to a message, if it has arrived; one that cannot be read becomes its node's error.

        Flower reads all replies of a pull together, so that one could take the others with it: pull them singly.
        """
        message = self._open[message_id]
        node = message.metadata.dst_node_id
        try:
            replies = list(self.grid.pull_messages([message_id]))
        except _CONNECTION_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever a stranger's bytes raise inside Flower
            reason = f"its reply cannot be read ({type(error).__name__}: {error})"
            replies = [Message(Error(_UNREADABLE, reason), reply_to=message)]
        if not replies:
            return None
        del self._open[message_id]
        reply = replies[0]
        if not reply.has_error() and (fault := _fault(message, reply)):
            reply = Message(Error(_UNREADABLE, fault), reply_to=message)
        if reply.has_error() and reply.error.code in _EXPIRED:
            self.silent.add(node)
            return None
        self.silent.discard(node)
        # Flower reports a lost node in its own name, and some errors of its modifiers name the server as their sender:
        # whom an error is about, the question tells.
        return Message(reply.error, reply_to=message) if reply.has_error() else reply

    def get_node_ids(self) -> Iterable[int]:
        """Return the connected nodes."""
        nodes = list(self.grid.get_node_ids())
        self.silent &= set(nodes)
        return nodes

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        """Create a message, as Flower's grid does."""
        return self.grid.create_message(*arguments, **named)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, as Flower's grid does."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return replies, as Flower's grid does."""
        return self.grid.pull_messages(message_ids)

    def set_run(self, run: Any) -> None:
        """Set the run, as Flower's grid does."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self.grid.run


def _fault(message: Message, reply: Message) -> str | None:
    """Return what is wrong with the envelope of a reply, which its node writes itself and SuperLink does not check."""
    asked, answered = message.metadata, reply.metadata
    if answered.src_node_id != asked.dst_node_id:
        return f"its reply names node {answered.src_node_id} as the sender; no node may answer for another"
    if answered.message_type != asked.message_type:
        return f"it answers {answered.message_type} where it was asked {asked.message_type}"
    return None


def _without_content(message: Message) -> Message:
    """Return the message's metadata alone, so that an unanswered one keeps no arrays in memory."""
    return Message(RecordDict(), metadata=message.metadata)  # type: ignore[call-overload, no-any-return]
