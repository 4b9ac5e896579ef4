"""An experiment of the paper: rows × methods × seeds of runs, from a TOML file.

Settings of a run are layered; what is more particular wins:

    experiment < scale < row < row at this scale < method < method in this row < tuned point

Every method has a grid of the same kind: the experiment's, widened by the method's own options; the
row may replace the values of a key, and a key that the method has in this row is not tuned. A point of the grid is
chosen on validation, over tuning seeds that no reported run uses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field, model_validator

from fedpals.config import Settings, did_you_mean, read_toml, validated
from fedpals.errors import InputError
from fedpals.experiments.cases import Case
from fedpals.shift.evaluation import Evaluation, SelectedBy
from fedpals.simulation.run import Run

Keys: TypeAlias = dict[str, str | float]
"""Keys of a run."""
Grid: TypeAlias = dict[str, list[float]]
"""Values to try, by key of a run."""
View: TypeAlias = Literal[
    "table",
    "curve",
    "distance",
    "heatmap",
    "dynamics",
    "weights",
    "labels",
    "simplex",
    "selection",
    "check",
    "unknown",
    "privacy",
]
"""What the report shows of an experiment."""

DEFINITIONS = Path(__file__).with_name("definitions")
"""The folder of the paper's experiments."""
TUNING_SEED = 1000
"""First of the tuning seeds: far from the reported ones, which count up from 0."""


class Scale(Settings):
    """How large the experiment is."""

    seeds: int = Field(default=1, ge=1)
    run: Keys = {}
    cuts: list[str] = []
    """What is smaller than in the paper, in plain words."""


class Row(Settings):
    """A row of the table, a point on the horizontal axis, or a panel."""

    name: str
    x: float | None = None
    """Place on the horizontal axis of a curve."""
    seeds: int | None = Field(default=None, ge=1)
    """Instead of the scale's."""
    run: Keys = {}
    scale: dict[str, Keys] = {}
    """Keys at one scale only."""
    grid: Grid = {}
    """Values instead of the experiment's and the methods', by key."""
    tuned_as: str | None = None
    """Take the points that were chosen for this row, instead of tuning again."""
    methods: list[str] | None = None
    """Only these methods; all unless given."""
    method: dict[str, Keys] = {}
    """Keys of single methods in this row."""
    reported: dict[str, list[float]] = {}
    """The paper's mean and standard deviation, in %, by method."""


class Column(Settings):
    """A column of the table, or a line in a figure."""

    name: str
    run: Keys
    grid: Grid = {}
    chosen_by: Evaluation = Evaluation.RAW
    """The evaluation whose score chooses from the grid; an estimate needs no target sample, but ``held_out``."""
    apart: bool = False
    """Whether it has means that the others lack, as another network, and so is no rival of theirs."""


class Tuning(Settings):
    """How the point of each grid is chosen."""

    seeds: int = Field(default=2, ge=1)
    rows: list[str] | None = None
    """Choose once, by the mean over these rows, for all rows; unless given, every row has its own choice."""
    scale: dict[str, Keys] = {}
    """Keys of the tuning runs at one scale."""


class Experiment(Settings):
    """Everything that an experiment's TOML file says."""

    title: str
    source: str
    """Table or figure of the paper."""
    text: str = ""
    metric: Literal["accuracy", "macro_f1"] = "accuracy"
    show: list[View] = ["table"]
    axis: str = ""
    """What the rows' ``x`` is."""
    logarithmic: bool = False
    """Whether the horizontal axis is."""
    scale: dict[str, Scale]
    run: Keys = {}
    grid: Grid = {}
    tuning: Tuning = Tuning()
    row: list[Row] = []
    method: list[Column] = []
    case: list[Case] = []

    @model_validator(mode="after")
    def _names_exist(self) -> Experiment:
        """Refuse names of rows and methods that the experiment does not have: they would silently say nothing."""
        rows, methods = [row.name for row in self.row], [method.name for method in self.method]
        named = [("tuning.rows", name, rows) for name in self.tuning.rows or ()]
        for row in self.row:
            named += [(f"methods of row {row.name!r}", name, methods) for name in (*(row.methods or ()), *row.method)]
        for where, name, known in named:
            if name not in known:
                raise InputError(f"{where}: there is no {name!r}{did_you_mean(name, known)}")
        return self

    @classmethod
    def read(cls, path: Path) -> Experiment:
        """Read and check a TOML file."""
        values = read_toml(path)
        try:
            return validated(cls, values)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def at(self, scale: str) -> Scale:
        """Return the scale of a name."""
        if scale not in self.scale:
            raise InputError(f"scale is {scale!r}; this experiment has {', '.join(self.scale)}")
        return self.scale[scale]


