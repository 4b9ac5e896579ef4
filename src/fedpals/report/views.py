"""What the report shows of an experiment: a function per view, from finished runs to exhibits."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedpals.errors import InputError
from fedpals.experiments.experiment import Method, Row, View
from fedpals.report import findings
from fedpals.report.curves import Compared, Series, draw_compared, draw_labels, draw_series, name_places
from fedpals.report.exhibit import METRICS, Exhibit
from fedpals.report.figures import Panel, by_size, draw_simplex, weights_panels
from fedpals.report.heatmap import marginals_panel
from fedpals.report.looks import BLUE, Look
from fedpals.report.sheet import Cell, Mark, Sheet, Value
from fedpals.report.study import Federation, Study, is_oracle
from fedpals.report.table import Spread
from fedpals.weights import Weights, ess_grid, solve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ESS = (0.25, 0.5, 0.75)
"""Of the weights figure, where the methods name none: the paper's."""
_MOST_LABELS = 40
"""Of more labels the target's most frequent ones are drawn."""
_NEAREST = 0.06
"""Of an axis' length: places nearer to each other cannot both be named."""
_PLAIN = Look(0, BLUE, "-", "o")


def exhibits(study: Study) -> list[Exhibit]:
    """Return all that an experiment's ``show`` asks for, in its order."""
    return [exhibit for view in study.experiment.show for exhibit in VIEWS[view](study)]


def table(study: Study) -> list[Exhibit]:
    """Mean ± std of every row and method, as trained and corrected, and the paper's beside them."""
    methods = study.methods
    lines: list[list[Value | Cell]] = []
    best: dict[str, Counter[str]] = {selection: Counter() for selection in study.selections}
    for row in study.rows:
        for selection, title in study.selections.items():
            spreads = {method.name: study.spread(row, method, selection) for method in methods}
            if not any(spreads.values()):
                continue
            rivals = {m.name: s for m in methods if (s := spreads[m.name]) and not (m.apart or is_oracle(m.run))}
            first = max(rivals, key=lambda name: rivals[name].mean, default=None)
            best[selection].update([first] if first and len(rivals) > 1 else [])
            cells = [Cell(spreads[m.name], _mark(m, rivals, first), _note(study, row, m, selection)) for m in methods]
            lines.append([row.name, title, *cells])
        if row.reported:
            told = [_reported(row.reported.get(method.name)) for method in methods]
            lines.append([row.name, "in the paper", *(Cell(value, "quiet") for value in told)])
    sheet = Sheet.of(["row", "evaluation", *(method.name for method in methods)], lines)
    metric = METRICS[study.experiment.metric]
    aside = ", ".join(["Oracle", *(m.name for m in methods if m.apart and not is_oracle(m.run))])
    caption = (
        f"Test {metric} in the target domain in %, mean ± standard deviation over seeds, at the round selected on "
        "validation data of the target; where a line says no target data, by the clients' own estimate. Bold: the "
        f"best mean of a line, {aside} aside; underlined: within one standard deviation of it. "
        + " ".join(_tally(title, best[selection]) for selection, title in study.selections.items() if best[selection])
    )
    panels = [
        Panel(row.name, partial(_draw_row, study=study, row=row), (4.8, 1.6 + 0.34 * len(methods)))
        for row in study.rows
    ]
    return [Exhibit("table", f"Test {metric}", caption, sheet, panels, tabular=True)] if lines else []


def _draw_row(ax: Axes, study: Study, row: Row) -> None:
    compared = []
    for method in study.methods:
        raw, prior = (study.spread(row, method, selection) for selection in ("raw", "prior"))
        told = _reported(row.reported.get(method.name))
        if raw and prior:
            compared.append(Compared(method.name, raw, prior, told))
    draw_compared(ax, compared, METRICS[study.experiment.metric])


def _mark(method: Method, rivals: Mapping[str, Spread], first: str | None) -> Mark:
    if method.name not in rivals or first is None or len(rivals) < 2:
        return "quiet" if is_oracle(method.run) else ""
    if method.name == first:
        return "best"
    return "near" if rivals[method.name].mean >= rivals[first].mean - rivals[first].std else ""


def _note(study: Study, row: Row, method: Method, selection: str) -> str:
    members = [summary for summary in study.members(row, method) if selection in summary.selected]
    if not members:
        return ""
    rounds = Spread.of(summary.selected[selection]["round"] for summary in members)
    chosen = f"chosen: {keys(members[0].point)}; " if members[0].point else ""
    diverged = sum(summary.diverged for summary in members)
    late = f"; {diverged} of them diverged after that" if diverged else ""
    return f"{chosen}{len(members)} seeds; selected round {rounds.mean:.0f} on average{late}"


