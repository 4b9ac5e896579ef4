"""Accuracy by whether clients have every label of the target: what is method, and what is the luck of the draw."""

from __future__ import annotations

from collections.abc import Collection

from fedpals.experiments.experiment import Column, Row
from fedpals.experiments.results import Summary
from fedpals.report.exhibit import METRICS, Exhibit
from fedpals.report.finished import FinishedExperiment, is_oracle
from fedpals.report.sheet import Cell, Sheet, Value
from fedpals.report.table import Spread
from fedpals.shift.evaluation import Evaluation

_EVALUATIONS = {Evaluation.RAW: "as trained", Evaluation.PRIOR: "+prior"}


def coverage(finished: FinishedExperiment) -> list[Exhibit]:
    """Mean ± std of every row and method over the seeds whose clients have all labels of the target, and the others."""
    lines: list[list[Value | Cell]] = []
    for row in finished.rows:
        lacking = {seed for seed, summary in finished.by_seed(row).items() if lacks_label(summary)}
        complete = finished.by_seed(row).keys() - lacking
        for group, seeds in (("every label of the target", complete), ("a label is missing", lacking)):
            for evaluation, title in _EVALUATIONS.items():
                spreads = [_spread(finished, row, method, evaluation, seeds) for method in finished.methods]
                if any(spreads):
                    cells = [
                        Cell(spread, "quiet" if is_oracle(method.run) else "")
                        for method, spread in zip(finished.methods, spreads, strict=True)
                    ]
                    lines.append([row.name, f"{group}, {title}", float(len(seeds)), *cells])
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
    members = [summary for summary in finished.members(row, method, evaluation) if summary.seed in seeds]
    values = [summary.test(evaluation, finished.experiment.metric) for summary in members]
    present = [value for value in values if value is not None]
    return Spread.of(present) if present else None
