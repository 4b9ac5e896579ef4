"""Results of an experiment: small files from which every table and figure is built without training.

experiment.toml   the definition of the experiment
runs.jsonl        a line per reported run
tuning.jsonl      a line per tuning run
cases.json        the cases whose counts come from files
provenance.json   command, versions, date, processor, commit, threads, and the core-hours it took

A run in these files is finished and is never computed again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedpals.engine.lock import locked
from fedpals.engine.metrics import Metrics
from fedpals.errors import InputError
from fedpals.experiments.cases import Case
from fedpals.experiments.experiment import Experiment, PlannedRun, Point, View
from fedpals.experiments.provenance import continued, provenance
from fedpals.files import replacing, writing
from fedpals.shift.evaluation import Correction, Evaluation, SelectedBy
from fedpals.simulation.record import Record, RoundLine, SelectedRound, ServerView
from fedpals.simulation.run import Run

_DIGITS = 7
"""Decimals of a test metric: more than enough to round means of them to a tenth of a percent."""
_CURVE_DIGITS = 5
"""Decimals of values per round."""


class FinalView(BaseModel):
    """The server's final view: the clients' label counts, the target, and the last round's weights."""

    model_config = ConfigDict(frozen=True)

    labels: list[str]
    counts: list[list[int]]
    target: list[float]
    participants: list[int]
    alpha: list[float]
    clients: list[str] | None = None
    """Names of the clients, if they have any."""
    exact_counts: list[list[int]] | None = None
    """Counts without noise, if clients added noise."""
    exact_target: list[float] | None = None
    """Exact T, if the server used another one."""
    moved: float | None = None
    """Share of weight that the noise moves on average, as estimated by the server."""

    @classmethod
    def of(cls, view: ServerView) -> Self:
        """Build the final view from a server's view, with the last round's weights."""
        last = view.rounds[-1]
        return cls(
            labels=list(view.labels),
            counts=[list(row) for row in view.counts],
            target=list(view.target),
            participants=list(last.participants),
            alpha=list(last.alpha),
            clients=None if view.clients is None else list(view.clients),
            exact_counts=None if view.exact_counts is None else [list(row) for row in view.exact_counts],
            exact_target=None if view.exact_target is None else list(view.exact_target),
            moved=None if view.spread is None else view.spread.moved,
        )


class Summary(BaseModel):
    """One finished run, reduced to what tables and figures need."""

    model_config = ConfigDict(frozen=True)

    row: str
    method: str
    point: Point
    """Point chosen from the method's grid."""
    chosen_for: list[Evaluation] = Field(default_factory=list)
    """Evaluations that chose the point; empty if the method has one point for all."""
    digest: str
    """Digest of the run's configuration."""
    run: dict[str, Any]
    """Settings of the run, as flat keys."""
    selected: dict[Evaluation, SelectedRound]
    curve: list[float] = Field(default_factory=list)
    """Test metric of the model as trained after every round, where a view draws it."""
    ess: list[float] = Field(default_factory=list)
    """ESS of every round, where it was chosen while training."""
    federation: FinalView | None = None
    tallies: list[dict[str, Any]] = Field(default_factory=list)
    """Tally of every client on its held-out samples, where a view tests them."""
    projection_distance: float = 0.0
    """d(T, S) of the paper, a squared distance."""
    covered: bool = False
    clients: int = 0
    samples: int = 0
    seconds: float = 0.0
    diverged: bool = False
    """Whether training ended early because it diverged; only rounds before that are selected."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Key that identifies the run in the experiment."""
        return self.row, self.method, self.digest

    @property
    def configuration(self) -> Run:
        """The run, as a typed configuration."""
        return Run.of(self.run)

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.run.get("seed", 0))

    def test(self, evaluation: Evaluation, metric: str) -> float | None:
        """Return a test metric of an evaluation; None if there is none."""
        selected = self.selected.get(evaluation)
        if selected is None or selected.test is None:
            return None
        return round(float(getattr(selected.test, metric)), _DIGITS)

    @classmethod
    def of(cls, planned: PlannedRun, record: Record, *, metric: str = "accuracy", show: Collection[View] = ()) -> Self:
        """Summarise a finished run for the views ``show``; without any, nothing is kept but what tuning needs."""
        result, lines, held_out = record.result(), record.lines(), planned.run.knowledge.held_out
        summary = cls(
            row=planned.row,
            method=planned.method,
            point=planned.point,
            chosen_for=list(planned.chosen_for),
            digest=planned.run.digest,
            run=planned.run.keys(),
            selected=dict(result.selected),
            curve=_curve(lines, metric) if "dynamics" in show else [],
            ess=[round(line.choice.ess, _CURVE_DIGITS) for line in lines if line.choice] if show else [],
            federation=FinalView.of(record.server_view()) if show else None,
            tallies=[tally.to_json() for tally in record.tallies()] if "check" in show and held_out else [],
            projection_distance=result.projection_distance,
            covered=result.covered,
            clients=result.clients,
            samples=int(result.samples),
            seconds=round(sum(line.seconds for line in lines), 2),
            diverged=result.diverged,
        )
        return summary.thinned(show)

    def thinned(self, show: Collection[View]) -> Self:
        """Return the summary with what the views ``show`` need of its selected rounds.

        Tuning, which needs no view, has no test metrics to choose by.
        """
        selected = {
            name: replace(best, clients=None, test=_shown(best.test, name, show) if best.test and show else None)
            for name, best in self.selected.items()
            if name.selected_by is not SelectedBy.POOLED or "selection" in show
        }
        return self.model_copy(update={"selected": selected})


