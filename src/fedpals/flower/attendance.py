"""Wait for a limited time until enough nodes are connected and have sent their label counts.

Nodes that do not answer are not waited for as soon as the others are enough: a while without any news is sufficient.
They are asked again, at no cost, until they answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict

from fedpals.engine.patience import Patience
from fedpals.engine.refusal import Refused
from fedpals.engine.roster import Introduction
from fedpals.errors import FedpalsError, InputError
from fedpals.flower import messages
from fedpals.flower.session import Session

_log = logging.getLogger("flwr")
_POLL_SECONDS = 1.0
"""Most seconds between two checks of which nodes are connected; the first are shorter."""
_FIRST_POLL_SECONDS = 0.05


class TooFewNodesError(FedpalsError, TimeoutError):
    """Not enough nodes connected in time."""


@dataclass
class _Wait:
    """One wait for nodes: what has happened in it so far."""

    session: Session
    patience: Patience
    """Which begins anew when a node is asked for the first time."""
    began: float = field(default_factory=time.monotonic)
    lacking: set[int] = field(default_factory=set)
    """Nodes whose app does not answer the question."""
    retry: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Nodes whose app failed: when to ask again, and how many seconds to wait after that."""

    def ask(self, nodes: Iterable[int], life: float) -> None:
        """Ask nodes that are new, were silent or have failed for their counts, unless they are still being asked."""
        session, grid, now = self.session, self.session.grid, time.monotonic()
        unheard = set(session.roster.connected(nodes))
        due = {node for node in (unheard | grid.silent) - grid.awaited if self.retry.get(node, (0.0, 0.0))[0] <= now}
        questions = [
            Message(RecordDict(), message_type=messages.LABELCOUNTS, dst_node_id=node)
            for node in sorted(due - session.roster.refused.keys())
        ]
        grid.send(questions, life)
        if due & unheard - grid.silent - self.retry.keys():
            self.patience.renew()

    def hear(self) -> None:
        """Read the answers that have arrived."""
        session, introductions = self.session, dict[int, Introduction]()
        roster, asked = session.roster, session.grid.late_replies()
        for reply in asked:
            node = reply.metadata.src_node_id
            if reply.metadata.message_type != messages.LABELCOUNTS:
                continue  # late work, which brings its node back
            self.patience.hear()
            try:
                if reply.has_error():
                    self._hear_error(node, reply.error.reason)
                else:
                    introductions[node] = messages.read_labelcounts(reply.content)
            except Refused as refusal:
                roster.refuse(node, str(refusal))
        roster.silent = set(session.grid.silent)
        roster.hear(introductions)
        for node in sorted(reply.metadata.src_node_id for reply in asked):
            if node in roster.refused:
                _log.warning("node %d is refused: %s", node, roster.refused[node])
        for claim in roster.claims(introductions, session.name) if introductions else ():
            _log.warning("%s", claim)

    def _hear_error(self, node: int, reason: str | None) -> None:
        if messages.lacks_query(reason):
            self.lacking.add(node)
            raise Refused(f"its app does not answer {messages.LABELCOUNTS}; {messages.COUNTS_REMEDY}")
        _, delay = self.retry.get(node, (0.0, _POLL_SECONDS))
        self.retry[node] = time.monotonic() + delay, 2 * delay
        _log.warning("%s: node %d: %s; it will be asked again", messages.LABELCOUNTS, node, reason)

    def check_queries(self, ready: int, needed: int) -> None:
        """Raise `InputError` if nodes cannot ever say their counts, and the others are too few."""
        if (
            self.lacking
            and not self.unanswered
            and ready < needed
            and (not ready or ready + len(self.lacking) >= needed)
        ):
            raise InputError(
                f"{', '.join(f'node {node}' for node in sorted(self.lacking))}: the app does not answer "
                f"{messages.LABELCOUNTS}; {messages.COUNTS_REMEDY}"
            )

    @property
    def unanswered(self) -> set[int]:
        """Nodes that are worth waiting for: they were asked, and are not known to be silent."""
        grid = self.session.grid
        return grid.awaited - grid.silent


def wait_for_nodes(session: Session, stage: str, needed: int, wait: float, patience: float) -> None:
    """Return once ``needed`` clients are connected and have sent their counts; raise after ``wait`` seconds.

    The other connected nodes are waited for until there was no news for ``patience`` seconds.
    """
    grid, roster, state = session.grid, session.roster, _Wait(session, Patience(patience))
    life = wait if session.timeout is None else min(wait, session.timeout)
    pause, last_log = _FIRST_POLL_SECONDS, (-1, -1)
    while True:
        nodes = list(grid.get_node_ids())
        state.hear()
        state.ask(nodes, life)
        state.hear()
        ready, now = roster.present.size, time.monotonic()
        if ready >= needed and (not state.unanswered or state.patience.is_over):
            for node in sorted(state.unanswered):
                _log.warning("%s: node %d has not sent its label counts; the others go on without it", stage, node)
            grid.give_up(state.unanswered)
            roster.silent = set(grid.silent)
            roster.settle()
            return
        state.check_queries(ready, needed)
        if now - state.began >= wait:
            raise TooFewNodesError(_too_few(session, stage, ready, needed, wait, len(nodes)))
        if (ready, len(nodes)) != last_log and pause >= _POLL_SECONDS:
            _log.info("Waiting for nodes: %d of %d are ready, %d connected", ready, needed, len(nodes))
            last_log = ready, len(nodes)
        time.sleep(min(pause, max(0.0, state.began + wait - now)))
        pause = min(2 * pause, _POLL_SECONDS)


def _too_few(session: Session, stage: str, ready: int, needed: int, wait: float, connected: int) -> str:
    reasons = [f"node {node}: {reason}" for node, reason in session.roster.refused.items()]
    reasons += [f"node {node}: no answer" for node in sorted(session.grid.awaited)]
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return (
        f"{stage}: {ready} of the {needed} nodes needed (min_available_nodes={needed}) were ready after "
        f"{wait:g} s, {connected} are connected{why}; "
        "start more SuperNodes, or lower min_available_nodes"
    )
