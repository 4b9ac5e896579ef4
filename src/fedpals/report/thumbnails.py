"""Small pictures for the cards of the front page: a kilobyte or two each, in the page's colours, without text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedpals.labels import Vector
from fedpals.report.figures import CORNERS, hull
from fedpals.report.finished import FederationView, FinishedExperiment, is_limit
from fedpals.report.looks import Look
from fedpals.shift.evaluation import Evaluation
from fedpals.weights import solve

WIDTH, HEIGHT, _MARGIN = 320.0, 132.0, 10.0
_MAX_BARS = 14
"""Number of bars that are still told apart."""
_MAX_LINES = 8


def thumbnail(finished: FinishedExperiment) -> str:
    """Return the picture of an experiment as an ``svg`` element: curves, bars, a simplex or weights."""
    if not finished.runs:
        return _picture(_case(finished.federations))
    evaluation = next(iter(finished.evaluations), Evaluation.RAW)
    methods = [m for m in finished.methods if not (m.apart or is_limit(m.run))][:_MAX_LINES]
    placed = sorted((row.x, i) for i, row in enumerate(finished.rows) if row.x is not None)
    lines: list[tuple[Look, list[tuple[float, float]]]] = []
    if len(placed) > 2 and "curve" in finished.experiment.show:
        for m in methods:
            spreads = [(x, finished.spread(finished.rows[i], m, evaluation)) for x, i in placed]
            scale = math.log if finished.experiment.logarithmic else float
            lines.append((finished.looks[m.name], [(scale(x), s.mean) for x, s in spreads if s]))
        return _picture(_curves(lines))
    if "dynamics" in finished.experiment.show:
        row = finished.rows[0]
        for m in methods:
            runs = [s.curve for s in finished.members(row, m) if s.curve]
            if runs:
                rounds = min(map(len, runs))
                mean = np.mean([run[:rounds] for run in runs], axis=0)
                lines.append((finished.looks[m.name], list(enumerate(mean.tolist()))))
        if lines:
            return _picture(_curves(lines))
    cells = [
        (finished.looks[m.name], spread.mean)
        for row in finished.rows
        for m in methods
        if (spread := finished.spread(row, m, evaluation))
    ]
    return _picture(_bars(cells[:_MAX_BARS]) if cells else _case(finished.federations))


def _picture(parts: Iterable[str]) -> str:
    return f'<svg aria-hidden="true" viewBox="0 0 {WIDTH:g} {HEIGHT:g}">{"".join(parts)}</svg>'


def _curves(lines: Sequence[tuple[Look, Sequence[tuple[float, float]]]]) -> Iterable[str]:
    """Draw a line per method, the first method on top."""
    points = np.array([point for _, line in lines for point in line]).reshape(-1, 2)
    if not points.size:
        return
    low, span = points.min(axis=0), np.ptp(points, axis=0)
    span[span == 0] = 1.0
    for share in (0.0, 0.5, 1.0):
        y = _MARGIN + share * (HEIGHT - 2 * _MARGIN)
        yield f'<path class="grid" d="M{_MARGIN:g} {y:g}H{WIDTH - _MARGIN:g}"/>'
    for look, line in reversed(lines):
        if len(line) < 2:
            continue
        places = (np.array(line) - low) / span
        x = _MARGIN + places[:, 0] * (WIDTH - 2 * _MARGIN)
        y = HEIGHT - _MARGIN - places[:, 1] * (HEIGHT - 2 * _MARGIN)
        path = "L".join(f"{a:.0f} {b:.1f}" for a, b in zip(x, y, strict=True))
        yield f'<path d="M{path}" stroke="{look.css}" stroke-dasharray="{look.dashes}"/>'


def _bars(bars: Sequence[tuple[Look, float]]) -> Iterable[str]:
    room = (WIDTH - 2 * _MARGIN) / max(1, len(bars))
    top = max((value for _, value in bars), default=1.0) or 1.0
    for i, (look, value) in enumerate(bars):
        height = (HEIGHT - 2 * _MARGIN) * value / top
        x, y = _MARGIN + (i + 0.1) * room, HEIGHT - _MARGIN - height
        width = min(0.8 * room, 40)
        yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" fill="{look.css}"/>'
    yield f'<path class="grid" d="M{_MARGIN:g} {HEIGHT - _MARGIN:g}H{WIDTH - _MARGIN:g}"/>'


def _case(federations: Sequence[FederationView]) -> Iterable[str]:
    if federations and all(f.counts.shape[1] == 3 for f in federations):
        for i, federation in enumerate(federations[:2]):
            yield from _simplex(federation, WIDTH * (i + 0.5) / min(2, len(federations)))
    elif federations:
        weights = solve(federations[0].counts, federations[0].target, ess=0.5)
        blue, orange = Look(0, "#0072B2", "-", "o"), Look(0, "#E69F00", "-", "o")
        order = np.argsort(-weights.alpha, kind="stable")[: _MAX_BARS // 2]
        pairs = ((blue, weights.alpha), (orange, weights.fedavg))
        yield from _bars([(look, float(alpha[i])) for i in order for look, alpha in pairs])


def _simplex(federation: FederationView, middle: float) -> Iterable[str]:
    """Draw clients, their hull and the target in a triangle around ``middle``."""
    size = (HEIGHT - 2 * _MARGIN) / CORNERS[2, 1]
    marginals = federation.counts.marginals
    S = marginals if isinstance(marginals, np.ndarray) else marginals.toarray()

    def place(shares: Vector) -> Vector:
        flat = shares @ CORNERS
        return np.asarray(np.array([middle - size / 2, HEIGHT - _MARGIN]) + flat * np.array([size, -size]))

    def outline(points: Vector) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)

    yield f'<polygon class="grid" points="{outline(place(np.eye(3)))}"/>'
    yield f'<polygon points="{outline(hull(place(S)))}" fill="var(--blue)" fill-opacity="0.15" stroke="var(--blue)"/>'
    for x, y in place(S):
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="var(--blue)"/>'
    x, y = place(federation.target)
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="var(--red)"/>'
