"""Tables of the READMEs, each a function from an experiment's stored results to lines of cells, the header first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from fedpals.experiments.experiment import Column, Row
from fedpals.report.finished import EVALUATIONS, FinishedExperiment, is_limit, read
from fedpals.report.paired import Paired
from fedpals.report.table import Spread
from fedpals.report.views import VIEWS
from fedpals.report.views.coverage import lacks_label
from fedpals.report.views.tables import paper_value
from fedpals.shift.evaluation import Evaluation

RESULTS = Path(__file__).parents[2] / "results"
RAW, PRIOR, RECOMMENDED = Evaluation.RAW, Evaluation.PRIOR, Evaluation.RECOMMENDED
TITLES = {**EVALUATIONS, RECOMMENDED: "recommended"}
ROUNDS = (1, 5, 10, 20, 30, 60)
"""Rounds of which training curves are shown."""

Table = list[list[str]]


@cache
def stored(name: str) -> FinishedExperiment:
    """Return an experiment of results/."""
    return read([RESULTS / name])[0][0]


def bold_best(texts: Sequence[str], spreads: Sequence[Spread | None], rivals: Iterable[int]) -> list[str]:
    """Return the texts, in bold those of the best of the rivals, to the decimal that is shown."""
    means = {i: round(100 * spread.mean, 1) for i in rivals if (spread := spreads[i])}
    best = max(means.values(), default=None)
    return [f"**{text}**" if means.get(i) == best and len(means) > 1 else text for i, text in enumerate(texts)]


def mean_text(spread: Spread | None) -> str:
    """Return a mean in %."""
    return "" if spread is None else f"{100 * spread.mean:.1f}"


def method(finished: FinishedExperiment, name: str) -> Column:
    """Return a method by its name."""
    return next(column for column in finished.methods if column.name == name)


def pals(finished: FinishedExperiment) -> Column | None:
    """Return the first column that is FedPALS without another client rule; None if there is none."""
    return next((column for column in finished.methods if column.run.get("method") == "fedpals"), None)


def compared(
    finished: FinishedExperiment, columns: Sequence[Column], evaluations: Sequence[Evaluation], *, paper: bool
) -> Table:
    """Mean ± std of methods as trained and corrected, the best in bold but for the Oracle, and the paper's.

    An arrow says that a method is better or worse than FedAvg, used in the same way, in pairs over seeds.
    """
    lines: Table = [["row", "", *(column.name for column in columns)]]
    fedavg = method(finished, "FedAvg") if any(column.name == "FedAvg" for column in finished.methods) else None
    rivals = [i for i, column in enumerate(columns) if not (column.apart or is_limit(column.run))]
    for row in finished.rows:
        start = len(lines)
        for evaluation in evaluations:
            spreads = [finished.spread(row, column, evaluation) for column in columns]
            if any(spreads):
                texts = [
                    "" if spread is None else f"{spread}{_arrow(finished, row, column, fedavg, evaluation)}"
                    for column, spread in zip(columns, spreads, strict=True)
                ]
                lines.append(["", TITLES[evaluation], *(bold_best(texts, spreads, rivals) if paper else texts)])
        if paper and row.reported:
            values = [paper_value(row.reported.get(column.name)) for column in columns]
            lines.append(["", "*in the paper*", *("" if value is None else f"*{value}*" for value in values)])
        if len(lines) > start:
            lines[start][0] = row.name
    return lines


def _arrow(
    finished: FinishedExperiment, row: Row, column: Column, baseline: Column | None, evaluation: Evaluation
) -> str:
    if baseline is None or column.name == baseline.name:
        return ""
    pair = Paired.of(finished.scores(row, column, evaluation), finished.scores(row, baseline, evaluation))
    return {"better": " ↑", "worse": " ↓"}.get(pair.verdict(), "") if pair else ""


def _in_paper(finished: FinishedExperiment) -> set[str]:
    return {name for row in finished.rows for name in row.reported}


def paper(name: str) -> Table:
    """Methods of the paper, next to its numbers."""
    finished = stored(name)
    columns = [column for column in finished.methods if column.name in _in_paper(finished)]
    return compared(finished, columns, (RAW, PRIOR), paper=True)


def beyond(name: str) -> Table:
    """Methods that the paper does not have."""
    finished = stored(name)
    columns = [column for column in finished.methods if column.name not in _in_paper(finished)]
    return compared(finished, columns, (RAW, PRIOR, RECOMMENDED), paper=False)


def rows(name: str) -> Table:
    """All methods of an experiment, as trained, corrected and in the recommended use, and the means over rows."""
    finished = stored(name)
    columns = finished.methods
    means: dict[str, dict[Evaluation, list[Spread | None]]] = {}
    for row in finished.rows:
        means[row.name] = {e: [finished.spread(row, c, e) for c in columns] for e in (RAW, PRIOR, RECOMMENDED)}
    means["mean of the rows"] = {
        e: [Spread.of(s.mean for s in cells if s) for cells in zip(*(row[e] for row in means.values()), strict=True)]
        for e in (RAW, PRIOR, RECOMMENDED)
    }
    return [["", "", *(column.name for column in columns)]] + [
        [name, TITLES[e], *bold_best([mean_text(s) for s in spreads], spreads, range(len(columns)))]
        for name, evaluations in means.items()
        for e, spreads in evaluations.items()
    ]


def methods(name: str) -> Table:
    """An experiment of one row: a line per method."""
    finished = stored(name)
    (row,) = finished.rows
    lines = [["method", "as trained", "+prior", "in the paper"]]
    for column in finished.methods:
        values = [finished.spread(row, column, evaluation) for evaluation in (RAW, PRIOR)]
        values.append(paper_value(row.reported.get(column.name)))
        lines.append([column.name, *("" if value is None else str(value) for value in values)])
    return lines


def verdicts(name: str) -> Table:
    """Whether FedPALS leads FedAvg by as much as in the paper, and is as accurate."""
    finished = stored(name)
    fedpals, fedavg = method(finished, "FedPALS"), method(finished, "FedAvg")
    lines = [["row", "FedPALS − FedAvg", "in the paper", "", "FedPALS, mean ± standard error", "in the paper", ""]]
    for row in finished.rows:
        pair, own = finished.paired(row, fedpals, RAW), finished.spread(row, fedpals, RAW)
        theirs, base = (paper_value(row.reported.get(column.name)) for column in (fedpals, fedavg))
        if not (pair and own and theirs and base):
            continue
        lead = theirs.mean - base.mean
        error = own.std / math.sqrt(own.seeds)
        lines.append(
            [
                row.name, pair.text(), f"{100 * lead:+.1f}", _lead(pair, lead),
                f"{100 * own.mean:.1f} ± {100 * error:.1f}", mean_text(theirs), _level(own.mean - theirs.mean, error),
            ]
        )  # fmt: skip
    return lines


def _lead(pair: Paired, lead: float) -> str:
    """Compare a lead with the paper's: the same if they are within two standard errors."""
    error = 2 * (pair.error or 0.0)
    if abs(pair.difference - lead) <= error:
        return "as in the paper"
    if pair.difference < -error:
        return "opposite"
    return "weaker" if pair.difference < lead else "stronger"