def _reported(told: Sequence[float] | None) -> Spread | None:
    return Spread(told[0] / 100, told[1] / 100 if len(told) > 1 else 0.0, 0) if told else None


def _tally(title: str, best: Counter[str]) -> str:
    wins = ", ".join(f"{name} in {count}" for name, count in best.most_common())
    return f"Best mean {title}: {wins} of {best.total()} rows."


def curve(study: Study) -> list[Exhibit]:
    """Metric against the rows' x, a line per method; as trained, and corrected."""
    rows, places, names = _axis(study)
    metric = METRICS[study.experiment.metric]
    panels, lines = [], []
    drawn: dict[str, Look] = {}
    for selection, title in study.selections.items():
        series = []
        for method in study.methods:
            found = [(x, s) for x, row in zip(places, rows, strict=True) if (s := study.spread(row, method, selection))]
            if found:
                look = drawn[method.name] = study.looks[method.name]
                series.append(Series.of(look, [x for x, _ in found], [s for _, s in found]))
        panels.append(Panel(title, partial(_draw_curve, study=study, series=series, ticks=(places, names))))
        for x, row in zip(places, rows, strict=True):
            head: list[Value | Cell] = [row.name, x, title]
            lines.append([*head, *(study.spread(row, method, selection) for method in study.methods)])
    title = f"Test {metric} against {study.experiment.axis or 'the rows'}"
    caption = f"{title}; bands are one standard deviation over seeds."
    columns = ["row", study.experiment.axis or "x", "evaluation", *(method.name for method in study.methods)]
    return [Exhibit("curve", title, caption, Sheet.of(columns, lines), panels, drawn)] if rows else []


def _draw_curve(ax: Axes, study: Study, series: Sequence[Series], ticks: tuple[list[float], list[str]]) -> None:
    draw_series(ax, series)
    _draw_axis(ax, study, ticks)
    ax.set_ylabel(f"target {METRICS[study.experiment.metric]} (%)")


def _draw_axis(ax: Axes, study: Study, ticks: tuple[list[float], list[str]]) -> None:
    if study.experiment.logarithmic:
        ax.set_xscale("log")
    if _apart(ticks[0], logarithmic=study.experiment.logarithmic):
        name_places(ax, *ticks)
        ax.minorticks_off()
    ax.set_xlabel(study.experiment.axis)


def _apart(places: Sequence[float], *, logarithmic: bool) -> bool:
    """Whether places on the axis are far enough from each other to be named all."""
    at = np.log(places) if logarithmic else np.asarray(places)
    return bool((np.diff(at) >= _NEAREST * np.ptp(at)).all())


def _axis(study: Study) -> tuple[list[Row], list[float], list[str]]:
    """Return the rows that have a place on the axis, by x; where none has, all of them side by side."""
    placed = sorted((row.x, i) for i, row in enumerate(study.rows) if row.x is not None)
    if not placed:
        return study.rows, [float(i) for i in range(len(study.rows))], [row.name for row in study.rows]
    return [study.rows[i] for _, i in placed], [x for x, _ in placed], [f"{x:g}" for x, _ in placed]


def distance(study: Study) -> list[Exhibit]:
    """Projection distance d(T, S) against the rows' x."""
    rows, places, names = _axis(study)
    found = [
        (x, row, Spread.of(summary.projection_distance for summary in study.by_seed(row).values()))
        for x, row in zip(places, rows, strict=True)
        if study.by_seed(row)
    ]
    if not found:
        return []
    series = [Series.of(_PLAIN, [x for x, _, _ in found], [spread for _, _, spread in found])]
    sheet = Sheet.of(
        ["row", study.experiment.axis or "x", "mean", "std", "seeds"],
        [[row.name, x, spread.mean, spread.std, spread.seeds] for x, row, spread in found],
    )
    caption = (
        "Squared distance d(T, S) from the target's label marginal to the convex hull of the clients', mean and one "
        "standard deviation over seeds. At 0 the target is covered: some mix of clients has exactly its labels."
    )
    panel = Panel("projection distance", partial(_draw_distance, study=study, series=series, ticks=(places, names)))
    return [Exhibit("distance", "Projection distance", caption, sheet, [panel])]


def _draw_distance(ax: Axes, study: Study, series: Sequence[Series], ticks: tuple[list[float], list[str]]) -> None:
    draw_series(ax, series, scale=1)
    _draw_axis(ax, study, ticks)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("projection distance d(T, S)")


