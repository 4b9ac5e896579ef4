"""What a round looks like from outside: a line in Flower's log, and metrics."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flwr.app import RecordDict

from fedpals.engine.round import Round
from fedpals.flower import messages
from fedpals.flower.session import Session

_log = logging.getLogger("flwr")
_SHOWN_WEIGHTS = 10
"""In the log, the largest first."""


def log_round(session: Session, done: Round) -> dict[str, float | int]:
    """Log who was refused, who was used and how close the mix came; return that as metrics."""
    assert session.server is not None
    for refusal in done.refused:
        _log.warning("round %d: %s: %s", done.number, session.name(refusal.client), refusal.reason)
    squared_distance, ess = session.server.achieved(done)
    weights = dict(zip(done.participants.tolist(), done.alpha.tolist(), strict=True))
    used = sorted((row for row, a in weights.items() if a > 0), key=lambda row: -weights[row])
    _log.info(
        "round %d: trained %d of %d participants; squared distance %.6f, ESS %.1f %%; α: %s%s",
        done.number,
        done.trained,
        done.participants.size,
        squared_distance,
        100 * ess,
        ", ".join(f"{session.name(row)} {weights[row]:.4f}" for row in used[:_SHOWN_WEIGHTS]),
        f" and {len(used) - _SHOWN_WEIGHTS} more" if len(used) > _SHOWN_WEIGHTS else "",
    )
    return {
        "squared_distance": squared_distance,
        "ess": ess,
        "trained": done.trained,
        "refused": len(done.refused),
    }


def average_metrics(replies: Sequence[RecordDict], alpha: Sequence[float], *, leave_out: str) -> dict[str, float]:
    """Return the training metrics that all clients have, weighed as their arrays."""
    metrics = [messages.metrics_of(reply) for reply in replies]
    common = set.intersection(*map(set, metrics)) - {leave_out}
    return {key: sum(a * m[key] for a, m in zip(alpha, metrics, strict=True)) for key in sorted(common)}
