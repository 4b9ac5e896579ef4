"""Input of a section of the report: an experiment, its finished runs and their provenance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedpals.errors import InputError
from fedpals.experiments.experiment import Column, Experiment, PlannedRun, Row, Scale, View
from fedpals.experiments.results import Results, Summary
from fedpals.labels import LabelCounts, Vector, as_target
from fedpals.report.looks import Look, looks
from fedpals.report.paired import Paired
from fedpals.report.table import Spread, distinct_names
from fedpals.shift.evaluation import Evaluation
from fedpals.simulation.record import Record

EVALUATIONS = {
    Evaluation.RAW: "as trained",
    Evaluation.PRIOR: "+prior",
    Evaluation.RAW_BY_ESTIMATE: "as trained, no target data",
    Evaluation.PRIOR_BY_ESTIMATE: "+prior, no target data",
    Evaluation.CALIBRATED_BY_ESTIMATE: "calibrated, no target data",
    Evaluation.GAUSSIAN: "Gaussian head, no target data",
    Evaluation.RECOMMENDED: "calibrated and Gaussian head joined, no target data",
    Evaluation.FEDCGS: "head of FedCGS, no target data",
    Evaluation.FED3R: "head of Fed3R, no target data",
    Evaluation.FEDCOF: "head of FedCOF, no target data",
    Evaluation.CCVR: "last layer by CCVR, no target data",
}
"""Evaluations that tables show, and their titles."""
RESERVED = ("index", "explorer")
"""Names of pages that are not those of experiments."""
_RUN_VIEWS: list[View] = ["table", "check", "dynamics", "ess", "labels", "heatmap", "weights"]
"""Views of runs without an experiment."""


@dataclass(frozen=True, eq=False)
class FederationView:
    """Label counts and target at the server of a row, and the ESS used there, if any."""

    name: str
    counts: LabelCounts
    target: Vector
    ess: float | None = None
    seed: int | None = None
    """Seed of the federation; None for a case."""

    @classmethod
    def of(
        cls,
        name: str,
        labels: Sequence[str],
        counts: Sequence[Any],
        target: Sequence[float],
        ess: float | None = None,
        clients: Sequence[str] = (),
        seed: int | None = None,
    ) -> FederationView:
        """Check the counts; clients without names are numbered as in the paper."""
        clients = clients or [f"client {i}" for i in range(len(counts))]
        table = LabelCounts.of(counts, clients=clients, labels=labels)
        return cls(name, table, as_target(target, table), ess, seed)


@dataclass(frozen=True, eq=False)
class FinishedExperiment:
    """An experiment with its finished runs."""

    name: str
    experiment: Experiment
    runs: tuple[Summary, ...]
    tuning: tuple[Summary, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    """Records of the runs, if they are not those of an experiment."""

    @cached_property
    def methods(self) -> list[Column]:
        """Methods that have finished runs, in the experiment's order."""
        names = {summary.method for summary in self.runs}
        return [method for method in self.experiment.method if method.name in names]

    @cached_property
    def rows(self) -> list[Row]:
        """Rows that have finished runs, in the experiment's order."""
        names = {summary.row for summary in self.runs}
        return [row for row in self.experiment.row if row.name in names]

    @cached_property
    def looks(self) -> dict[str, Look]:
        """Look of each method in figures, by name."""
        return looks((method.name, method.run) for method in self.experiment.method)

    @cached_property
    def evaluations(self) -> dict[Evaluation, str]:
        """Of `EVALUATIONS` those that some run has; rounds of the raw model are selected in one way only."""
        have = {evaluation for summary in self.runs for evaluation in summary.selected}
        if Evaluation.RAW in have:
            have.discard(Evaluation.RAW_BY_ESTIMATE)
        return {evaluation: title for evaluation, title in EVALUATIONS.items() if evaluation in have}

    def members(self, row: Row, method: Column, evaluation: Evaluation | None = None) -> list[Summary]:
        """Return the runs of a cell, one per seed, at the point of an evaluation, or else the main one."""
        cell = self._cells.get((row.name, method.name), [])
        own = [summary for summary in cell if evaluation in summary.chosen_for]
        return own or [s for s in cell if not s.chosen_for or method.chosen_by in s.chosen_for]

    @cached_property
    def _cells(self) -> dict[tuple[str, str], list[Summary]]:
        """Runs by row and method."""
        cells: dict[tuple[str, str], list[Summary]] = {}
        for summary in self.runs:
            cells.setdefault((summary.row, summary.method), []).append(summary)
        return cells

    def evaluations_of_points(self, row: Row, method: Column) -> list[Evaluation | None]:
        """Return the evaluations that have points of their own in a cell; None stands for all of them together."""
        cell = [s for s in self._cells.get((row.name, method.name), []) if s.point]
        one_for_all: list[Evaluation | None] = [None]
        return list(dict.fromkeys(e for s in cell for e in (s.chosen_for or one_for_all)))

    def spread(self, row: Row, method: Column, evaluation: Evaluation) -> Spread | None:
        """Return mean and standard deviation over a cell's seeds; None if no run has the evaluation."""
        values = self.scores(row, method, evaluation)
        return Spread.of(values.values()) if values else None

    @cached_property
    def baseline(self) -> Column | None:
        """FedAvg, to which the other methods are compared; None if it has no finished runs."""
        return next((method for method in self.methods if method.run.get("method") == "fedavg"), None)

    def paired(self, row: Row, method: Column, evaluation: Evaluation) -> Paired | None:
        """Return a cell's difference to the baseline over the same seeds; None for the baseline itself."""
        if self.baseline is None or method.name == self.baseline.name:
            return None
        return Paired.of(self.scores(row, method, evaluation), self.scores(row, self.baseline, evaluation))

    def scores(self, row: Row, method: Column, evaluation: Evaluation) -> dict[int, float]:
        """Return the test metric of a cell's runs, by seed."""
        scores = {s.seed: s.test(evaluation, self.experiment.metric) for s in self.members(row, method, evaluation)}
        return {seed: value for seed, value in scores.items() if value is not None}

    def by_seed(self, row: Row) -> dict[int, Summary]:
        """Return a run per seed to read the row's federation from: not Oracle's or Pooled's, whose clients differ."""
        runs = [s for s in self.runs if s.row == row.name and not is_limit(s.run)]
        return {summary.seed: summary for summary in reversed(runs)}

    @cached_property
    def federations(self) -> list[FederationView]:
        """Federations of all cases, and of every row at its first seed."""
        views = [
            FederationView.of(c.name, c.labels, c.counts, c.target, clients=c.clients) for c in self.experiment.case
        ]
        for row in self.rows:
            runs = self.by_seed(row)
            seed = min(runs, default=0)
            if runs and (k := runs[seed].federation):
                names, ess = k.clients or (), self._ess(row)
                views.append(FederationView.of(row.name, k.labels, k.counts, k.target, ess, names, seed))
        return views

    def _ess(self, row: Row) -> float | None:
        """Return the ESS of the row's FedPALS; the last one where it was chosen while training."""
        for s in self.runs:
            if s.row == row.name and s.run.get("method") == "fedpals" and "ess" in s.run:
                return s.ess[-1] if s.ess else float(s.run["ess"]) if s.run["ess"] != "auto" else None
        return None


