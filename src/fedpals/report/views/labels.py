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

_SHOWN_LABELS = 40
"""Number of labels shown: the most frequent ones of the target."""


def labels(finished: FinishedExperiment) -> list[Exhibit]:
    """Accuracy per label of FedPALS, FedAvg and Oracle."""
    candidates = [
        next((m for m in finished.methods if m.run.get("method") == kind), None)
        for kind in ("fedpals", "fedavg", "oracle")
    ]
    methods = [method for method in candidates if method]
    panels = []
    lines: list[list[Value | Cell]] = []
    for row in finished.rows:
        shares = {m.name: values for m in methods if (values := _per_label(finished, row, m))}
        names = _label_names(finished, row, shares)
        indices = [k for k in range(len(names)) if any(values[k] is not None for values in shares.values())]
        indices = sorted(sorted(indices, key=lambda k: -_share(finished, row, k))[:_SHOWN_LABELS])
        if not indices:
            continue
        bars = [(finished.looks[name], [values[k] for k in indices]) for name, values in shares.items()]
        label_names = [names[k] for k in indices]
        size = (max(4.6, 0.4 * len(label_names) + 1), 3.6)
        panels.append(Panel(row.name, partial(draw_labels, labels=label_names, shares=bars), size))
        empty: list[float | None] = [None] * len(names)
        columns = [shares.get(method.name, empty) for method in methods]
        lines += [
            [row.name, names[k], *(100 * v if (v := column[k]) is not None else None for column in columns)]
            for k in indices
        ]
    caption = (
        "Share of each label's test samples that is classified correctly, in %, as trained: mean over the seeds whose "
        "target has the label."
    )
    sheet = Sheet.of(["row", "label", *(method.name for method in methods)], lines)
    legend = {method.name: finished.looks[method.name] for method in methods}
    return [Exhibit("labels", "Accuracy per label", caption, sheet, panels, legend)] if panels else []


def _per_label(finished: FinishedExperiment, row: Row, method: Column) -> list[float | None]:
    """Return the mean recall of each label; nothing for runs without test samples."""
    selected = [summary.selected.get(Evaluation.RAW) for summary in finished.members(row, method)]
    recalls = [best.test.per_label for best in selected if best and best.test]
    by_label = [[value for value in values if value is not None] for values in zip(*recalls, strict=True)]
    return [sum(values) / len(values) if values else None for values in by_label]


def _label_names(finished: FinishedExperiment, row: Row, shares: Mapping[str, Sequence[object]]) -> list[str]:
    names = [s.federation.labels for s in finished.runs if s.row == row.name and s.federation]
    return names[0] if names else [str(k) for k in range(max(map(len, shares.values()), default=0))]


def _share(finished: FinishedExperiment, row: Row, label: int) -> float:
    targets = [s.federation.target[label] for s in finished.by_seed(row).values() if s.federation]
    return sum(targets)
