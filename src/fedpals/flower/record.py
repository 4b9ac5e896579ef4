"""Record of a deployment, which `fedpals watch` shows: a line per round, as the simulator's, and the server's view."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedpals.engine.metrics import HeldOutMetrics, Scores
from fedpals.engine.recorded import (
    ABOUT,
    METRICS,
    SERVER_VIEW,
    About,
    RoundLine,
    RoundWeights,
    ServerView,
    complete_lines,
    plain_values,
    to_line,
)
from fedpals.engine.round import Round
from fedpals.engine.server import Server
from fedpals.files import replacing, try_folder, writing
from fedpals.flower.session import Session
from fedpals.labels import LabelCounts
from fedpals.methods import Method
from fedpals.shift import pooled


def open_record(folder: Path | None, session: Session, method: Method, build: Callable[[LabelCounts], Server]) -> None:
    """Raise `InputError` at once if the record cannot be written; add the last round's line if only the state has it.

    ``build`` creates the server of a run that continues.
    """
    if folder is None:
        return
    with writing(folder):
        try_folder(folder)
    if session.state.line is not None:
        session.admit(build)
        record_round(folder, session, method)


def round_line(session: Session, result: Round, metrics: Mapping[str, object]) -> RoundLine:
    """Return the line of a round, with the estimate in ``metrics``."""
    now = time.monotonic()
    scores = Scores(clients=_estimate(session, metrics))
    line = RoundLine(
        round=result.number,
        loss=result.loss if math.isfinite(result.loss) else None,
        trained=result.trained,
        participants=len(result.participants),
        refused=result.refused,
        raw=scores,
        prior=Scores(),
        weights=RoundWeights(tuple(result.participants.tolist()), tuple(result.alpha.tolist())),
        choice=result.choice,
        privacy=result.privacy,
        outliers=result.outliers,
        seconds=round(now - (session.recorded_at or now), 4),
    )
    session.recorded_at = now
    return line


def record_round(folder: Path, session: Session, method: Method) -> None:
    """Add the state's line, and what the server knows.

    The first line of a process drops those of later rounds, which are computed again after a checkpoint.
    """
    line, server = session.state.line, session.server
    assert line is not None
    assert server is not None
    if not session.records:
        _write(folder / ABOUT, json.dumps(plain_values(About(method.full_title, method.name, session.planned))))
        old = (folder / METRICS).read_text(encoding="utf-8") if (folder / METRICS).is_file() else ""
        kept = [earlier for earlier in complete_lines(old) if earlier.round < line.round]
        _write(folder / METRICS, "".join(map(to_line, kept)))
        session.records = True
    table = tuple(map(tuple, np.asarray(server.counts.table, dtype=np.int64).tolist()))
    labels = tuple(map(str, range(len(server.target))))
    _write(folder / SERVER_VIEW, json.dumps(ServerView(labels, table, tuple(server.target.tolist())).to_json()))
    path = folder / METRICS
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write(to_line(line))


def _estimate(session: Session, metrics: Mapping[str, object]) -> HeldOutMetrics | None:
    """Return what the clients' tallies of this round's model say; None where there are none."""
    value, error = (metrics.get(f"target_accuracy_{part}") for part in ("estimate", "standard_error"))
    if not isinstance(value, float):
        return None
    tally = pooled(list(session.state.tallies.values()))
    accuracy = float(tally.correct.sum() / tally.samples.sum())
    return HeldOutMetrics(accuracy, value, error if isinstance(error, float) else None)


def _write(path: Path, text: str) -> None:
    with replacing(path, private=True) as temporary:  # as the checkpoint: it holds T and all counts
        temporary.write_text(text, encoding="utf-8")