def _shown(test: Metrics, name: Evaluation, show: Collection[View]) -> Metrics:
    """Return metrics rounded; recalls of labels are shown of models as trained alone."""
    rounded = {key: round(value, _DIGITS) for key, value in vars(test).items() if isinstance(value, float)}
    recalls = test.per_label if "labels" in show and name is Evaluation.RAW else ()
    return replace(
        test, **rounded, per_label=tuple(None if recall is None else round(recall, _DIGITS) for recall in recalls)
    )


def _curve(lines: Sequence[RoundLine], metric: str) -> list[float]:
    scores = [line.scores(Correction.RAW) for line in lines]
    return [round(getattr(s.test, metric), _CURVE_DIGITS) for s in scores if s is not None and s.test is not None]


class Results:
    """Folder of one experiment's results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._facts: dict[str, Any] | None = None
        """Provenance of what will be computed, until it is written."""

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.path.name

    @cached_property
    def experiment(self) -> Experiment:
        """Definition of the experiment, with only those cases whose counts are stored."""
        experiment = Experiment.read(self.path / "experiment.toml")
        cases = [self.case(case) for case in experiment.case]
        return experiment.model_copy(update={"case": [case for case in cases if case]})

    def case(self, case: Case) -> Case | None:
        """Return a case with its counts; None if they are not stored yet."""
        if case.file is None:
            return case
        return next((other for other in self._cases() if (other.name, other.file) == (case.name, case.file)), None)

    def keep_cases(self, cases: Iterable[Case]) -> None:
        """Write the cases that were counted from files, replacing stored ones."""
        values = [case.model_dump(exclude_defaults=True) for case in cases if case.file]
        if values:
            with locked(self.path, wait=True):
                if any(self.case(case) is None for case in cases):
                    self._write_facts()
                self._write("cases.json", json.dumps(values, ensure_ascii=False) + "\n")

    def _cases(self) -> list[Case]:
        path = self.path / "cases.json"
        try:
            return TypeAdapter(list[Case]).validate_json(path.read_bytes()) if path.is_file() else []
        except ValueError:
            raise InputError(f"{path}: not the cases of an experiment; delete it to count them again") from None

    @property
    def provenance(self) -> dict[str, Any]:
        """Command, scale, versions, date and machine."""
        path = self.path / "provenance.json"
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: damaged ({error}); delete it, and fedpals reproduce writes it again") from None

    def scale_of(self, experiment: Experiment) -> str:
        """Return the scale of what stands here, or the experiment's first."""
        return str(self.provenance.get("scale", next(iter(experiment.scale))))

    def runs(self) -> list[Summary]:
        """Return the reported runs."""
        return self.read("runs.jsonl")

    def tuning(self) -> list[Summary]:
        """Return the tuning runs."""
        return self.read("tuning.jsonl")

    def add(self, name: str, summary: Summary) -> None:
        """Append a run to ``runs.jsonl`` or ``tuning.jsonl``."""
        line = summary.model_dump_json(exclude_none=True, exclude_defaults=True) + "\n"
        path = self.path / name
        with locked(self.path, wait=True), writing(path):
            self._write_facts()
            with path.open("ab+") as file:
                _cut_incomplete_line(file)
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())

    def begin(self, definition: Path, scale: str, command: str) -> None:
        """Write the definition before the runs are computed; the provenance with the first that is added.

        Results to which nothing is added keep the provenance of what they were computed with.

        Raises
        ------
        InputError
            If the folder holds results at another scale.
        """
        facts = provenance(command, scale)
        with locked(self.path, wait=True):
            stored = self.provenance
            if (other := stored.get("scale", scale)) != scale:
                raise InputError(
                    f"{self.path} holds results at scale {other}; give another folder with --results for scale {scale}"
                )
            self._facts = facts
            self._write("experiment.toml", definition.read_text(encoding="utf-8"))
            if not stored:
                self._write_facts()

    def _write_facts(self) -> None:
        """Write the provenance of what is computed now, unless it is written; the folder is locked."""
        if self._facts is None:
            return
        goes_on = any((self.path / name).is_file() for name in ("runs.jsonl", "tuning.jsonl"))
        facts = continued(self._facts, self.provenance) if goes_on else self._facts
        self._write("provenance.json", json.dumps(facts, indent=2) + "\n")
        self._facts = None

    def keep_hours(self) -> None:
        """Write to the provenance how many hours of one core the tuning runs and the reported runs took, if any."""
        phases = {"tuning": self.tuning(), "reported": self.runs()}
        if not any(phases.values()):
            return
        hours = {phase: round(sum(one.seconds for one in runs) / 3600, 2) for phase, runs in phases.items()}
        with locked(self.path, wait=True):
            self._write("provenance.json", json.dumps({**self.provenance, "core_hours": hours}, indent=2) + "\n")

    def keep(self, name: str, planned: Iterable[PlannedRun], show: Collection[View]) -> None:
        """Remove runs that the experiment no longer has; give the others its current order, points and views."""
        with locked(self.path, wait=True):
            stored = {summary.key: summary for summary in self.read(name)}
            plans = {plan.key: plan for plan in planned if plan.key in stored}
            summaries = [
                stored[key].thinned(show).model_copy(update={"point": plan.point, "chosen_for": list(plan.chosen_for)})
                for key, plan in plans.items()
            ]
            if (self.path / name).is_file():  # rewritten even if no run is left, to remove an incomplete last line
                text = "".join(s.model_dump_json(exclude_none=True, exclude_defaults=True) + "\n" for s in summaries)
                self._write(name, text)

    def read(self, name: str) -> list[Summary]:
        """Return the runs of ``runs.jsonl`` or ``tuning.jsonl``, each once: two commands may have added the same."""
        path = self.path / name
        if not path.is_file():
            return []
        summaries: dict[tuple[str, str, str], Summary] = {}
        lines = path.read_bytes().splitlines()
        for number, line in enumerate(lines, 1):
            try:
                summary = Summary.model_validate_json(line)
            except ValidationError as error:
                if number == len(lines):
                    break  # an incomplete last line of a killed process: that run is not finished
                reason = error.errors(include_url=False)[0]["msg"]
                raise InputError(
                    f"{path}, line {number}: not a run's summary ({reason}); delete the line, and fedpals reproduce "
                    "writes it again"
                ) from None
            summaries[summary.key] = summary
        return list(summaries.values())

    def _write(self, name: str, text: str) -> None:
        with replacing(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _cut_incomplete_line(file: BinaryIO) -> None:
    """Remove what a killed process left of a line; nobody else is writing."""
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
