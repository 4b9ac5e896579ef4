"""What the report shows beyond the paper: rules of selection, the test of label shift, private counts."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedpals.experiments.results import Summary
from fedpals.report.exhibit import METRICS, Exhibit
from fedpals.report.figures import Panel
from fedpals.report.finished import FinishedExperiment
from fedpals.report.lines import Series, draw_series
from fedpals.report.looks import BLUE, GREEN, GREY, ORANGE, RED, Look
from fedpals.report.sheet import Cell, Sheet, Value
from fedpals.report.table import Spread
from fedpals.shift import Homogeneity, Light, Tally, homogeneity
from fedpals.shift.evaluation import Correction, Evaluation, SelectedBy
from fedpals.weights import solve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RULES = {
    SelectedBy.VALIDATION: "target validation",
    SelectedBy.ESTIMATE: "clients' estimate",
    SelectedBy.POOLED: "pooled clients",
}
"""How a round, or one of several methods, may be chosen."""
_CORRECTIONS = {Correction.RAW: "as trained", Correction.PRIOR: "+prior", Correction.CALIBRATED: "calibrated"}
_COLOURS = (GREY, BLUE, ORANGE)
"""Of the rules."""
_LEVEL = 0.05
"""Of the test of label shift."""
_LIGHTS: tuple[Light, ...] = ("green", "amber", "red")


def selection(finished: FinishedExperiment) -> list[Exhibit]:
    """Choose rounds, and one of several methods, by every rule, and see what is lost without target data."""
    metric = finished.experiment.metric
    lines: list[list[Value | Cell]] = []
    panels = []
    for row in finished.rows:
        shown: dict[str, list[Spread]] = {}
        for correction, title in _CORRECTIONS.items():
            estimated = Evaluation.of(correction, SelectedBy.ESTIMATE)
            runs = [s for s in finished.runs if s.row == row.name and estimated in s.selected]
            names = [method.name for method in finished.methods if any(s.method == method.name for s in runs)]
            groups = {name: [[s] for s in runs if s.method == name] for name in names}
            if len(names) > 1:
                groups["the one that the rule chooses"] = list(_by_seed(runs).values())
            for name, candidates in groups.items():
                values = {
                    rule: [_worth(c, Evaluation.of(correction, rule), metric) for c in candidates] for rule in _RULES
                }
                shown[title] = [Spread.of(of_rule) for of_rule in values.values()]
                lost = [
                    Spread.of(np.subtract(values[SelectedBy.VALIDATION], values[rule]))
                    for rule in (SelectedBy.ESTIMATE, SelectedBy.POOLED)
                ]
                lines.append([row.name, title, name, *shown[title], *lost])
        if shown:
            panels.append(Panel(row.name, partial(_draw_rules, groups=shown, metric=METRICS[metric])))
    columns = ["row", "evaluation", "method", *_RULES.values(), "lost by the estimate", "lost by pooling"]
    caption = (
        f"Test {METRICS[metric]} in %, mean ± standard deviation over seeds, where the round (and the method, in the "
        "last line of each block and in the figures) is chosen by validation data of the target, by the clients' "
        "estimate of target accuracy, or by plain accuracy on all samples that clients held out; and what is lost "
        "against the first, paired by seed."
    )
    sheet = Sheet.of(columns, lines)
    return [Exhibit("selection", "Choice without target data", caption, sheet, panels, tabular=True)] if lines else []


def _by_seed(runs: Sequence[Summary]) -> dict[int, list[Summary]]:
    seeds = sorted({summary.seed for summary in runs})
    return {seed: [summary for summary in runs if summary.seed == seed] for seed in seeds}


def _worth(candidates: Sequence[Summary], evaluation: Evaluation, metric: str) -> float:
    """Return the test metric of the candidate that has the best score by a rule."""
    best = max(candidates, key=lambda summary: summary.selected[evaluation].score)
    value = best.test(evaluation, metric)
    return math.nan if value is None else value


def _draw_rules(ax: Axes, groups: Mapping[str, Sequence[Spread]], metric: str) -> None:
    places = np.arange(len(groups))
    width = 0.27
    for i, (rule, colour) in enumerate(zip(_RULES.values(), _COLOURS, strict=True)):
        spreads = [spreads[i] for spreads in groups.values()]
        heights, errors = [100 * s.mean for s in spreads], [100 * s.std for s in spreads]
        ax.bar(places + (i - 1) * width, heights, width, yerr=errors, color=colour, label=rule)
    ax.set_xticks(places, list(groups))
    ax.set_ylim(0, 100)
    ax.set_ylabel(f"target {metric} (%)")
    ax.legend(frameon=False, fontsize="small", loc="lower right", framealpha=0.8)


def check(finished: FinishedExperiment) -> list[Exhibit]:
    """Whether clients differ by more than labels: lights, alarms and effects of all runs with held-out samples."""
    lines: list[list[Value | Cell]] = []
    curves: dict[str, list[float]] = {}
    for row in finished.rows:
        for method in finished.methods:
            tests = [_test(s) for s in finished.members(row, method) if s.tallies]
            if not tests:
                continue
            p = [test.p for test in tests]
            curves[row.name if len(finished.methods) == 1 else f"{row.name}, {method.name}"] = p
            lights = Counter(test.light for test in tests)
            worst = max(lights, key=_LIGHTS.index)
            named = Counter(client for test in tests for client in test.broken_clients)
            lines.append(
                [
                    row.name,
                    method.name,
                    Cell(", ".join(f"{lights[light]} {light}" for light in _LIGHTS if lights[light]), worst),
                    len(tests),
                    f"{100 * sum(value <= _LEVEL for value in p) / len(p):.0f} %",
                    float(statistics.median(p)),
                    float(statistics.median(test.effect for test in tests)),
                    float(statistics.median(test.detectable for test in tests)),
                    ", ".join(f"{client} ({count})" for client, count in named.most_common(4)),
                    max(tests, key=lambda test: _LIGHTS.index(test.light)).advice,
                ]
            )
    columns = [
        "row", "method", "light", "runs", f"alarms (p ≤ {_LEVEL:g})", "median p", "median effect V",
        "V found at 80 % power", "clients named (runs)", "advice",
    ]  # fmt: skip
    caption = (
        "If clients differ by labels alone, a model errs alike at all of them. Where that holds, no more than "
        f"{_LEVEL:.0%} of the runs may raise an alarm: the curve of their p-values stays below the diagonal. Where it "
        "does not, the curve should rise at once."
    )
    panel = Panel("how often p is as small or smaller", partial(_draw_p_values, curves=curves), (7.5, 4.2))
    sheet = Sheet.of(columns, lines)
    return [Exhibit("check", "Is it label shift at all?", caption, sheet, [panel], tabular=True)] if lines else []


def _test(summary: Summary) -> Homogeneity:
    known = summary.federation
    tallies = [Tally.from_json(tally) for tally in summary.tallies]
    return homogeneity(tallies, summary.seed, labels=known.labels if known else None)


def _draw_p_values(ax: Axes, curves: Mapping[str, Sequence[float]]) -> None:
    ax.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="exactly at every level")
    ax.axvline(_LEVEL, color=GREY, linewidth=0.8)
    styles = [(colour, style) for style in ("-", "--") for colour in (BLUE, ORANGE, GREEN, RED)]
    for (name, values), (colour, style) in zip(curves.items(), styles * len(curves), strict=False):
        ordered = np.sort([0.0, *values, 1.0])
        share = np.clip(np.arange(len(ordered)) / len(values), 0, 1)
        ax.step(ordered, share, where="post", color=colour, linestyle=style, label=f"{name} ({len(values)} runs)")
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel("p")
    ax.set_ylabel("share of runs")
    ax.legend(frameon=False, fontsize="small")


def unknown(finished: FinishedExperiment) -> list[Exhibit]:
    """How far the server's T is off, where it had to estimate it."""
    lines: list[list[Value | Cell]] = []
    panels = []
    for row in finished.rows:
        shown: dict[str, Spread] = {}
        for method in finished.methods:
            known = [s.federation for s in finished.members(row, method) if s.federation and s.federation.exact_target]
            off = [np.abs(np.subtract(f.target, f.exact_target or f.target)).sum() / 2 for f in known]
            if off:
                shown[method.name] = Spread.of(off)
                lines.append([row.name, method.name, shown[method.name], 100 * float(max(off)), len(off)])
        if shown:
            panels.append(Panel(row.name, partial(_draw_wrong, shown=shown), (4.6, 1.2 + 0.4 * len(shown))))
    caption = (
        "Half the sum of |T̂ − T| in % at the end of training: the share of the target's labels that the server has "
        "wrong. Mean ± standard deviation over seeds, and the worst of them."
    )
    sheet = Sheet.of(["row", "method", "T that is wrong, %", "worst, %", "runs"], lines)
    return [Exhibit("unknown", "T from unlabelled inputs", caption, sheet, panels, tabular=True)] if lines else []