def dynamics(study: Study) -> list[Exhibit]:
    """Metric after every round, a panel per row and a line per method."""
    metric = METRICS[study.experiment.metric]
    panels = []
    lines: list[list[Value | Cell]] = []
    for row in study.rows:
        curves = {
            method.name: [s.curves["raw"]["test"] for s in study.members(row, method) if s.curves]
            for method in study.methods
        }
        curves = {name: runs for name, runs in curves.items() if runs}
        if not curves:
            continue
        series = [Series.of_rounds(study.looks[name], runs) for name, runs in curves.items()]
        panels.append(Panel(row.name, partial(_draw_rounds, series=series, metric=metric)))
        spreads = {name: _by_round(runs) for name, runs in curves.items()}
        for i in range(max(map(len, spreads.values()))):
            told = [spreads.get(method.name, [])[i : i + 1] for method in study.methods]
            lines.append([row.name, i + 1, *(spread[0] if spread else None for spread in told)])
    caption = f"Test {metric} after every round, as trained; bands are one standard deviation over seeds."
    sheet = Sheet.of(["row", "round", *(method.name for method in study.methods)], lines)
    return (
        [Exhibit("dynamics", f"Test {metric} during training", caption, sheet, panels, _legend(study))] if lines else []
    )


def _by_round(runs: Sequence[Sequence[float]]) -> list[Spread]:
    return [Spread.of(run[i] for run in runs) for i in range(min(map(len, runs)))]


def _draw_rounds(ax: Axes, series: Sequence[Series], metric: str) -> None:
    draw_series(ax, series)
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("round")
    ax.set_ylabel(f"target {metric} (%)")


def labels(study: Study) -> list[Exhibit]:
    """Accuracy per label of FedPALS, FedAvg and Oracle."""
    methods = [
        next((m for m in study.methods if m.run.get("method") == kind), None)
        for kind in ("fedpals", "fedavg", "oracle")
    ]
    chosen = [method for method in methods if method]
    panels = []
    lines: list[list[Value | Cell]] = []
    for row in study.rows:
        shares = {m.name: _per_label(study, row, m) for m in chosen if study.members(row, m)}
        names = _label_names(study, row, shares)
        shown = [k for k in range(len(names)) if any(values[k] is not None for values in shares.values())]
        shown = sorted(sorted(shown, key=lambda k: -_share(study, row, k))[:_MOST_LABELS])
        if not shown:
            continue
        drawn = [(study.looks[name], [values[k] for k in shown]) for name, values in shares.items()]
        some = [names[k] for k in shown]
        size = (max(4.6, 0.4 * len(some) + 1), 3.6)
        panels.append(Panel(row.name, partial(draw_labels, labels=some, shares=drawn), size))
        nothing: list[float | None] = [None] * len(names)
        columns = [shares.get(method.name, nothing) for method in chosen]
        lines += [
            [row.name, names[k], *(100 * v if (v := column[k]) is not None else None for column in columns)]
            for k in shown
        ]
    caption = (
        "Share of each label's test samples that is recognised, in %, as trained: mean over the seeds whose target has "
        "the label."
    )
    sheet = Sheet.of(["row", "label", *(method.name for method in chosen)], lines)
    legend = {method.name: study.looks[method.name] for method in chosen}
    return [Exhibit("labels", "Accuracy per label", caption, sheet, panels, legend)] if panels else []


def _per_label(study: Study, row: Row, method: Method) -> list[float | None]:
    tested = [summary.selected["raw"]["test"]["per_label"] for summary in study.members(row, method)]
    seen = [[value for value in values if value is not None] for values in zip(*tested, strict=True)]
    return [sum(values) / len(values) if values else None for values in seen]


def _label_names(study: Study, row: Row, shares: Mapping[str, Sequence[object]]) -> list[str]:
    known = [s.federation.labels for s in study.runs if s.row == row.name and s.federation]
    return known[0] if known else [str(k) for k in range(max(map(len, shares.values()), default=0))]


def _share(study: Study, row: Row, label: int) -> float:
    targets = [s.federation.target[label] for s in study.by_seed(row).values() if s.federation]
    return sum(targets)


