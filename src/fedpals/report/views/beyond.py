"""Views that are not in the paper: selection rules, the test of label shift, unknown targets, private counts."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedpals.experiments.results import Summary
from fedpals.report.exhibit import METRICS, Exhibit
from fedpals.report.figures import Panel, legend_below
from fedpals.report.finished import FinishedExperiment
from fedpals.report.lines import Series, draw_series
from fedpals.report.looks import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, Look
from fedpals.report.run_checks import label_shift
from fedpals.report.sheet import Cell, Sheet, Value
from fedpals.report.table import Spread
from fedpals.report.watched import USES
from fedpals.shift import Homogeneity, Light, Tally
from fedpals.shift.evaluation import Correction, Evaluation, SelectedBy
from fedpals.weights import solve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RULES = {
    SelectedBy.VALIDATION: "target validation",
    SelectedBy.ESTIMATE: "clients' estimate",
    SelectedBy.POOLED: "pooled clients",
}
"""Rules that choose a round, or one of several methods."""
_CORRECTIONS = (Correction.RAW, Correction.PRIOR, Correction.CALIBRATED)
_COLOURS = (GREY, BLUE, ORANGE)
"""Colours of the rules."""
_LEVEL = 0.05
"""Level of the test of label shift."""
_LIGHTS: tuple[Light, ...] = ("green", "amber", "red")


def selection(finished: FinishedExperiment) -> list[Exhibit]:
    """Choose rounds, and one of several methods, by every rule, and compute what is lost without target data."""
    metric = finished.experiment.metric
    lines: list[list[Value | Cell]] = []
    panels = []
    for row in finished.rows:
        bars: dict[str, list[Spread]] = {}
        for correction in _CORRECTIONS:
            title, by_estimate = USES[correction], Evaluation.of(correction, SelectedBy.ESTIMATE)
            runs = [s for s in finished.runs if s.row == row.name and by_estimate in s.selected]
            names = [method.name for method in finished.methods if any(s.method == method.name for s in runs)]
            groups = {name: [[s] for s in runs if s.method == name] for name in names}
            if len(names) > 1:
                groups["chosen by the rule"] = list(_by_seed(runs).values())
            for name, candidates in groups.items():
                values = {
                    rule: [_score(c, Evaluation.of(correction, rule), metric) for c in candidates] for rule in _RULES
                }
                bars[title] = [Spread.of(rule_values) for rule_values in values.values()]
                losses = [
                    Spread.of(np.subtract(values[SelectedBy.VALIDATION], values[rule]))
                    for rule in (SelectedBy.ESTIMATE, SelectedBy.POOLED)
                ]
                lines.append([row.name, title, name, *bars[title], *losses])
        if bars:
            panels.append(Panel(row.name, partial(_draw_rules, groups=bars, metric=METRICS[metric])))
    columns = ["row", "evaluation", "method", *_RULES.values(), "lost by the estimate", "lost by pooling"]
    caption = (
        f"Test {METRICS[metric]} in %, mean ± standard deviation over seeds. The round (and the method, in the last "
        "line of each block and in the figures) is chosen on validation data of the target, by the clients' estimate "
        "of target accuracy, or by plain accuracy on all held-out samples of the clients. The last two columns are the "
        "losses compared with the first choice, paired by seed."
    )
    sheet = Sheet.of(columns, lines)
    lost = [row[-2].value for row in sheet.rows]
    most = max((spread.mean for spread in lost if isinstance(spread, Spread)), default=0.0)
    said = f"Choosing by the clients' estimate instead of target data loses at most {100 * max(most, 0):.1f} points."
    exhibit = Exhibit(
        "selection", "Choice without target data", caption, sheet, panels, tabular=True, finding=said if lines else ""
    )
    return [exhibit] if lines else []


def _by_seed(runs: Sequence[Summary]) -> dict[int, list[Summary]]:
    seeds = sorted({summary.seed for summary in runs})
    return {seed: [summary for summary in runs if summary.seed == seed] for seed in seeds}


def _score(candidates: Sequence[Summary], evaluation: Evaluation, metric: str) -> float:
    """Return the test metric of the candidate with the best score of an evaluation."""
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
    legend_below(ax)


def check(finished: FinishedExperiment) -> list[Exhibit]:
    """Test of label shift: lights, alarms and effects of all runs with held-out samples."""
    lines: list[list[Value | Cell]] = []
    curves: dict[tuple[str, str], list[float]] = {}
    for row in finished.rows:
        for method in finished.methods:
            tests = [_test(s) for s in finished.members(row, method) if s.tallies]
            if not tests:
                continue
            p = [test.p for test in tests]
            curves[row.name, method.name] = p
            lights = Counter(test.light for test in tests)
            worst = max(lights, key=_LIGHTS.index)
            suspects = Counter(client for test in tests for client in test.broken_clients)
            lines.append(
                [
                    row.name,
                    method.name,
                    Cell(", ".join(f"{lights[light]} {light}" for light in _LIGHTS if lights[light]), worst),
                    len(tests),
                    f"{100 * sum(value <= _LEVEL for value in p) / len(p):.0f} %",
                    _median(p),
                    _median(test.effect for test in tests),
                    _median(test.detectable for test in tests),
                    ", ".join(f"{client} ({count})" for client, count in suspects.most_common(4)),
                ]
            )
    columns = [
        "row", "method", "light", "runs", f"alarms (p ≤ {_LEVEL:g})", "median p", "median effect V", "detectable V",
        "clients named (runs)",
    ]  # fmt: skip
    caption = (
        "If clients differ only in their labels, a model makes the same errors at all of them. If that is true, but "
        f"for chance at most {100 * _LEVEL:g} % of the runs raise an alarm, and the curve of their p-values is not "
        "above the diagonal. If it is not, the curve should rise steeply at small p. An effect as large as the "
        "detectable V, a median too, would be found with a probability of 80 %."
    )
    size = 7.5, 4.2 + 0.1 * len(curves)  # with the legend, two curves in a line
    panel = Panel("distribution of p over runs", partial(_draw_p_values, curves=curves), size)
    sheet = Sheet.of(columns, lines)
    alarms = [(row[0].text, row[2].mark) for row in sheet.rows]
    red = ", ".join(dict.fromkeys(name for name, mark in alarms if mark == "red"))
    said = f"The test of label shift warns of {red}." if red else "The test of label shift finds nothing against it."
    exhibit = Exhibit("check", "Is it label shift?", caption, sheet, [panel], tabular=True, finding=said)
    return [exhibit] if lines else []


def _median(values: Iterable[float]) -> float | str:
    """Return a median with the two digits that mean something; of effects that no test would find there is none."""
    median = float(statistics.median(values))
    return float(f"{median:.2g}") if math.isfinite(median) else "none"


def _test(summary: Summary) -> Homogeneity:
    return label_shift([Tally.from_json(tally) for tally in summary.tallies], summary.seed, summary.federation)


def _draw_p_values(ax: Axes, curves: Mapping[tuple[str, str], Sequence[float]]) -> None:
    """Draw a curve per row and method: rows differ in colour, methods in the style of the line."""
    ax.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="uniform p")
    ax.axvline(_LEVEL, color=GREY, linewidth=0.8)
    colours, styles = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY), ("-", "--", "-.", ":")
    rows, methods = (list(dict.fromkeys(names)) for names in zip(*curves, strict=True))
    for (row, method), values in curves.items():
        colour, style = colours[rows.index(row) % len(colours)], styles[methods.index(method) % len(styles)]
        name = f"{row}, {method}" if len(methods) > 1 else row
        p = np.sort([0.0, *values, 1.0])
        share = np.clip(np.arange(len(p)) / len(values), 0, 1)
        ax.step(p, share, where="post", color=colour, linestyle=style, label=f"{name} ({len(values)} runs)")
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel("p")
    ax.set_ylabel("share of runs")
    legend_below(ax)


def unknown(finished: FinishedExperiment) -> list[Exhibit]:
    """Error of the server's T, if the server had to estimate it."""
    lines: list[list[Value | Cell]] = []
    panels = []
    for row in finished.rows:
        errors: dict[str, Spread] = {}
        for method in finished.methods:
            views = [s.federation for s in finished.members(row, method) if s.federation and s.federation.exact_target]
            values = [np.abs(np.subtract(f.target, f.exact_target or f.target)).sum() / 2 for f in views]
            if values:
                errors[method.name] = Spread.of(values)
                worst = round(100 * float(max(values)), 1)
                lines.append([row.name, method.name, errors[method.name], worst, len(values)])
        if errors:
            panels.append(Panel(row.name, partial(_draw_target_errors, spreads=errors), (4.6, 1.2 + 0.4 * len(errors))))
    caption = (
        "Half the sum of |T̂ − T| in % at the end of training: the share of the target's label mass that the server's T "
        "has at wrong labels. Mean ± standard deviation over seeds, and the worst seed."
    )
    sheet = Sheet.of(["row", "method", "error of T, %", "worst, %", "runs"], lines)
    return [Exhibit("unknown", "T from unlabelled inputs", caption, sheet, panels, tabular=True)] if lines else []