def _level(difference: float, error: float) -> str:
    if difference >= 0:
        return "at or above"
    return "within one standard error" if difference >= -error else "below"


def correction(name: str) -> Table:
    """Contributions of the weights and of the prior correction: paired differences ± standard error."""
    finished = stored(name)
    fedpals, fedavg = method(finished, "FedPALS"), method(finished, "FedAvg")
    pairs = {
        "FedPALS − FedAvg, as trained": ((fedpals, RAW), (fedavg, RAW)),
        "FedAvg: +prior − as trained": ((fedavg, PRIOR), (fedavg, RAW)),
        "FedPALS − FedAvg, both +prior": ((fedpals, PRIOR), (fedavg, PRIOR)),
    }
    lines = [["row", *pairs]]
    for row in finished.rows:
        cells = []
        for own, other in pairs.values():
            pair = Paired.of(finished.scores(row, *own), finished.scores(row, *other))
            cells.append("" if pair is None else pair.text())
        lines.append([row.name, *cells])
    return lines


def limit(name: str) -> Table:
    """Pooled training with the prior correction, the limit without target samples, and what others lack of it."""
    finished = stored(name)
    recipe = next((column.name for column in finished.methods if column.name.startswith("Recommended")), "FedPALS")
    ways: dict[str, tuple[str, Evaluation]] = {
        "FedAvg +prior": ("FedAvg", PRIOR),
        "FedPALS +prior": ("FedPALS", PRIOR),
        "FedPALS, ESS auto +prior": ("FedPALS, ESS auto", PRIOR),
        "SCAFFOLD +prior": ("SCAFFOLD", PRIOR),
        "IW-ERM": ("IW-ERM", RAW),
        "Gaussian head": ("FedAvg", Evaluation.GAUSSIAN),
        "CCVR": ("FedAvg", Evaluation.CCVR),
        "Oracle": ("Oracle", RAW),
        "*no target sample:* Pooled +prior": ("Pooled", Evaluation.PRIOR_BY_ESTIMATE),
        "*no target sample:* recommended": (recipe, RECOMMENDED),
    }
    lines = [["row", "Pooled +prior", *ways, "*and where clients have every label:* recommended"]]
    for row in finished.rows:
        pooled = _limit(finished, row)
        best = finished.scores(row, pooled, PRIOR)
        lacking = {seed for seed, summary in finished.by_seed(row).items() if lacks_label(summary)}
        scores = [finished.scores(row, method(finished, name), evaluation) for name, evaluation in ways.values()]
        scores.append({seed: score for seed, score in scores[-1].items() if seed not in lacking})
        pairs = [Paired.of(own, best) for own in scores]
        texts = ["" if pair is None else pair.text() for pair in pairs]
        lines.append([row.name, mean_text(finished.spread(row, pooled, PRIOR)), *texts])
    return _filled(lines)


