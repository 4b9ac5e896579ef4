"""Views of an experiment: one function per view, from finished runs to exhibits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedpals.experiments.experiment import View
from fedpals.report.exhibit import Exhibit
from fedpals.report.finished import FinishedExperiment
from fedpals.report.views import beyond, coverage, curves, federations, labels, tables

VIEWS: Mapping[View, Callable[[FinishedExperiment], list[Exhibit]]] = {
    "table": tables.table,
    "coverage": coverage.coverage,
    "curve": curves.curve,
    "distance": curves.distance,
    "heatmap": federations.heatmap,
    "dynamics": curves.dynamics,
    "ess": curves.ess,
    "weights": federations.weights,
    "labels": labels.labels,
    "simplex": federations.simplex,
    "selection": beyond.selection,
    "check": beyond.check,
    "unknown": beyond.unknown,
    "privacy": beyond.privacy,
}


def exhibits(finished: FinishedExperiment) -> list[Exhibit]:
    """Return the exhibits of the views in an experiment's ``show``, in its order."""
    return [exhibit for view in finished.experiment.show for exhibit in VIEWS[view](finished)]
