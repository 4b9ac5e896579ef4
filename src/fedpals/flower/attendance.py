"""Wait for a limited time until enough nodes are connected and have sent their label counts."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpals.errors import FedpalsError
from fedpals.flower import messages
from fedpals.flower.session import Session

_log = logging.getLogger("flwr")
_POLL_SECONDS = 1.0
"""Seconds between two checks of which nodes are connected."""


class TooFewNodesError(FedpalsError, TimeoutError):
    """Not enough nodes connected in time."""


def wait_for_nodes(session: Session, grid: Grid, stage: str, needed: int, wait: float) -> None:
    """Return once ``needed`` clients are connected and have sent their counts; raise after ``wait`` seconds."""
    deadline = time.monotonic() + wait
    roster = session.roster
    while True:
        nodes = list(grid.get_node_ids())
        _ask_for_counts(session, grid, roster.connected(nodes), wait)
        ready = roster.present.size
        if ready >= needed:
            return
        if time.monotonic() >= deadline:
            refused = "; ".join(f"node {node}: {reason}" for node, reason in roster.refused.items())
            raise TooFewNodesError(
                f"{stage}: {ready} of the {needed} nodes needed (min_available_nodes={needed}) were ready after "
                f"{wait:g} s, {len(nodes)} are connected{f' ({refused})' if refused else ''}; "
                "start more SuperNodes, or lower min_available_nodes"
            )
        _log.info("Waiting for nodes: %d of %d are ready, %d connected", ready, needed, len(nodes))
        time.sleep(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))


def _ask_for_counts(session: Session, grid: Grid, nodes: Sequence[int], wait: float) -> None:
    if not nodes:
        return
    roster = session.roster
    requests = [Message(RecordDict(), message_type=messages.LABELCOUNTS, dst_node_id=node) for node in nodes]
    timeout = wait if session.timeout is None else min(wait, session.timeout)
    replies = list(grid.send_and_receive(requests, timeout=timeout))
    roster.hear({r.metadata.src_node_id: r.content for r in replies if r.has_content()})
    for reply in replies:
        if reply.has_error():
            _log.warning("query.labelcounts: node %d: %s", reply.metadata.src_node_id, reply.error.reason)
    for node in nodes:
        if node in roster.refused:
            _log.warning("node %d is refused: %s", node, roster.refused[node])
        elif (row := roster.row(node)) is None:
            _log.warning("node %d did not send its label counts; it will be asked again", node)
        elif row in roster.capped:
            claimed = sum(roster.members[row].counts)
            _log.warning("%s claims %d samples and counts as %d", session.name(row), claimed, roster.cap)