def _draw_target_errors(ax: Axes, spreads: Mapping[str, Spread]) -> None:
    means, errors = [100 * s.mean for s in spreads.values()], [100 * s.std for s in spreads.values()]
    ax.barh(list(spreads), means, xerr=errors, color=BLUE, error_kw={"ecolor": GREY})
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel("error of T (%)")


def privacy(finished: FinishedExperiment) -> list[Exhibit]:
    """Effect of noise on label counts: misplaced weight, and squared distance to the target."""
    lines: list[list[Value | Cell]] = []
    places: list[float] = []
    errors: list[Spread] = []
    for row in finished.rows:
        effects = [effect for s in finished.runs if s.row == row.name and (effect := _noise_effect(s)) is not None]
        if not effects or row.x is None:
            continue
        error, expected, squared_distance, exact = (Spread.of(values) for values in zip(*effects, strict=True))
        lines.append([row.name, row.x, error, expected, squared_distance.mean, exact.mean, len(effects)])
        places.append(row.x)
        errors.append(error)
    columns = [
        "row", "ε", "misplaced weight, %", "expected by the server, %", "squared distance to T",
        "squared distance to T without noise", "runs",
    ]  # fmt: skip
    caption = (
        "Half the sum of |α − α without noise|: the share of weight that noise on the clients' label counts moves to "
        "the wrong clients. The numbers also have the share that the server expects from ε alone, and the squared "
        "distance of the true weighted label mix to the target. Means over seeds, ± one standard deviation."
    )
    look = Look(0, BLUE, "-", "o")
    order = np.argsort(places)
    series = Series.of(look, [places[i] for i in order], [errors[i] for i in order])
    panel = Panel("misplaced weight", partial(_draw_error, series=series))
    sheet = Sheet.of(columns, lines)
    return [Exhibit("privacy", "Effect of private counts", caption, sheet, [panel])] if lines else []


def _noise_effect(summary: Summary) -> tuple[float, float, float, float] | None:
    """Return misplaced weight, the server's expectation of it, and squared distances to T with and without noise."""
    view = summary.federation
    if view is None or view.exact_counts is None or view.moved is None:  # also where the ESS was chosen while training
        return None
    options = summary.configuration.method.options
    chosen = {key: options.get(key) for key in ("lam", "ess", "max_weight")}
    exact = solve(view.exact_counts, view.target, **chosen)
    alpha = np.zeros(len(view.exact_counts))
    alpha[view.participants] = view.alpha
    mix = alpha @ exact.counts.marginals
    squared_distance = float(np.square(np.asarray(view.target) - mix).sum())
    return float(np.abs(alpha - exact.alpha).sum() / 2), view.moved, squared_distance, exact.squared_distance


def _draw_error(ax: Axes, series: Series) -> None:
    draw_series(ax, [series])
    ax.set_xscale("log")
    ax.set_xlabel("ε")
    ax.set_ylabel("misplaced weight (%)")
