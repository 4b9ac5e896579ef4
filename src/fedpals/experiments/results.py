"""Results of an experiment: small files from which every table and figure can be made without training.

experiment.toml   the definition they were computed from
runs.jsonl        a line per reported run
tuning.jsonl      a line per tuning run
cases.json        the cases whose counts come from files, counted
provenance.json   command, version and date

A run that stands here is finished and is never computed again.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from fedpals.atomic import replacing
from fedpals.errors import InputError
from fedpals.experiments.cases import Case
from fedpals.experiments.experiment import Experiment, Planned, Point
from fedpals.record import Record
from fedpals.run import Run

_DIGITS = 5
"""Decimals of accuracies per round."""


class Federated(BaseModel):
    """What the server knew: the clients' label counts, the target, and the last round's weights."""

    model_config = ConfigDict(frozen=True)

    labels: list[str]
    counts: list[list[int]]
    target: list[float]
    participants: list[int]
    alpha: list[float]
    exact_counts: list[list[int]] | None = None
    """Where clients added noise to their counts."""
    exact_target: list[float] | None = None
    """Where the server took something else for T."""
    moved: float | None = None
    """How much weight that noise moves on average, as the server itself can tell."""


class Summary(BaseModel):
    """One finished run, as small as tables and figures allow."""

    model_config = ConfigDict(frozen=True)

    row: str
    method: str
    point: Point
    """What was chosen from the method's grid."""
    digest: str
    """Of the run's configuration."""
    run: dict[str, Any]
    selected: dict[str, Any]
    """By "raw" and "prior" (and others, see `Run.held_out`): the selected round, its score and its test metrics."""
    curves: dict[str, dict[str, list[float]]] = Field(default_factory=dict)
    """By "raw" and "prior", by "validation" and "test": the metric after every round."""
    federation: Federated | None = None
    tallies: list[dict[str, Any]] = Field(default_factory=list)
    """Of every client, on the samples that it held out."""
    projection_distance: float = 0.0
    covered: bool = False
    clients: int = 0
    samples: int = 0
    seconds: float = 0.0
    diverged: bool = False
    """Whether training ended early for that reason; the selected rounds are those before."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from every other run of the experiment."""
        return self.row, self.method, self.digest

    @property
    def configuration(self) -> Run:
        """The run, as a typed configuration."""
        return Run.model_validate(self.run)

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.run.get("seed", 0))

    @classmethod
    def of(cls, planned: Planned, record: Record, *, metric: str = "accuracy", whole: bool = True) -> Self:
        """Summarise a finished run; without curves, federation and tallies unless ``whole``."""
        result, lines, weights = record.result(), record.metrics(), record.read_json("weights.json")
        curves = {
            name: {
                part: [round(line[name][part][metric], _DIGITS) for line in lines] for part in ("validation", "test")
            }
            for name in result["selected"]
            if name in lines[0]
        }
        last = weights["rounds"][-1]
        federation = Federated(
            **{key: weights[key] for key in ("labels", "counts", "target")},
            **{key: last[key] for key in ("participants", "alpha")},
            exact_counts=weights.get("exact_counts"),
            exact_target=weights.get("exact_target"),
            moved=weights.get("spread", {}).get("moved"),
        )
        return cls(
            row=planned.row,
            method=planned.method,
            point=planned.point,
            digest=planned.run.digest,
            run=planned.run.model_dump(exclude_none=True),
            selected=result["selected"],
            curves=curves if whole else {},
            federation=federation if whole else None,
            tallies=[tally.to_json() for tally in record.tallies()] if whole and planned.run.held_out else [],
            projection_distance=result["projection_distance"],
            covered=result["covered"],
            clients=result["clients"],
            samples=result["samples"],
            seconds=round(sum(line["seconds"] for line in lines), 2),
            diverged=result.get("diverged", False),
        )


class Results:
    """Reads and writes the folder of one experiment's results."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.path.name

    @cached_property
    def experiment(self) -> Experiment:
        """The definition that the results were computed from; of its cases, those that are counted."""
        experiment = Experiment.read(self.path / "experiment.toml")
        cases = [self.case(case) for case in experiment.case]
        return experiment.model_copy(update={"case": [case for case in cases if case]})

    def case(self, case: Case) -> Case | None:
        """Return a case with its counts; None where they are still to be read from its file."""
        if case.file is None:
            return case
        return next((kept for kept in self._cases() if (kept.name, kept.file) == (case.name, case.file)), None)

    def keep_cases(self, cases: Iterable[Case]) -> None:
        """Write down the cases that were counted from files, in place of those that stood here."""
        kept = [case.model_dump(exclude_defaults=True) for case in cases if case.file]
        if kept:
            self._write("cases.json", json.dumps(kept, ensure_ascii=False) + "\n")

    def _cases(self) -> list[Case]:
        path = self.path / "cases.json"
        try:
            return TypeAdapter(list[Case]).validate_json(path.read_bytes()) if path.is_file() else []
        except ValueError:
            raise InputError(f"{path}: not the cases of an experiment; delete it, to count them anew") from None

    @property
    def provenance(self) -> dict[str, Any]:
        """Command, version and date."""
        path = self.path / "provenance.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}

    def runs(self) -> list[Summary]:
        """Return the reported runs."""
        return self.read("runs.jsonl")

    def tuning(self) -> list[Summary]:
        """Return the tuning runs."""
        return self.read("tuning.jsonl")

    def add(self, name: str, summary: Summary) -> None:
        """Append a run to ``runs.jsonl`` or ``tuning.jsonl``."""
        self.path.mkdir(parents=True, exist_ok=True)
        line = summary.model_dump_json(exclude_none=True, exclude_defaults=True) + "\n"
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(line)

    def begin(self, definition: Path, scale: str, command: str) -> None:
        """Write down what is being computed, by which command and version."""
        self._write("experiment.toml", definition.read_text(encoding="utf-8"))
        facts = {
            "command": command,
            "scale": scale,
            "version": version("fedpals"),
            "python": platform.python_version(),
            "torch": version("torch"),
            "numpy": version("numpy"),
            "date": datetime.now(UTC).date().isoformat(),
        }
        self._write("provenance.json", json.dumps(facts, indent=2) + "\n")

    def keep(self, name: str, planned: Iterable[Planned]) -> None:
        """Drop runs that the experiment no longer has; of the others take the order and points that it has now."""
        have = {summary.key: summary for summary in self.read(name)}
        plans = {plan.key: plan for plan in planned if plan.key in have}
        ordered = [have[key].model_copy(update={"point": plan.point}) for key, plan in plans.items()]
        if (self.path / name).is_file():  # written anew also where nothing is kept: a cut-off line must not stay
            text = "".join(s.model_dump_json(exclude_none=True, exclude_defaults=True) + "\n" for s in ordered)
            self._write(name, text)

    def read(self, name: str) -> list[Summary]:
        """Return the runs of ``runs.jsonl`` or ``tuning.jsonl``."""
        path = self.path / name
        if not path.is_file():
            return []
        summaries = []
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            try:
                summaries.append(Summary.model_validate_json(line))
            except ValueError as error:
                if number == len(lines):
                    break  # the last line was cut off by a kill: that run is simply not there
                raise InputError(f"{path}, line {number}: not a run's summary ({error})") from None
        return summaries

    def _write(self, name: str, text: str) -> None:
        with replacing(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