def heatmap(study: Study) -> list[Exhibit]:
    """Label marginals of clients and target, of every federation that is known."""
    shown = []
    for name, federation in slugs(study.federations).items():
        counts, target = federation.counts, federation.target
        S = counts.marginals if isinstance(counts.marginals, np.ndarray) else counts.marginals.toarray()
        names = [counts.label(k) for k in range(counts.shape[1])]
        lines: list[list[Value]] = [
            [counts.client(i), int(counts.sizes[i]), *map(float, shares)] for i, shares in enumerate(S)
        ]
        seed = "" if federation.seed is None else f", seed {federation.seed}"
        shown.append(
            Exhibit(
                f"heatmap-{name}",
                "Label marginals",
                f"Labels of every client, and of the target below them: {federation.name}{seed}.",
                Sheet.of(["client", "samples", *names], [*lines, ["target", None, *map(float, target)]]),
                [marginals_panel(counts, target, title=federation.name)],
                federation=federation.name,
            )
        )
    return shown


def weights(study: Study) -> list[Exhibit]:
    """Weights of clients sorted by size, FedAvg's as dots, for several ESS."""
    named = sorted({float(method.run["ess"]) for method in study.experiment.method if "ess" in method.run})
    shown = []
    for name, federation in slugs(study.federations).items():
        solutions = _solutions(federation, named or _ESS)
        first = solutions[0]
        counts, order = first.counts, by_size(first)
        lines: list[list[Value]] = [
            [counts.client(i), int(counts.sizes[i]), float(first.fedavg[i]), *(float(w.alpha[i]) for w in solutions)]
            for i in order
        ]
        shown.append(
            Exhibit(
                f"weights-{name}",
                "Aggregation weights",
                f"Weights of the clients, largest first: {federation.name}. The more effective samples are kept, the "
                "closer FedPALS (bars) is to FedAvg (dots).",
                Sheet.of(["client", "samples", "FedAvg", *(f"ESS {w.ess:.0%}" for w in solutions)], lines),
                weights_panels(solutions),
                federation=federation.name,
            )
        )
    return shown


def _solutions(federation: Federation, wanted: Iterable[float]) -> list[Weights]:
    """Solve for every ESS; where several are below the smallest there is, that one is shown once."""
    found = [solve(federation.counts, federation.target, ess=ess) for ess in wanted]
    return [w for i, w in enumerate(found) if not (w.clamped and i + 1 < len(found) and found[i + 1].clamped)]


def simplex(study: Study) -> list[Exhibit]:
    """Clients, target, projection and FedAvg in the simplex of three labels, a panel per case."""
    panels = []
    lines: list[list[Value | Cell]] = []
    for case in study.experiment.case:
        if len(case.labels) != 3:
            raise InputError(
                f"{study.name}: case {case.name!r} has {len(case.labels)} labels; the simplex is drawn for three"
            )
        federation = next(f for f in study.federations if f.name == case.name)
        counts, target = federation.counts, federation.target
        limit, fedavg = (solve(counts, target, lam=lam) for lam in (0.0, math.inf))
        path = (limit, *ess_grid(counts, target, 3), fedavg)
        panels.append(Panel(case.name, partial(draw_simplex, solutions=path), (5.0, 4.0)))
        for name, point, gap in (
            ("target T", target, 0.0),
            ("α⁰S, its projection", limit.projection.point, limit.projection_distance),
            ("FedAvg", fedavg.marginal, fedavg.distance),
        ):
            lines.append([case.name, name, *map(float, point), gap])
    caption = (
        "The target's label marginal T, its projection α⁰S onto the hull of the clients' marginals, and the mix that "
        "FedAvg implies; in green the path of FedPALS as λ grows."
    )
    names = study.experiment.case[0].labels if study.experiment.case else []
    sheet = Sheet.of(["case", "point", *names, "distance to T"], lines)
    return [Exhibit("simplex", "Label simplex", caption, sheet, panels)] if panels else []


VIEWS: Mapping[View, Callable[[Study], list[Exhibit]]] = {
    "table": table,
    "curve": curve,
    "distance": distance,
    "heatmap": heatmap,
    "dynamics": dynamics,
    "weights": weights,
    "labels": labels,
    "simplex": simplex,
    "selection": findings.selection,
    "check": findings.check,
    "unknown": findings.unknown,
    "privacy": findings.privacy,
}


def keys(values: Mapping[str, object]) -> str:
    """Return settings as readers write them."""
    return ", ".join(
        f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {value}" for key, value in values.items()
    )


def slugs(federations: Iterable[Federation]) -> dict[str, Federation]:
    """Return federations by a name that files can have."""
    found: dict[str, Federation] = {}
    for federation in federations:
        plain = federation.name.lower().replace("β", "beta").replace("λ", "lambda").replace("δ", "delta")
        slug = re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.") or "row"
        while slug in found:
            slug += "-again"
        found[slug] = federation
    return found


def _legend(study: Study) -> dict[str, Look]:
    return {method.name: study.looks[method.name] for method in study.methods}
