"""Line plots with bands over seeds, and bar plots that compare methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector
from fedpals.report.figures import legend_below, new_figure
from fedpals.report.looks import BLUE, GREY, ORANGE, Look, looks
from fedpals.report.table import Spread, summarise
from fedpals.shift.evaluation import Correction, SelectedBy
from fedpals.simulation.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_LETTERS = 36
"""Number of letters of all tick labels above which they are rotated."""


@dataclass(frozen=True, eq=False)
class Series:
    """A line and its band at each ``x``."""

    look: Look
    x: Vector
    mean: Vector
    low: Vector
    high: Vector

    @classmethod
    def of(cls, look: Look, x: npt.ArrayLike, spreads: Sequence[Spread]) -> Series:
        """Build a series from one spread per ``x``; the band is one standard deviation."""
        mean, std = np.array([s.mean for s in spreads]), np.array([s.std for s in spreads])
        return cls(look, np.asarray(x), mean, mean - std, mean + std)

    @classmethod
    def of_rounds(cls, look: Look, lines: Sequence[Sequence[float]]) -> Series:
        """Build a series from runs with a value per round, up to the last round of the shortest run."""
        rounds = min(map(len, lines))
        spreads = [Spread.of(line[i] for line in lines) for i in range(rounds)]
        return cls.of(look, np.arange(1, rounds + 1), spreads)

    @classmethod
    def range_of_rounds(cls, look: Look, lines: Sequence[Sequence[float]]) -> Series:
        """As `of_rounds`, with a band from the smallest to the largest run: of values that are few and far apart."""
        rounds = min(map(len, lines))
        values = np.array([line[:rounds] for line in lines])
        return cls(look, np.arange(1.0, rounds + 1), values.mean(axis=0), values.min(axis=0), values.max(axis=0))


@dataclass(frozen=True)
class Compared:
    """Bars of a method: as trained, with the prior correction, and the paper's value."""

    title: str
    raw: Spread
    prior: Spread
    reported: Spread | None = None


def draw_series(ax: Axes, series: Sequence[Series], labels: Sequence[str] = (), scale: float = 100) -> None:
    """Draw lines, each with its band, multiplied by ``scale``; by default in %."""
    for i, s in enumerate(series):
        mean, name = scale * s.mean, f"method-{s.look.number}"
        ax.plot(
            s.x,
            mean,
            s.look.style,
            color=s.look.colour,
            marker=s.look.marker,
            markersize=4.5,
            markevery=(i % 7, max(1, s.x.size // 8)) if s.x.size > 16 else None,
            label=labels[i] if labels else None,
            gid=f"{name}-line",
        )
        band = ax.fill_between(s.x, scale * s.low, scale * s.high, color=s.look.colour, alpha=0.08, linewidth=0)
        band.set_gid(f"{name}-band")
    ax.grid(visible=True, color=GREY, alpha=0.2, linewidth=0.6)
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, 0), min(high, 1.01 * scale) if scale == 100 else high)  # bands may go beyond possible values


def draw_ess(ax: Axes, series: Sequence[Series], labels: Sequence[str] = ()) -> None:
    """Draw the effective sample size of every round, in % of the participants' samples."""
    draw_series(ax, series, labels)
    ax.set_ylim(0, 105)
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("round")
    ax.set_ylabel("effective sample size (%)")


def draw_candidates(ax: Axes, candidates: Sequence[tuple[int, float, float]]) -> None:
    """Draw what was compared in every round: dots at (round, ESS), coloured by the loss above the round's smallest."""
    rounds, ess, losses = np.transpose(candidates)
    dots = ax.scatter(rounds, 100 * ess, s=24, c=losses, cmap="viridis_r", alpha=0.7, linewidths=0, zorder=1)
    ax.figure.colorbar(dots, ax=ax, label="estimated loss above the round's best")


def draw_compared(ax: Axes, rows: Sequence[Compared], metric: str = "accuracy") -> None:
    """Draw two bars per method, with error bars of one standard deviation, and the paper's value as a diamond."""
    places = np.arange(len(rows))
    height = 0.38
    for shift, colour, label, spreads in (
        (-height / 2, BLUE, "model as trained", [row.raw for row in rows]),
        (height / 2, ORANGE, "with target prior correction", [row.prior for row in rows]),
    ):
        means, errors = [100 * s.mean for s in spreads], [100 * s.std for s in spreads]
        ax.barh(places + shift, means, height, xerr=errors, color=colour, label=label, error_kw={"ecolor": GREY})
    reported = [(place - height / 2, row.reported) for place, row in zip(places, rows, strict=True) if row.reported]
    if reported:
        y, means = [place for place, _ in reported], [100 * spread.mean for _, spread in reported]
        ax.plot(means, y, "D", markersize=5, markerfacecolor="white", markeredgecolor="#111111", label="in the paper")
    ax.set_yticks(places, [row.title for row in rows])
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel(f"target {metric} (%), mean ± std over seeds")
    legend_below(ax, 0.4)


def draw_labels(ax: Axes, labels: Sequence[str], shares: Sequence[tuple[Look, Sequence[float | None]]]) -> None:
    """Draw a group of bars per label, one bar per method; no bar if the target does not have the label."""
    places = np.arange(len(labels))
    width = 0.84 / max(1, len(shares))
    for i, (look, values) in enumerate(shares):
        heights = [np.nan if value is None else 100 * value for value in values]
        x = places + (i - (len(shares) - 1) / 2) * width
        for k, bar in enumerate(ax.bar(x, heights, 0.92 * width, color=look.colour)):
            bar.set_gid(f"method-{look.number}-{k}")
    name_places(ax, places, labels)
    ax.set_ylim(0, 100)
    ax.set_ylabel("recognised (%)")


def name_places(ax: Axes, places: npt.ArrayLike, names: Sequence[str]) -> None:
    """Write names below their positions on the horizontal axis, rotated if they are long."""
    ax.set_xticks(places, names)
    if sum(map(len, names)) > _MAX_LETTERS:
        ax.tick_params(axis="x", labelrotation=40)
        for label in ax.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")


def comparison_figure(records: Sequence[Record]) -> Figure:
    """Draw test accuracy per round of every method (left) and at the selected round, raw and corrected (right)."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _curves(left, records)
    summaries = summarise(records)
    draw_compared(
        right,
        [Compared(row.title, row.accuracy[Correction.RAW], row.accuracy[Correction.PRIOR]) for row in summaries],
    )
    estimate = all(row.selected_by is SelectedBy.ESTIMATE for row in summaries)
    right.set_title("round selected by the clients' estimate" if estimate else "round selected on validation")
    return figure


def _curves(ax: Axes, records: Sequence[Record]) -> None:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.run.method.full_title, []).append(record)
    method_looks = looks((title, {"method": members[0].run.method.name}) for title, members in groups.items())
    lines = {
        title: [[line.raw.test.accuracy for line in record.lines() if line.raw.test] for record in members]
        for title, members in groups.items()
    }
    draw_series(ax, [Series.of_rounds(method_looks[title], runs) for title, runs in lines.items()], list(lines))
    ax.set_xlabel("round")
    ax.set_ylabel("target accuracy (%)")
    ax.set_ylim(0, 100)
    ax.set_title("during training")
    ax.legend(frameon=False, fontsize="small")
