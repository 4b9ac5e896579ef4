"""Curves: a metric and the squared projection distance against the rows' x, and the metric after every round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedpals.experiments.experiment import Row
from fedpals.report.advice import choice_sentence
from fedpals.report.exhibit import METRICS, Exhibit
from fedpals.report.figures import Panel
from fedpals.report.finished import FinishedExperiment, is_limit
from fedpals.report.lines import Series, draw_ess, draw_series, name_places
from fedpals.report.looks import BLUE, Look
from fedpals.report.sheet import Cell, Sheet, Value
from fedpals.report.table import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIN_TICK_GAP = 0.06
"""Share of the axis that must be between two tick labels."""
_DISTANCE_LOOK = Look(0, BLUE, "-", "o")


def curve(finished: FinishedExperiment) -> list[Exhibit]:
    """Metric against the rows' x, a line per method; as trained, and corrected."""
    rows, places, names = _axis(finished)
    metric = METRICS[finished.experiment.metric]
    panels, lines = [], []
    legend: dict[str, Look] = {}
    for evaluation, title in finished.evaluations.items():
        series = []
        for method in finished.methods:
            points = [
                (x, s) for x, row in zip(places, rows, strict=True) if (s := finished.spread(row, method, evaluation))
            ]
            if points:
                look = legend[method.name] = finished.looks[method.name]
                series.append(Series.of(look, [x for x, _ in points], [s for _, s in points]))
        panels.append(Panel(title, partial(_draw_curve, finished=finished, series=series, ticks=(places, names))))
        for x, row in zip(places, rows, strict=True):
            head: list[Value | Cell] = [row.name, x, title]
            spreads = [finished.spread(row, method, evaluation) for method in finished.methods]
            lines += [[*head, *spreads]] if any(spreads) else []
    title = f"Test {metric} against {finished.experiment.axis or 'the rows'}"
    caption = f"{title}; bands are one standard deviation over seeds."
    columns = ["row", finished.experiment.axis or "x", "evaluation", *(method.name for method in finished.methods)]
    return [Exhibit("curve", title, caption, Sheet.of(columns, lines), panels, legend)] if rows else []


def _draw_curve(
    ax: Axes, finished: FinishedExperiment, series: Sequence[Series], ticks: tuple[list[float], list[str]]
) -> None:
    draw_series(ax, series)
    _draw_axis(ax, finished, ticks)
    ax.set_ylabel(f"target {METRICS[finished.experiment.metric]} (%)")


def _draw_axis(ax: Axes, finished: FinishedExperiment, ticks: tuple[list[float], list[str]]) -> None:
    if finished.experiment.logarithmic:
        ax.set_xscale("log")
    if _all_fit(ticks[0], logarithmic=finished.experiment.logarithmic):
        name_places(ax, *ticks)
        ax.minorticks_off()
    ax.set_xlabel(finished.experiment.axis)


def _all_fit(places: Sequence[float], *, logarithmic: bool) -> bool:
    """Return whether positions on the axis are far enough apart for a tick label each."""
    x = np.log(places) if logarithmic else np.asarray(places)
    return bool((np.diff(x) >= _MIN_TICK_GAP * np.ptp(x)).all())


def _axis(finished: FinishedExperiment) -> tuple[list[Row], list[float], list[str]]:
    """Return the rows with an x, sorted by it, and their ticks; if no row has one, all rows side by side."""
    positions = sorted((row.x, i) for i, row in enumerate(finished.rows) if row.x is not None)
    if not positions:
        return finished.rows, [float(i) for i in range(len(finished.rows))], [row.name for row in finished.rows]
    return [finished.rows[i] for _, i in positions], [x for x, _ in positions], [f"{x:g}" for x, _ in positions]


def distance(finished: FinishedExperiment) -> list[Exhibit]:
    """Squared projection distance d(T, S) against the rows' x."""
    rows, places, names = _axis(finished)
    points = [
        (x, row, Spread.of(summary.projection_distance for summary in finished.by_seed(row).values()))
        for x, row in zip(places, rows, strict=True)
        if finished.by_seed(row)
    ]
    if not points:
        return []
    series = [Series.of(_DISTANCE_LOOK, [x for x, _, _ in points], [spread for _, _, spread in points])]
    sheet = Sheet.of(
        ["row", finished.experiment.axis or "x", "mean", "std", "seeds"],
        [[row.name, x, spread.mean, spread.std, spread.seeds] for x, row, spread in points],
    )
    caption = (
        "Squared distance d(T, S) from the target's label marginal to the convex hull of the clients', mean and one "
        "standard deviation over seeds. At 0 the target is covered: some mix of clients has exactly its labels."
    )
    panel = Panel(
        "squared projection distance", partial(_draw_distance, finished=finished, series=series, ticks=(places, names))
    )
    return [Exhibit("distance", "Squared projection distance", caption, sheet, [panel])]