def _limit(finished: FinishedExperiment, row: Row) -> Column:
    """Return the pooled training that everybody is compared with: with the recommended recipe where it was trained."""
    columns = {column.name: column for column in finished.methods}
    recipe = columns.get("Pooled, same recipe")
    return recipe if recipe is not None and finished.scores(row, recipe, PRIOR) else columns["Pooled"]


def _filled(lines: Table) -> Table:
    """Leave out columns that are empty but for the header."""
    filled = [i for i, _ in enumerate(lines[0]) if any(line[i] for line in lines[1:])]
    return [[line[i] for i in filled] for line in lines]


def heads(name: str) -> Table:
    """What can be done with FedAvg's last layer without a target sample: points above or below Pooled +prior."""
    finished = stored(name)
    fedavg = method(finished, "FedAvg")
    ways = {
        "+prior": Evaluation.PRIOR_BY_ESTIMATE,
        "calibrated": Evaluation.CALIBRATED_BY_ESTIMATE,
        "Gaussian head": Evaluation.GAUSSIAN,
        "FedCGS": Evaluation.FEDCGS,
        "Fed3R": Evaluation.FED3R,
        "FedCOF": Evaluation.FEDCOF,
        "CCVR": Evaluation.CCVR,
        "recommended": RECOMMENDED,
    }
    lines = [["row", *ways]]
    for row in finished.rows:
        best = finished.scores(row, _limit(finished, row), PRIOR)
        pairs = [Paired.of(finished.scores(row, fedavg, evaluation), best) for evaluation in ways.values()]
        lines.append([row.name, *("" if pair is None else pair.text() for pair in pairs)])
    return _filled(lines)


def auto(_: str) -> Table:
    """`ess = "auto"` against the best fixed ESS of each row, and against FedAvg: paired differences, and a verdict.

    It holds if auto is no more than a point, or a standard error, below the best fixed ESS, and no more than a point
    below FedAvg.
    """
    pairs = [f"{other}, {TITLES[e]}" for e in (RAW, PRIOR) for other in ("best fixed ESS", "FedAvg")]
    lines = [["experiment", "row", *pairs, ""]]
    for finished in read([RESULTS])[0]:
        columns = {column.name: column for column in finished.methods}
        if (own := columns.get("FedPALS, ESS auto")) is None:
            continue
        fixed = [c for c in finished.methods if c.run.get("method") == "fedpals" and c is not own and not c.apart]
        for row in finished.rows:
            cells: list[str] = []
            misses = False
            for evaluation in (RAW, PRIOR):
                scores = finished.scores(row, own, evaluation)
                rivals = [finished.scores(row, column, evaluation) for column in fixed]
                best = max(rivals, key=lambda seeds: np.mean([*seeds.values()]) if seeds else 0.0)
                for other, slack in ((best, 1.0), (finished.scores(row, columns["FedAvg"], evaluation), 0.0)):
                    pair = Paired.of(scores, other)
                    cells.append("" if pair is None else pair.text())
                    misses |= pair is not None and -pair.difference > max(0.01, slack * (pair.error or 0.0))
            if any(cells):
                lines.append(
                    [f"[{finished.name}](#{finished.name})", row.name, *cells, "misses" if misses else "holds"]
                )
    return lines


