"""Report of a round: a line in Flower's log, and metrics."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flwr.app import RecordDict

from fedpals.engine.round import Round
from fedpals.flower import messages
from fedpals.flower.session import Session

_log = logging.getLogger("flwr")
_SHOWN_WEIGHTS = 10
"""Number of weights in a line of the log, the largest first."""


def log_round(session: Session, result: Round) -> dict[str, float | int]:
    """Log refused clients, weights, squared distance and ESS of a round; return its metrics."""
    assert session.server is not None
    for refusal in result.refused:
        _log.warning("round %d: %s: %s", result.number, session.name(refusal.client), refusal.reason)
    squared_distance, ess = session.server.achieved(result)
    weights = dict(zip(result.participants.tolist(), result.alpha.tolist(), strict=True))
    rows = sorted((row for row, a in weights.items() if a > 0), key=lambda row: -weights[row])
    _log.info(
        "round %d: trained %d of %d participants; squared distance %.6f, ESS %.1f %%; α: %s%s",
        result.number,
        result.trained,
        result.participants.size,
        squared_distance,
        100 * ess,
        ", ".join(f"{session.name(row)} {weights[row]:.4f}" for row in rows[:_SHOWN_WEIGHTS]),
        f" and {len(rows) - _SHOWN_WEIGHTS} more" if len(rows) > _SHOWN_WEIGHTS else "",
    )
    return {
        "squared_distance": squared_distance,
        "ess": ess,
        "trained": result.trained,
        "refused": len(result.refused),
    }


def average_metrics(replies: Sequence[RecordDict], alpha: Sequence[float], *, leave_out: str) -> dict[str, float]:
    """Return the mean of the training metrics that all clients have, with the weights of their arrays."""
    metrics = [messages.metrics_of(reply) for reply in replies]
    common = set.intersection(*map(set, metrics)) - {leave_out}
    return {key: sum(a * m[key] for a, m in zip(alpha, metrics, strict=True)) for key in sorted(common)}
