"""Accuracy per round, with bands over seeds, and the final comparison of methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpals.record import Record
from fedpals.report.figures import BLUE, GREEN, GREY, ORANGE, RED, new_figure
from fedpals.report.table import summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette again, with a line style each: readable in print and with any colour vision.
_LOOKS = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (RED, ":"), ("#CC79A7", "-"), ("#56B4E9", "--"), (GREY, "-."))


def comparison_figure(records: Sequence[Record]) -> Figure:
    """Draw test accuracy per round of every method (left) and at the selected round, raw and corrected (right)."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _curves(left, records)
    _bars(right, records)
    return figure


def _curves(ax: Axes, records: Sequence[Record]) -> None:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.run.title, []).append(record)
    for (title, members), (colour, style) in zip(groups.items(), _LOOKS * 9, strict=False):
        lines = [[line["raw"]["test"]["accuracy"] for line in record.metrics()] for record in members]
        shortest = min(map(len, lines))
        values = 100 * np.array([line[:shortest] for line in lines])
        rounds = np.arange(1, shortest + 1)
        mean, std = values.mean(axis=0), values.std(axis=0)
        ax.plot(rounds, mean, style, color=colour, label=title)
        ax.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.08, linewidth=0)
    ax.set_xlabel("round")
    ax.set_ylabel("target accuracy (%)")
    ax.set_ylim(0, 100)
    ax.set_title("during training")
    ax.legend(frameon=False, fontsize="small")


def _bars(ax: Axes, records: Sequence[Record]) -> None:
    rows = summarise(records)
    places = np.arange(len(rows))
    height = 0.38
    for shift, colour, label, spreads in (
        (-height / 2, BLUE, "model as trained", [row.raw for row in rows]),
        (height / 2, ORANGE, "with target prior correction", [row.prior for row in rows]),
    ):
        means, errors = [100 * s.mean for s in spreads], [100 * s.std for s in spreads]
        ax.barh(places + shift, means, height, xerr=errors, color=colour, label=label, error_kw={"ecolor": GREY})
    ax.set_yticks(places, [row.title for row in rows])
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("target accuracy (%), mean ± std over seeds")
    ax.set_title("round selected on validation")
    ax.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
