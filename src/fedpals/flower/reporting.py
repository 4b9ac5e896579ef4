"""Report of a round: a line in Flower's log, and metrics."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.exception import InconsistentMessageReplies

from fedpals.engine import checkpoint, summary
from fedpals.engine.round import Round
from fedpals.flower import messages
from fedpals.flower.session import Session

_log = logging.getLogger("flwr")
AVERAGING_ERRORS = (InconsistentMessageReplies, ArithmeticError, LookupError, ValueError, TypeError)
"""What an average of metrics raises that do not fit together."""


def report(
    session: Session,
    result: Round,
    contents: Mapping[int, RecordDict],
    weight_key: str,
    average: Callable[[list[RecordDict], str], MetricRecord] | None,
) -> MetricRecord:
    """Log a round; return the clients' metrics, averaged with the weights of their arrays, and the server's.

    ``average`` is the user's own way to average the metrics in replies, if there is one.
    """
    server_metrics = log_round(session, result)
    weights = {row: a for row, a in zip(result.participants.tolist(), result.alpha.tolist(), strict=True) if a > 0}
    replies, alpha = [contents[row] for row in weights], list(weights.values())
    if average is None:
        return MetricRecord({**average_metrics(replies, alpha, leave_out=weight_key), **server_metrics})
    try:
        return MetricRecord({**average(replies, weight_key), **server_metrics})
    except AVERAGING_ERRORS as error:  # clients choose what metrics they send, which must not end the run
        _log.warning(
            "round %d: the training metrics cannot be averaged (%s: %s)", result.number, type(error).__name__, error
        )
        return MetricRecord(dict(server_metrics))


def remedy(session: Session, path: Path | None) -> str:
    """Return what to do if no update of a round can be used; ``path`` is the run's checkpoint."""
    timeout = "" if session.timeout is None else f" of {session.timeout:g} s"
    advice = f"if clients are late, raise the timeout{timeout}; if they diverge, lower their learning rate"
    if path is None or not session.state.round:
        return advice
    advice += f". The state after round {session.state.round} is in {path}"
    if session.state.spent is not None:
        advice += (
            "; if that one is to blame, end the run: rounds released again from an older state would not count in ε"
        )
    elif (previous := checkpoint.previous(path)).is_file():
        advice += f"; if that one is to blame, go back to the one before: mv {previous} {path}"
    return advice


def log_round(session: Session, result: Round) -> dict[str, float | int]:
    """Log refused clients, weights, squared distance and ESS of a round; return its metrics."""
    assert session.server is not None
    for warning in summary.warnings(session.server, result, session.name):
        _log.warning("%s", warning)
    for line in summary.lines(session.server, result, session.name):
        _log.info("%s", line)
    return summary.metrics(session.server, result)


def with_valid_weights(replies: Iterable[Message], weight_key: str, number: int) -> list[Message]:
    """Return the replies to an evaluation but those whose weight is below 0 or not finite, whose nodes are named."""
    valid = []
    for reply in replies:
        weight = messages.metrics_of(reply.content).get(weight_key, 0.0) if reply.has_content() else 0.0
        if 0.0 <= weight < math.inf:
            valid.append(reply)
        else:
            claim = f"the evaluation of node {reply.metadata.src_node_id} is left out: its {weight_key} is {weight:g}"
            _log.warning("round %d: %s", number, claim)
    return valid


def average_metrics(replies: Sequence[RecordDict], alpha: Sequence[float], *, leave_out: str) -> dict[str, float]:
    """Return the mean of the training metrics that all clients have, with the weights of their arrays."""
    metrics = [messages.metrics_of(reply) for reply in replies]
    common = set.intersection(*map(set, metrics)) - {leave_out}
    return {key: sum(a * m[key] for a, m in zip(alpha, metrics, strict=True)) for key in sorted(common)}
