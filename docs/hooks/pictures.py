"""The pictures of the concepts, drawn from the examples and the stored results.

`python docs/hooks/pictures.py` draws them anew; a test says when that is due.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from fedpals import LabelCounts, ess_grid, solve
from fedpals.labels.tables import read_counts, read_target
from fedpals.report.advice import mismatch
from fedpals.report.figures import Panel, compose, draw_simplex, save_figure
from fedpals.report.finished import FinishedExperiment, read
from fedpals.report.looks import BLUE, GREEN, GREY, ORANGE, RED, SKY
from fedpals.report.paired import Paired
from fedpals.shift.evaluation import Evaluation

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "concepts"
_RETAIL = ROOT / "examples" / "retail"
_UNCOVERED = [0.05, 0.05, 0.90]
"""A store of electronics alone: more of them than any of the six stores has."""
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "fedpals", "font.family": ["sans-serif"], "font.size": 11}


def stores() -> tuple[LabelCounts, list[float]]:
    """Return the stores' label counts, and T of the new store."""
    counts = read_counts(_RETAIL / "stores.csv")
    return counts, list(read_target(_RETAIL / "new-store.csv", counts.labels).shares.values())


def label_shift() -> Any:
    """Draw the label mix of every store beside that of the new one."""
    counts, target = stores()
    shares = 100 * np.vstack([np.asarray(counts.marginals), target])
    names = [*(counts.client(i) for i in range(len(shares) - 1)), "the new store"]
    places = np.array([*range(len(shares) - 1), len(shares) - 0.5])

    def draw(ax: Any) -> None:
        left = np.zeros(len(shares))
        for k, colour in enumerate((ORANGE, SKY, BLUE)):
            ax.barh(places, shares[:, k], 0.8, left, color=colour, label=counts.label(k))
            left += shares[:, k]
        ax.set_yticks(places, names)
        ax.invert_yaxis()
        ax.set_xlim(0, 100)
        ax.set_xlabel("share of purchases (%)")
        ax.legend(ncols=3, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))

    return compose([Panel("", draw, (7.5, 3.6))])


def coverage() -> Any:
    """Draw the stores as points in the triangle of three labels, with a target that is covered and one that is not."""
    counts, target = stores()
    panels = [
        Panel(title, partial(draw_simplex, solutions=[solve(counts, T, ess=0.5)]), (4.4, 3.8))
        for title, T in (("covered: the new store", target), ("not covered: electronics only", _UNCOVERED))
    ]
    return compose(panels)


def effective_sample_size() -> Any:
    """Draw the weights at three ESS, and what every ESS costs in distance to the target."""
    counts, target = stores()
    chosen = [(solve(counts, target, **given), colour) for given, colour in (
        ({"lam": 0.0}, GREEN), ({"ess": 0.5}, BLUE), ({"lam": math.inf}, ORANGE),
    )]  # fmt: skip
    path = [chosen[0][0], *ess_grid(counts, target, 15), chosen[-1][0]]

    def draw_weights(ax: Any) -> None:
        places = np.arange(chosen[0][0].alpha.size)
        for i, (weights, colour) in enumerate(chosen):
            ax.barh(places + 0.27 * (i - 1), weights.alpha, 0.27, color=colour, label=f"ESS {weights.ess:.0%}")
        ax.set_yticks(places, [counts.client(int(i)) for i in places])
        ax.invert_yaxis()
        ax.set_xlabel("weight")
        ax.set_xlim(right=0.5)  # room for the legend
        ax.legend(frameon=False, loc="lower right")

    def draw_cost(ax: Any) -> None:
        ax.plot([100 * w.ess for w in path], [100 * mismatch(w.target, w.marginal) for w in path], color=GREY)
        for weights, colour in chosen:
            ax.plot(
                100 * weights.ess, 100 * mismatch(weights.target, weights.marginal), "o", color=colour, markersize=9
            )
        ax.set_xlabel("effective sample size (%)")
        ax.set_ylabel("samples for which the mix is wrong (%)")
        ax.set_xlim(0, 104)
        ax.set_ylim(bottom=0)

    return compose([Panel("weights of the stores", draw_weights), Panel("what they cost", draw_cost)])