def missing(name: str) -> Table:
    """Federations that have every label of the target, and those in which nobody has one of them."""
    finished = stored(name)
    columns = [("FedAvg", RAW), ("FedPALS", RAW), ("FedAvg", PRIOR), ("FedPALS", PRIOR), ("Oracle", RAW)]
    lines = [["row", "federations", *(f"{m} +prior" if e is PRIOR else m for m, e in columns)]]
    for row in finished.rows:
        lacking = {seed for seed, summary in finished.by_seed(row).items() if lacks_label(summary)}
        for part, title in (({*finished.by_seed(row)} - lacking, "all labels"), (lacking, "a label is missing")):
            cells = []
            for column, evaluation in columns:
                scores = finished.scores(row, method(finished, column), evaluation)
                values = [value for seed, value in scores.items() if seed in part]
                cells.append(mean_text(Spread.of(values)) if values else "")
            if part:
                lines.append([row.name, f"{title} ({len(part)})", *cells])
    return lines


def curve(name: str) -> Table:
    """A line per point of a curve: d(T, S), and accuracy as trained (+prior) of every method."""
    finished = stored(name)
    columns = finished.methods
    lines: Table = [[finished.experiment.axis or "", "d(T, S)", *(column.name for column in columns)]]
    for row in finished.rows:
        distance = np.mean([summary.projection_distance for summary in finished.by_seed(row).values()])
        raw, prior = ([finished.spread(row, column, e) for column in columns] for e in (RAW, PRIOR))
        texts = bold_best([mean_text(spread) for spread in raw], raw, range(len(columns)))
        both = [f"{own} ({mean_text(shifted)})" if own else "" for own, shifted in zip(texts, prior, strict=True)]
        lines.append([row.name, f"{distance:.3f}", *both])
    return lines


def dynamics(name: str) -> Table:
    """Test accuracy as trained after so many rounds: a line per row and method."""
    finished = stored(name)
    (exhibit,) = VIEWS["dynamics"](finished)
    cells = {(line[0].text, int(line[1].text)): line[2:] for line in exhibit.sheet.rows}
    lines = [["row", "method", *(f"round {number}" for number in ROUNDS)]]
    for row in finished.rows:
        for i, column in enumerate(finished.methods):
            values = [cells[row.name, number][i].value if (row.name, number) in cells else None for number in ROUNDS]
            if any(values):
                texts = [mean_text(value) if isinstance(value, Spread) else "" for value in values]
                lines.append([row.name, column.name, *texts])
    return lines


def _sheet(name: str, view: str, columns: Sequence[str], keep: Callable[[Mapping[str, str]], bool]) -> Table:
    """Return columns and lines of a view of the report."""
    (exhibit,) = VIEWS[view](stored(name))  # type: ignore[index]
    lines = [{c: cell.text for c, cell in zip(exhibit.sheet.columns, line, strict=True)} for line in exhibit.sheet.rows]
    return [[*columns], *([line[column] for column in columns] for line in lines if keep(line))]


def selection(name: str) -> Table:
    """Loss without target data, where the rule chooses both round and method."""
    names = {column.name for column in stored(name).methods}
    columns = ("row", "evaluation", "target validation", "lost by the estimate", "lost by pooling")
    return _sheet(name, "selection", columns, lambda line: line["method"] not in names)


def check(name: str) -> Table:
    """Alarms of the test of label shift."""
    columns = ("row", "runs", "light", "alarms (p ≤ 0.05)", "median p", "median effect V")
    return _sheet(name, "check", columns, lambda _: True)


