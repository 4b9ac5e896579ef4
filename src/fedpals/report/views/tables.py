"""Tables: mean ± standard deviation of every row and method, and paired differences, next to the paper's numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedpals.experiments.experiment import Column, Row
from fedpals.report.choices import finding, mean_of
from fedpals.report.exhibit import METRICS, Exhibit, settings_text
from fedpals.report.figures import Panel
from fedpals.report.finished import FinishedExperiment, is_limit
from fedpals.report.lines import Compared, draw_compared
from fedpals.report.paired import Paired
from fedpals.report.sheet import VERDICT_MARKS, Cell, Mark, Sheet, Value
from fedpals.report.table import Spread
from fedpals.shift.evaluation import Correction, Evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def table(finished: FinishedExperiment) -> list[Exhibit]:
    """Mean ± std of every row and method, as trained and corrected, next to the paper's."""
    methods = finished.methods
    lines: list[list[Value | Cell]] = []
    best: dict[Evaluation, Counter[str]] = {evaluation: Counter() for evaluation in finished.evaluations}
    for row in finished.rows:
        for evaluation, title in finished.evaluations.items():
            spreads = {method.name: finished.spread(row, method, evaluation) for method in methods}
            if not any(spreads.values()):
                continue
            rivals = {m.name: s for m in methods if (s := spreads[m.name]) and not (m.apart or is_limit(m.run))}
            first = max(rivals, key=lambda name: rivals[name].mean, default=None)
            best[evaluation].update([first] if first and len(rivals) > 1 else [])
            cells = [
                Cell(spreads[m.name], _mark(m, rivals, first), _note(finished, row, m, evaluation)) for m in methods
            ]
            lines.append([row.name, title, *cells])
            pairs = [finished.paired(row, method, evaluation) for method in methods]
            if finished.baseline and any(pairs):
                compared = [Cell(pair, VERDICT_MARKS[pair.verdict()]) if pair else Cell(None) for pair in pairs]
                lines.append([row.name, f"{title}: difference to {finished.baseline.name}", *compared])
        if row.reported:
            values = [paper_value(row.reported.get(method.name)) for method in methods]
            lines.append([row.name, "in the paper", *(Cell(value, "quiet") for value in values)])
    sheet = Sheet.of(["row", "evaluation", *(method.name for method in methods)], lines)
    metric = METRICS[finished.experiment.metric]
    caption = (
        f"Test {metric} in the target domain in %, mean ± standard deviation over seeds, at the round selected on "
        "validation data of the target, or, in tables with no target data, by the clients' own estimate."
        + _explained(finished, marked=any(best.values()))
        + "".join(_tally(title, best[evaluation]) for evaluation, title in finished.evaluations.items())
    )
    # Where the same numbers are drawn as curves, bars would only repeat them.
    both = {Correction.RAW, Correction.PRIOR} <= {evaluation.correction for evaluation in finished.evaluations}
    drawn = finished.rows if both and "curve" not in finished.experiment.show else ()
    panels = [
        Panel(row.name, partial(_draw_row, finished=finished, row=row), (4.8, 1.6 + 0.34 * len(methods)))
        for row in drawn
    ]
    exhibit = Exhibit(
        "table",
        f"Test {metric}",
        caption,
        sheet,
        panels,
        tabular=True,
        tables=_by_evaluation(finished),
        finding=finding(finished),
    )
    return [exhibit] if lines else []


def _by_evaluation(finished: FinishedExperiment) -> dict[str, Sheet]:
    """Return a table per evaluation for the page: a line per method, which leaves room for many of them."""
    tables = {}
    for i, (evaluation, title) in enumerate(finished.evaluations.items()):
        rows = [row for row in finished.rows if any(finished.spread(row, m, evaluation) for m in finished.methods)]
        methods = [m for m in finished.methods if any(finished.spread(row, m, evaluation) for row in rows)]
        columns = {row.name: _column(finished, row, methods, evaluation, paper=i == 0) for row in rows}
        mean = {"mean of all": _means(finished, rows, methods, evaluation)} if len(rows) > 1 else {}
        lines = [[Cell(m.name), *(cells[m.name] for cells in (mean | columns).values())] for m in methods]
        tables[title] = Sheet.of(["method", *(mean | columns)], lines)
    return tables


