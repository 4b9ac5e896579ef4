"""Accuracy by whether clients have every label of the target: what is method, and what is the luck of the draw."""

from __future__ import annotations

from collections.abc import Collection

from fedpals.experiments.experiment import Column, Row
from fedpals.experiments.results import Summary
from fedpals.report.exhibit import METRICS, Exhibit
from fedpals.report.finished import EVALUATIONS, FinishedExperiment, is_limit
from fedpals.report.sheet import Cell, Sheet, Value
from fedpals.report.table import Spread
from fedpals.shift.evaluation import Evaluation

_SHOWN = (Evaluation.RAW, Evaluation.PRIOR)


def coverage(finished: FinishedExperiment) -> list[Exhibit]:
    """Mean ± std of every row and method over the seeds whose clients have all labels of the target, and the others."""
    lines: list[list[Value | Cell]] = []
    for row in finished.rows:
        lacking = {seed for seed, summary in finished.by_seed(row).items() if lacks_label(summary)}
        complete = finished.by_seed(row).keys() - lacking
        for group, seeds in (("every label of the target", complete), ("a label is missing", lacking)):
            for evaluation in _SHOWN:
                spreads = [_spread(finished, row, method, evaluation, seeds) for method in finished.methods]
                if any(spreads):
                    cells = [
                        Cell(spread, "quiet" if is_limit(method.run) else "")
                        for method, spread in zip(finished.methods, spreads, strict=True)
                    ]
                    lines.append([row.name, f"{group}, {EVALUATIONS[evaluation]}", float(len(seeds)), *cells])
    caption = (
        f"Test {METRICS[finished.experiment.metric]} in the target domain in %, mean ± standard deviation over seeds, "
        "apart for federations whose clients together have every label of the target and for those where nobody has "
        "samples of one of them. A missing label costs every method its share of the target; only Oracle, whose "
        "clients are drawn anew, has it."
    )
    sheet = Sheet.of(["row", "clients have", "seeds", *(method.name for method in finished.methods)], lines)
    return [Exhibit("coverage", "Covered and not covered", caption, sheet, (), tabular=True)] if lines else []


def lacks_label(summary: Summary) -> bool:
    """Return whether the target has a label of which no client has a sample."""
    view = summary.federation
    if view is None:
        return False
    counts, target = view.exact_counts or view.counts, view.exact_target or view.target
    return any(share > 0 and not any(column) for share, column in zip(target, zip(*counts, strict=True), strict=True))


def _spread(
    finished: FinishedExperiment, row: Row, method: Column, evaluation: Evaluation, seeds: Collection[int]
) -> Spread | None:
    values = [value for seed, value in finished.scores(row, method, evaluation).items() if seed in seeds]
    return Spread.of(values) if values else None