def unknown(name: str) -> Table:
    """Accuracy with the prior correction, and the error of T where it was estimated."""
    finished = stored(name)
    errors = {(row, m): e for row, m, e in _sheet(name, "unknown", ("row", "method", "error of T, %"), lambda _: True)}
    lines = [["row", *(column.name for column in finished.methods)]]
    for row in finished.rows:
        cells = []
        for column in finished.methods:
            error = errors.get((row.name, column.name))
            text = mean_text(finished.spread(row, column, PRIOR))
            cells.append(f"{text} ({error.split(' ± ')[0]})" if error else text)
        lines.append([row.name, *cells])
    return lines


def privacy(name: str) -> Table:
    """Effect of noise on the counts, and accuracy with them."""
    finished = stored(name)
    columns = ("misplaced weight, %", "expected by the server, %", "squared distance to T")
    effects = {row: cells for row, *cells in _sheet(name, "privacy", ("row", *columns), lambda _: True)}
    lines = [["row", *columns, *(column.name for column in finished.methods)]]
    for row in finished.rows:
        accuracies = [str(finished.spread(row, column, RAW) or "") for column in finished.methods]
        lines.append([row.name, *effects.get(row.name, [""] * len(columns)), *accuracies])
    return lines


def headline(name: str) -> Table:
    """The README's table: FedAvg and FedPALS, as trained and corrected, and the Oracle."""
    finished = stored(name)
    columns = [("FedAvg", RAW), ("FedPALS", RAW), ("FedAvg", PRIOR), ("FedPALS", PRIOR), ("Oracle", RAW)]
    lines = [["", *(f"{m} +prior" if e is PRIOR else m for m, e in columns)]]
    cells = [[mean_text(finished.spread(row, method(finished, m), e)) for m, e in columns] for row in finished.rows]
    return [*lines, *([row.name, *line] for row, line in zip(finished.rows, cells, strict=True))]


def hospitals(name: str) -> Table:
    """Accuracy in % / log-loss per hospital, at rounds selected without target samples."""
    finished = stored(name)
    uses = {Evaluation.RAW_BY_ESTIMATE: "", Evaluation.PRIOR_BY_ESTIMATE: " +prior"}
    columns = [(e, m) for e in uses for m in ("FedAvg", "FedPALS, λ → 0", "FedPALS, ESS 50 %")]
    lines = [["target", *(f"{m}{uses[e]}" for e, m in columns)]]
    for row in finished.rows:
        cells = []
        for evaluation, column in columns:
            tests = [s.selected[evaluation].test for s in finished.members(row, method(finished, column))]
            accuracy, loss = (np.mean([getattr(t, metric) for t in tests]) for metric in ("accuracy", "log_loss"))
            cells.append(f"{100 * accuracy:.1f} / {loss:.2f}")
        lines.append([row.name, *cells])
    return lines


def overview(_: str) -> Table:
    """All experiments: rows in which FedPALS is better than, equal to, or worse than FedAvg, and what they took."""
    header = ["experiment", "in the paper", "runs", "rows better/equal/worse", "both +prior", "core-hours", "version"]
    lines = [header]
    for finished in read([RESULTS])[0]:
        if not finished.runs:
            continue
        counts = [_counted(finished, evaluation) for evaluation in (RAW, PRIOR)]
        hours = sum(summary.seconds for summary in (*finished.runs, *finished.tuning)) / 3600
        link = f"[{finished.name}](#{finished.name})"
        version = str(finished.provenance.get("version", ""))
        lines.append([link, finished.experiment.source, f"{len(finished.runs):,}", *counts, f"{hours:.1f}", version])
    return lines


def _counted(finished: FinishedExperiment, evaluation: Evaluation) -> str:
    column = pals(finished)
    if column is None:
        return ""
    pairs = [finished.paired(row, column, evaluation) for row in finished.rows]
    verdicts = Counter(pair.verdict() for pair in pairs if pair)
    return f"{verdicts['better']} / {verdicts['equal']} / {verdicts['worse']}" if verdicts else ""


TABLES: Mapping[str, Callable[[str], Table]] = {
    table.__name__: table
    for table in (
        paper, beyond, rows, methods, verdicts, correction, limit, heads, auto, missing, curve, dynamics, selection,
        check, unknown, privacy, headline, hospitals, overview,
    )
}  # fmt: skip
