"""Results made by hand, whose means and standard deviations a reader of a test can compute."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpals.engine.metrics import HeldOutMetrics, Metrics, Scores
from fedpals.engine.recorded import RoundLine, RoundWeights, ServerView
from fedpals.experiments.experiment import Experiment
from fedpals.experiments.results import FinalView, Results, Summary
from fedpals.report.exhibit import Exhibit
from fedpals.report.figures import compose
from fedpals.report.finished import FinishedExperiment
from fedpals.report.watched import WatchedRun
from fedpals.shift.evaluation import Evaluation
from fedpals.simulation.record import SelectedRound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = ["shirt", "bag", "boot"]
COUNTS = [[80, 20, 0], [10, 60, 30], [5, 5, 40], [0, 100, 100]]
TARGET = [0.2, 0.3, 0.5]
METHODS = {"FedPALS": "fedpals", "FedAvg": "fedavg", "Oracle": "oracle"}

DEFINITION = """
title = "Methods under label shift"
source = "Table 1"
text = "Who is best?"
show = ["table", "curve", "distance", "dynamics", "labels", "heatmap", "weights"]
axis = "labels per client C"
run = { task = "digits", model = "logistic" }

[scale.desk]
seeds = 2
cuts = ["2 rounds instead of 150"]

[[row]]
name = "C = 3"
x = 3
run = { labels_per_client = 3 }
reported = { FedPALS = [92.4, 2.1], FedAvg = [67.1, 22.0] }

[[row]]
name = "C = 6"
x = 6
run = { labels_per_client = 6 }

[[method]]
name = "FedPALS"
run = { method = "fedpals" }
grid = { ess = [0.25, 0.5] }

[[method]]
name = "FedAvg"
run = { method = "fedavg" }

[[method]]
name = "Oracle"
run = { method = "oracle" }
"""

ACCURACIES = {
    ("C = 3", "FedPALS"): (0.90, 0.94),
    ("C = 3", "FedAvg"): (0.60, 0.70),
    ("C = 3", "Oracle"): (0.97, 0.99),
    ("C = 6", "FedPALS"): (0.86, 0.88),
    ("C = 6", "FedAvg"): (0.80, 0.98),
    ("C = 6", "Oracle"): (0.95, 0.95),
}
"""Test accuracy of two seeds, as trained."""
PRIOR = 0.01
"""What the prior correction adds to each of them."""


def summary(row: str, method: str, seed: int, accuracy: float, **changes: Any) -> Summary:
    run = {"task": "digits", "labels_per_client": int(row[-1]), "method": METHODS.get(method, "fedavg"), "seed": seed}
    point = {"ess": 0.25} if method == "FedPALS" else {}
    values: dict[str, Any] = {
        "row": row,
        "method": method,
        "point": point,
        "digest": f"{row}{method}{seed}",
        "run": {**run, **point},
        "selected": {Evaluation.RAW: selected(accuracy), Evaluation.PRIOR: selected(accuracy + PRIOR)},
        "curve": [0.1, accuracy],
        "federation": FinalView(labels=LABELS, counts=COUNTS, target=TARGET, participants=[0], alpha=[1.0]),
        "projection_distance": 0.1 * (seed + 1) if method != "Oracle" else 0.0,
        "clients": 4,
        "samples": 450,
        "seconds": 1.5,
    }
    return Summary(**{**values, **changes})


def selected(accuracy: float, at: int = 2, score: float | None = None) -> SelectedRound:
    test = Metrics(accuracy, macro_f1=accuracy / 2, per_label=(accuracy, None, accuracy / 2))
    return SelectedRound(at, accuracy if score is None else score, test)


def summaries() -> list[Summary]:
    return [
        summary(row, method, seed, accuracy)
        for (row, method), accuracies in ACCURACIES.items()
        for seed, accuracy in enumerate(accuracies)
    ]


def finished(runs: Sequence[Summary] | None = None, **changes: Any) -> FinishedExperiment:
    experiment = Experiment.model_validate({**tomllib.loads(DEFINITION), **changes})
    return FinishedExperiment(
        "made", experiment, tuple(summaries() if runs is None else runs), provenance={"scale": "desk"}
    )


def figure(exhibit: Exhibit) -> Figure:
    """All panels of an exhibit, drawn together."""
    return compose(exhibit.panels, exhibit.legend)


def results(folder: Path, definition: str = DEFINITION, runs: Sequence[Summary] | None = None) -> Path:
    """Write a results folder as `fedpals reproduce` does."""
    stored = Results(folder)
    for run in summaries() if runs is None else runs:
        stored.add("runs.jsonl", run)
    for run in summaries():
        if run.point:
            stored.add("tuning.jsonl", run)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.toml").write_text(definition, encoding="utf-8")
    facts = {"command": "fedpals reproduce made", "scale": "desk", "version": "0.1.0", "date": "2026-01-02"}
    (folder / "provenance.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder


def round_line(number: int, accuracy: float, alpha: Sequence[float], **changes: Any) -> RoundLine:
    clients = HeldOutMetrics(accuracy=accuracy, target_accuracy=accuracy, standard_error=0.02)
    scores = Scores(test=Metrics(accuracy, accuracy / 2, (accuracy, None, accuracy)), clients=clients)
    values: dict[str, Any] = {
        "round": number,
        "loss": 1.0 / number,
        "trained": 4,
        "participants": 4,
        "refused": (),
        "raw": scores,
        "prior": scores,
        "weights": RoundWeights((0, 1, 2, 3), tuple(alpha)),
        "seconds": 0.5,
    }
    return RoundLine(**{**values, **changes})


VIEW = ServerView(tuple(LABELS), tuple(map(tuple, COUNTS)), tuple(TARGET))
SIZES = [sum(row) for row in COUNTS]
FEDAVG = [size / sum(SIZES) for size in SIZES]


def watched_runs(rounds: int = 3) -> list[WatchedRun]:
    """Two methods, two seeds, under way."""
    runs = []
    for title, kind, alpha, gain in (
        ("FedAvg", "fedavg", FEDAVG, 0.0),
        ("FedPALS", "fedpals", [0.3, 0.2, 0.2, 0.3], 0.1),
    ):
        for seed in range(2):
            lines = [round_line(i + 1, 0.5 + gain + 0.01 * (i + seed), alpha) for i in range(rounds)]
            runs.append(WatchedRun("shop", title, kind, seed, 10, lines, VIEW))
    return runs