def is_limit(run: Mapping[str, Any]) -> bool:
    """Return whether a run shows a limit and no choice: clients redrawn for T (Oracle), or all samples in one place."""
    return not {"oracle", "pooled"}.isdisjoint(str(run.get("method")).split("+"))


def read(paths: Iterable[Path]) -> tuple[list[FinishedExperiment], list[str]]:
    """Read folders of results and of runs; return the experiments, and the names of those without finished runs."""
    experiments: list[FinishedExperiment] = []
    empty: list[str] = []
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: no such folder; give a folder of results or of runs")
        stored = [_from_results(Results(file.parent)) for file in sorted(path.rglob("experiment.toml"))]
        stored.sort(key=_order)
        runs = _from_runs(path)
        if not stored and runs is None:
            raise InputError(
                f"{path}: no results there, neither experiment.toml nor finished runs (result.json); "
                "compute some with fedpals reproduce or fedpals run"
            )
        complete = [finished for finished in stored if finished.runs or finished.experiment.case]
        empty += [finished.name for finished in stored if finished not in complete]
        experiments += [*complete, *([runs] if runs else [])]
    if not experiments:
        name = empty[0]
        raise InputError(f"{name}: no finished run yet (runs.jsonl); compute some with fedpals reproduce {name}")
    return _distinct(experiments), empty


def _order(finished: FinishedExperiment) -> tuple[int, str]:
    """Return a sort key: tables of the paper first, then its figures, then further experiments."""
    source = finished.experiment.source
    return (0 if source.startswith("Table") else 1 if source else 2), source


def _from_results(results: Results) -> FinishedExperiment:
    name = results.path.resolve().name
    return FinishedExperiment(
        name, results.experiment, tuple(results.runs()), tuple(results.tuning()), results.provenance
    )


def _from_runs(path: Path) -> FinishedExperiment | None:
    """Return the finished runs below a folder as an experiment: a row per federation, a column per method.

    Runs that differ by more than their seed are in different cells, and a seed that was copied counts once.
    """
    records = {record.run.digest: record for record in Record.all_below(path)}.values()
    if not records:
        return None
    runs = [record.run for record in records]
    data = [run.data.keys() for run in runs]
    rest = [
        {k: v for k, v in run.keys().items() if k not in {*keys, "seed"}} for run, keys in zip(runs, data, strict=True)
    ]
    rows = [row for (row,) in distinct_names([(run.data.name,) for run in runs], data)]
    cells = distinct_names([(row, run.method.full_title) for row, run in zip(rows, runs, strict=True)], rest)
    planned = [PlannedRun(row, method, {}, run) for (row, method), run in zip(cells, runs, strict=True)]
    methods = {p.method: {"method": p.run.method.name, **p.run.method.named_options} for p in planned}
    experiment = Experiment(
        title=f"Runs in {path}",
        source="",
        show=_RUN_VIEWS,
        scale={"run": Scale(seeds=len({run.seed for run in runs}))},
        row=[Row(name=row) for row in dict.fromkeys(rows)],
        method=[Column(name=name, run=keys) for name, keys in methods.items()],
    )
    summaries = [Summary.of(p, record, show=_RUN_VIEWS) for p, record in zip(planned, records, strict=True)]
    ordered = tuple(sorted(summaries, key=lambda s: s.seed))
    return FinishedExperiment(path.resolve().name, experiment, ordered, records=tuple(records))


def _distinct(experiments: list[FinishedExperiment]) -> list[FinishedExperiment]:
    """Give experiments with the same name different ones, because their files are in one folder."""
    names = [finished.name for finished in experiments]
    for i, name in enumerate(names):
        number = names[:i].count(name) + (name in RESERVED)
        if number:
            experiments[i] = replace(experiments[i], name=f"{name}-{number + 1}")
    return experiments