Point: TypeAlias = Keys
"""One combination of a grid's values."""


@dataclass(frozen=True)
class PlannedRun:
    """A run and its place in the experiment."""

    row: str
    method: str
    point: Point
    run: Run

    @property
    def title(self) -> str:
        """How readers tell it from the others."""
        return f"{self.row}, {self.method}, seed {self.run.seed}"

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from every other run of the experiment."""
        return self.row, self.method, self.run.digest


def read_experiment(name: str, folder: Path) -> Experiment:
    """Read the experiment of a name from a folder of experiments, and check that all of its runs can be made."""
    known = sorted(path.stem for path in folder.glob("*.toml"))
    if not known:
        raise InputError(f"{folder}: no experiments (*.toml) there; give their folder with --experiments")
    if name not in known:
        hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
        raise InputError(f"experiment is {name!r}, which {folder} does not have{hint}")
    path = folder / f"{name}.toml"
    experiment = Experiment.read(path)
    try:
        for scale in experiment.scale:
            tuning_runs(experiment, scale)
            reported_runs(experiment, scale, choose_points(experiment, {}))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return experiment


def grid_points(experiment: Experiment, row: Row, method: Column) -> list[Point]:
    """Return all points of a method's grid in a row; one empty point where there is nothing to choose."""
    grid, fixed = {**experiment.grid, **method.grid}, {**method.run, **row.method.get(method.name, {})}
    grid = {key: row.grid.get(key, values) for key, values in grid.items() if key not in fixed}
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def tuning_runs(experiment: Experiment, scale: str) -> list[PlannedRun]:
    """Return the runs that choose the points: all points of every grid that has a choice, on tuning seeds."""
    rows = experiment.tuning.rows
    extra = experiment.tuning.scale.get(scale, {})
    seeds = range(TUNING_SEED, TUNING_SEED + experiment.tuning.seeds)
    return [
        _planned(experiment, scale, row, method, point, seed, extra)
        for row, method in _cells(experiment)
        if (row.tuned_as is None if rows is None else row.name in rows)
        for point in grid_points(experiment, row, method)
        if len(grid_points(experiment, row, method)) > 1
        for seed in seeds
    ]


def reported_runs(experiment: Experiment, scale: str, chosen: Mapping[tuple[str, str], Point]) -> list[PlannedRun]:
    """Return the runs that are reported, at the chosen point of every (row, method)."""
    seeds = experiment.at(scale).seeds
    return [
        _planned(experiment, scale, row, method, chosen[row.name, method.name], seed, {})
        for row, method in _cells(experiment)
        for seed in range(row.seeds or seeds)
    ]


def choose_points(
    experiment: Experiment, validation: Mapping[tuple[str, str], list[tuple[Point, float]]]
) -> dict[tuple[str, str], Point]:
    """Choose a point for every (row, method): the best mean validation accuracy of its tuning runs.

    ``validation`` holds, by (row, method), the point and validation accuracy of every tuning run. Of
    equally good points the first in the grid is taken; a run that diverged counts as 0.
    """
    shared = experiment.tuning.rows
    chosen: dict[tuple[str, str], Point] = {}
    for row, method in _cells(experiment):
        grid = grid_points(experiment, row, method)
        rows = [row.tuned_as or row.name] if shared is None else shared
        results = [result for name in rows for result in validation.get((name, method.name), [])]
        totals = [sum(value for point, value in results if point == candidate) for candidate in grid]
        chosen[row.name, method.name] = grid[max(range(len(grid)), key=totals.__getitem__)]
    return chosen


def _cells(experiment: Experiment) -> Iterator[tuple[Row, Column]]:
    for row in experiment.row:
        for method in experiment.method:
            if row.methods is None or method.name in row.methods:
                yield row, method


def _planned(
    experiment: Experiment, scale: str, row: Row, method: Column, point: Point, seed: int, extra: Keys
) -> PlannedRun:
    keys = {
        **experiment.run,
        **experiment.at(scale).run,
        **row.run,
        **row.scale.get(scale, {}),
        **extra,
        **method.run,
        **row.method.get(method.name, {}),
        **point,
        "seed": seed,
    }
    try:
        run = Run.of(keys)
    except InputError as error:
        raise InputError(f"{row.name}, {method.name}, scale {scale}: {error}") from None
    if method.chosen_by.selected_by is not SelectedBy.VALIDATION and run.knowledge.held_out is None:
        raise InputError(
            f"chosen_by of method {method.name!r} is {method.chosen_by.value!r}, but nobody holds samples out; give held_out"
        )
    return PlannedRun(row.name, method.name, point, run)
