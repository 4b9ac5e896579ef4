"""Accuracy per label of FedPALS, FedAvg and Oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from fedpals.experiments.experiment import Column, Row
from fedpals.report.exhibit import Exhibit
from fedpals.report.figures import Panel
from fedpals.report.finished import FinishedExperiment
from fedpals.report.lines import draw_labels
from fedpals.report.sheet import Cell, Sheet, Value
from fedpals.shift.evaluation import Evaluation

_MOST_LABELS = 40
"""Of more labels the target's most frequent ones are drawn."""


def labels(finished: FinishedExperiment) -> list[Exhibit]:
    """Accuracy per label of FedPALS, FedAvg and Oracle."""
    methods = [
        next((m for m in finished.methods if m.run.get("method") == kind), None)
        for kind in ("fedpals", "fedavg", "oracle")
    ]
    chosen = [method for method in methods if method]
    panels = []
    lines: list[list[Value | Cell]] = []
    for row in finished.rows:
        shares = {m.name: _per_label(finished, row, m) for m in chosen if finished.members(row, m)}
        names = _label_names(finished, row, shares)
        shown = [k for k in range(len(names)) if any(values[k] is not None for values in shares.values())]
        shown = sorted(sorted(shown, key=lambda k: -_share(finished, row, k))[:_MOST_LABELS])
        if not shown:
            continue
        drawn = [(finished.looks[name], [values[k] for k in shown]) for name, values in shares.items()]
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
    legend = {method.name: finished.looks[method.name] for method in chosen}
    return [Exhibit("labels", "Accuracy per label", caption, sheet, panels, legend)] if panels else []


def _per_label(finished: FinishedExperiment, row: Row, method: Column) -> list[float | None]:
    selected = [summary.selected[Evaluation.RAW].test for summary in finished.members(row, method)]
    tested = [test.per_label for test in selected if test]
    seen = [[value for value in values if value is not None] for values in zip(*tested, strict=True)]
    return [sum(values) / len(values) if values else None for values in seen]


def _label_names(finished: FinishedExperiment, row: Row, shares: Mapping[str, Sequence[object]]) -> list[str]:
    known = [s.federation.labels for s in finished.runs if s.row == row.name and s.federation]
    return known[0] if known else [str(k) for k in range(max(map(len, shares.values()), default=0))]


def _share(finished: FinishedExperiment, row: Row, label: int) -> float:
    targets = [s.federation.target[label] for s in finished.by_seed(row).values() if s.federation]
    return sum(targets)