def _draw_wrong(ax: Axes, shown: Mapping[str, Spread]) -> None:
    means, errors = [100 * s.mean for s in shown.values()], [100 * s.std for s in shown.values()]
    ax.barh(list(shown), means, xerr=errors, color=BLUE, error_kw={"ecolor": GREY})
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel("T that is wrong (%)")


def privacy(finished: FinishedExperiment) -> list[Exhibit]:
    """How far noise on label counts puts the weights off, and where they lead."""
    lines: list[list[Value | Cell]] = []
    places: list[float] = []
    errors: list[Spread] = []
    for row in finished.rows:
        found = [error for s in finished.runs if s.row == row.name and (error := _error_of_weights(s)) is not None]
        if not found or row.x is None:
            continue
        off, expected, distances, exact = (Spread.of(values) for values in zip(*found, strict=True))
        lines.append([row.name, row.x, off, expected, distances.mean, exact.mean, len(found)])
        places.append(row.x)
        errors.append(off)
    columns = [
        "row", "ε", "weight that is misplaced, %", "expected by the server, %", "distance to T",
        "distance to T without noise", "runs",
    ]  # fmt: skip
    caption = (
        "Half the sum of |α − α without noise|, the share of weight that noise on the clients' label counts moves to "
        "the wrong clients; what the server expects of it from ε alone; and the squared distance of the true weighted "
        "label mix from the target. One standard deviation over seeds."
    )
    look = Look(0, BLUE, "-", "o")
    order = np.argsort(places)
    series = Series.of(look, [places[i] for i in order], [errors[i] for i in order])
    panel = Panel("misplaced weight", partial(_draw_error, series=series))
    sheet = Sheet.of(columns, lines)
    return [Exhibit("privacy", "What private counts cost", caption, sheet, [panel])] if lines else []


def _error_of_weights(summary: Summary) -> tuple[float, float, float, float] | None:
    """Return misplaced weight, the server's expectation of it, and the distances to T with noise and without."""
    known = summary.federation
    if known is None or known.exact_counts is None or known.moved is None:
        return None
    given = summary.configuration.method.options
    exact = solve(known.exact_counts, known.target, lam=given.get("lam"), ess=given.get("ess"))
    alpha = np.zeros(len(known.exact_counts))
    alpha[known.participants] = known.alpha
    mix = alpha @ exact.counts.marginals
    distance = float(np.square(np.asarray(known.target) - mix).sum())
    return float(np.abs(alpha - exact.alpha).sum() / 2), known.moved, distance, exact.squared_distance


def _draw_error(ax: Axes, series: Series) -> None:
    draw_series(ax, [series])
    ax.set_xscale("log")
    ax.set_xlabel("ε")
    ax.set_ylabel("misplaced weight (%)")