def prior_correction() -> Any:
    """Draw two labels' densities along one measurement, and where the best decision lies for two priors."""
    x = np.linspace(-4, 6, 400)
    densities = [np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi) for mean in (0.0, 2.0)]

    def draw(ax: Any, sick: float, other: float | None = None) -> None:
        for density, share, colour, name in zip(
            densities, (1 - sick, sick), (SKY, RED), ("healthy", "sick"), strict=True
        ):
            ax.fill_between(x, share * density, color=colour, alpha=0.45, linewidth=0, label=f"{name}, {share:.0%}")
        if other is not None:
            ax.axvline(_boundary(other), color=GREY, linestyle=":", label="decision learned at the clients")
        ax.axvline(_boundary(sick), color=BLUE, linewidth=2, label="best decision here")
        ax.set_ylim(0, 0.42)
        ax.set_yticks([])
        ax.set_xlabel("a measurement")
        ax.legend(frameon=False, fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))

    return compose([
        Panel("clients: most are sick", partial(draw, sick=0.8)),
        Panel("target: most are healthy", partial(draw, sick=0.36, other=0.8)),
    ])  # fmt: skip


def _boundary(sick: float) -> float:
    """Return where (1 − p)·N(x; 0, 1) = p·N(x; 2, 1)."""
    return 1 + 0.5 * math.log((1 - sick) / sick)


def when_weights_help() -> Any:
    """Draw what weights, correction and both add to FedAvg on every row of table 1, with standard errors."""
    ((finished,), _) = read([ROOT / "results" / "table1"])
    bars = (("weights", ORANGE), ("correction", GREY), ("weights, on top of the correction", BLUE))
    rows = [(row.name, gains(finished, row)) for row in finished.rows]

    def draw(ax: Any) -> None:
        for i, (name, colour) in enumerate(bars):
            for place, (_, values) in enumerate(rows):
                gain, at = values[i], place + 0.27 * (i - 1)
                error = 100 * (gain.error or 0.0)
                ax.barh(at, 100 * gain.difference, 0.25, xerr=error, color=colour, ecolor="#333",
                        label=None if place else name)  # fmt: skip
                end = max(100 * gain.difference, 0) + error
                ax.annotate(f"{100 * gain.difference:+.1f}", (end, at), (4, 0), textcoords="offset points",
                            va="center", fontsize=9)  # fmt: skip
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set_yticks(range(len(rows)), [name for name, _ in rows])
        ax.invert_yaxis()
        ax.set_xlabel("points of target accuracy")
        ax.margins(x=0.12)
        ax.legend(frameon=False, loc="lower right")

    return compose([Panel("", draw, (8.5, 5.2))])


def gains(finished: FinishedExperiment, row: Any) -> tuple[Paired, Paired, Paired]:
    """Return FedPALS − FedAvg as trained, FedAvg +prior − FedAvg, and FedPALS − FedAvg, both +prior."""
    method = {column.name: column for column in finished.methods}
    fedavg, fedpals = method["FedAvg"], method["FedPALS"]

    pairs = [
        Paired.of(finished.scores(row, own, use), finished.scores(row, fedavg, baseline))
        for own, use, baseline in (
            (fedpals, Evaluation.RAW, Evaluation.RAW),
            (fedavg, Evaluation.PRIOR, Evaluation.RAW),
            (fedpals, Evaluation.PRIOR, Evaluation.PRIOR),
        )
    ]
    weights, correction, both = (pair for pair in pairs if pair is not None)
    return weights, correction, both


PICTURES: dict[str, Callable[[], Any]] = {
    "label-shift": label_shift,
    "coverage": coverage,
    "effective-sample-size": effective_sample_size,
    "prior-correction": prior_correction,
    "when-weights-help": when_weights_help,
}


def draw_all(folder: Path) -> None:
    """Write every picture to a folder, as SVG whose text stays text."""
    with mpl.rc_context(_STYLE):
        for name, draw in PICTURES.items():
            figure = draw()
            figure.get_layout_engine().set(w_pad=0.15)  # readers' fonts may be wider than the one measured here
            save_figure(figure, folder / f"{name}.svg")


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