def _draw_distance(
    ax: Axes, finished: FinishedExperiment, series: Sequence[Series], ticks: tuple[list[float], list[str]]
) -> None:
    draw_series(ax, series, scale=1)
    _draw_axis(ax, finished, ticks)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("squared projection distance d(T, S)")


def dynamics(finished: FinishedExperiment) -> list[Exhibit]:
    """Metric after every round, a panel per row and a line per method."""
    metric = METRICS[finished.experiment.metric]
    rivals = [method.name for method in finished.methods if not is_limit(method.run)]
    panels, best = [], []
    lines: list[list[Value | Cell]] = []
    for row in finished.rows:
        curves = {
            method.name: [s.curve for s in finished.members(row, method) if s.curve] for method in finished.methods
        }
        curves = {name: runs for name, runs in curves.items() if runs}
        if not curves:
            continue
        series = [Series.of_rounds(finished.looks[name], runs) for name, runs in curves.items()]
        panels.append(Panel(row.name, partial(_draw_rounds, series=series, metric=metric)))
        spreads = {name: _by_round(runs) for name, runs in curves.items()}
        last = {name: spreads[name][-1].mean for name in rivals if name in spreads}
        if last:
            first = max(last, key=last.__getitem__)
            best.append(f"{first} for {row.name} ({100 * last[first]:.1f} %)")
        for i in range(max(map(len, spreads.values()))):
            cells = [spreads.get(method.name, [])[i : i + 1] for method in finished.methods]
            lines.append([row.name, i + 1, *(cell[0] if cell else None for cell in cells)])
    caption = f"Test {metric} after every round, as trained; bands are one standard deviation over seeds."
    sheet = Sheet.of(["row", "round", *(method.name for method in finished.methods)], lines)
    said = f"Best in the last round, as trained: {'; '.join(best)}." if best else ""
    title = f"Test {metric} during training"
    return [Exhibit("dynamics", title, caption, sheet, panels, _legend(finished), finding=said)] if lines else []


def ess(finished: FinishedExperiment) -> list[Exhibit]:
    """Effective sample size of every round, where it was chosen while training; a panel per row."""
    panels, sentences = [], []
    lines: list[list[Value | Cell]] = []
    legend: dict[str, Look] = {}
    for row in finished.rows:
        chosen = {m.name: [s.ess for s in finished.members(row, m) if s.ess] for m in finished.methods}
        chosen = {name: runs for name, runs in chosen.items() if runs}
        if not chosen:
            continue
        series = [Series.range_of_rounds(finished.looks[name], runs) for name, runs in chosen.items()]
        panels.append(Panel(row.name, partial(draw_ess, series=series)))
        for name, runs in chosen.items():
            legend[name] = finished.looks[name]
            lines += [[row.name, name, i, spread] for i, spread in enumerate(_by_round(runs), start=1)]
            sentences.append(f"{row.name}, {name}: {choice_sentence(runs)}")
    said = "ESS chosen on the clients' held-out samples, mean over seeds; bands are their range."
    caption = " ".join([said, *sentences])
    sheet = Sheet.of(["row", "method", "round", "ESS"], lines)
    return [Exhibit("ess", "Chosen effective sample size", caption, sheet, panels, legend)] if lines else []


def _by_round(runs: Sequence[Sequence[float]]) -> list[Spread]:
    return [Spread.of(run[i] for run in runs) for i in range(min(map(len, runs)))]


def _draw_rounds(ax: Axes, series: Sequence[Series], metric: str) -> None:
    draw_series(ax, series)
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("round")
    ax.set_ylabel(f"target {metric} (%)")


def _legend(finished: FinishedExperiment) -> dict[str, Look]:
    return {method.name: finished.looks[method.name] for method in finished.methods}