def _column(
    finished: FinishedExperiment, row: Row, methods: Sequence[Column], evaluation: Evaluation, *, paper: bool
) -> dict[str, Cell]:
    spreads = {m.name: s for m in methods if (s := finished.spread(row, m, evaluation))}
    rivals = {m.name: spreads[m.name] for m in methods if m.name in spreads and not (m.apart or is_limit(m.run))}
    first = max(rivals, key=lambda name: rivals[name].mean, default=None)
    cells = {}
    for m in methods:
        below = _difference(finished.paired(row, m, evaluation)) if m.name in spreads else ()
        if paper and (reported := paper_value(row.reported.get(m.name))):
            below += ((f"paper {reported}", "quiet"),)
        mark = _mark(m, rivals, first) if m.name in spreads else ""
        cells[m.name] = Cell(spreads.get(m.name), mark, _note(finished, row, m, evaluation), below)
    return cells


def _means(
    finished: FinishedExperiment, rows: Sequence[Row], methods: Sequence[Column], evaluation: Evaluation
) -> dict[str, Cell]:
    """Return the mean of the rows for methods that have all of them, and their difference to the baseline."""
    cells = {}
    for m in methods:
        spreads = [s for row in rows if (s := finished.spread(row, m, evaluation))]
        pairs = [pair for row in rows if (pair := finished.paired(row, m, evaluation))]
        complete = len(spreads) == len(rows)
        mean = f"{100 * sum(s.mean for s in spreads) / len(spreads):.1f}" if complete else "not in all"
        below = _difference(mean_of(pairs)) if complete and len(pairs) == len(rows) else ()
        cells[m.name] = Cell(mean, "" if complete else "quiet", "", below)
    return cells


def _difference(pair: Paired | None) -> tuple[tuple[str, Mark], ...]:
    return () if pair is None else ((pair.text(), VERDICT_MARKS[pair.verdict()]),)


def _explained(finished: FinishedExperiment, *, marked: bool) -> str:
    """Say what marks and differences mean, where the table has any."""
    said = ""
    if marked:
        kinds = [m.name for m in finished.methods if is_limit(m.run)]
        if any(m.apart and not is_limit(m.run) for m in finished.methods):
            kinds.append("methods with a recipe of their own")
        without = " and ".join(filter(None, [", ".join(kinds[:-1]), *kinds[-1:]]))
        said += f" Bold: the best mean of a column{without and f', without {without}'}; "
        said += "underlined: within one standard deviation of it."
    if finished.baseline is not None and len(finished.methods) > 1:
        said += f" Differences to {finished.baseline.name} are paired: the mean over the same seeds ± its standard "
        said += "error; better or worse by more than two standard errors, else equal."
    return said


def _draw_row(ax: Axes, finished: FinishedExperiment, row: Row) -> None:
    bars = []
    # Where nobody has target data to select rounds by, the clients' estimate selects them.
    first = {evaluation.correction: evaluation for evaluation in reversed(finished.evaluations)}
    for method in finished.methods:
        raw, prior = (finished.spread(row, method, first[c]) for c in (Correction.RAW, Correction.PRIOR))
        reported = paper_value(row.reported.get(method.name))
        if raw and prior:
            bars.append(Compared(method.name, raw, prior, reported))
    draw_compared(ax, bars, METRICS[finished.experiment.metric])


def _mark(method: Column, rivals: Mapping[str, Spread], first: str | None) -> Mark:
    if method.name not in rivals or first is None or len(rivals) < 2:
        return "quiet" if is_limit(method.run) else ""
    if method.name == first:
        return "best"
    return "near" if rivals[method.name].mean >= rivals[first].mean - rivals[first].std else ""


def _note(finished: FinishedExperiment, row: Row, method: Column, evaluation: Evaluation) -> str:
    members = [summary for summary in finished.members(row, method, evaluation) if evaluation in summary.selected]
    if not members:
        return ""
    rounds = Spread.of(summary.selected[evaluation].round for summary in members)
    point = f"chosen: {settings_text(members[0].point)}; " if members[0].point else ""
    diverged = sum(summary.diverged for summary in members)
    warning = f"; {diverged} of them diverged later" if diverged else ""
    return f"{point}{len(members)} seeds; selected round {rounds.mean:.0f} on average{warning}"


def paper_value(values: Sequence[float] | None) -> Spread | None:
    """Return the paper's mean and standard deviation, which it gives in %."""
    return Spread(values[0] / 100, values[1] / 100 if len(values) > 1 else 0.0, 0) if values else None


def _tally(title: str, best: Counter[str]) -> str:
    """Say how often which method is best; of one column the table says it."""
    if best.total() < 2:
        return ""
    wins = "; ".join(f"{name} in {count}" for name, count in best.most_common())
    return f" Best mean {title}: {wins} of {best.total()} columns."
