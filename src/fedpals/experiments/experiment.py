"""An experiment of the paper: rows × methods × seeds of runs, defined in a TOML file.

Settings of a run come in layers; later layers override earlier ones:

    experiment < scale < row < row at this scale < method < method in this row < tuned point

The grid of a method is the experiment's plus the method's own. A row can replace the values of a key. A key that is set
for the method in this row is not tuned. The point of the grid is chosen on validation, with tuning seeds that no
reported run uses; each evaluation of ``tuning.uses`` has a point of its own, so that none is shown at another's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from fedpals.config import Settings, did_you_mean, read_toml, validated
from fedpals.errors import InputError
from fedpals.experiments.cases import Case
from fedpals.shift.evaluation import Evaluation, SelectedBy
from fedpals.simulation.run import Run

Keys: TypeAlias = dict[str, str | float]
"""Settings of a run, by key."""
Grid: TypeAlias = dict[str, Annotated[list[float | str], Field(min_length=1)]]
"""Values to try, by key of a run."""
View: TypeAlias = Literal[
    "table",
    "coverage",
    "curve",
    "distance",
    "heatmap",
    "dynamics",
    "ess",
    "weights",
    "labels",
    "simplex",
    "selection",
    "check",
    "unknown",
    "privacy",
]
"""Parts of the report of an experiment."""

DEFINITIONS = Path(__file__).with_name("definitions")
"""Folder of the paper's experiments."""
TUNING_SEED = 1000
"""First tuning seed; far from the reported seeds, which start at 0."""


class Scale(Settings):
    """Size of the experiment, such as desk or paper."""

    seeds: int = Field(default=1, ge=1)
    run: Keys = Field(default_factory=dict)
    cuts: list[str] = Field(default_factory=list)
    """Differences to the paper's scale, in plain words."""


class Row(Settings):
    """A row of the table, a point on the horizontal axis, or a panel."""

    name: str
    x: float | None = None
    """Position on the horizontal axis of a curve."""
    seeds: int | None = Field(default=None, ge=1)
    """Number of seeds; the scale's unless given."""
    run: Keys = Field(default_factory=dict)
    scale: dict[str, Keys] = Field(default_factory=dict)
    """Settings at one scale only, by scale."""
    grid: Grid = Field(default_factory=dict)
    """Values that replace the experiment's and the methods', by key."""
    method_grid: dict[str, Grid] = Field(default_factory=dict)
    """Values that replace even those for single methods, by method."""
    tuned_as: str | None = None
    """Row whose chosen points are used, instead of tuning again."""
    methods: list[str] | None = None
    """Methods in this row; all unless given."""
    method: dict[str, Keys] = Field(default_factory=dict)
    """Settings of single methods in this row, by method."""
    reported: dict[str, list[float]] = Field(default_factory=dict)
    """The paper's mean and standard deviation, in %, by method."""


class Column(Settings):
    """A column of the table, or a line in a figure."""

    name: str
    run: Keys
    grid: Grid = Field(default_factory=dict)
    chosen_by: Evaluation = Evaluation.RAW
    """Evaluation whose score chooses the point at which all evaluations are shown that have none of their own.

    An estimate needs ``held_out``, but no target samples.
    """
    seeds: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Number of seeds at one scale, by scale, where that is fewer than the others'."""
    apart: bool = False
    """Whether it is excluded from the comparison, for instance because it uses another network."""


class Tuning(Settings):
    """Choice of the point of each grid."""

    seeds: int = Field(default=2, ge=1)
    rows: list[str] | None = None
    """Rows over which one point for all rows is chosen, by the mean; unless given, every row has its own point."""
    uses: list[Evaluation] = Field(default_factory=list)
    """Evaluations that have a point of their own, chosen by their own score."""
    scale: dict[str, Keys] = Field(default_factory=dict)
    """Settings of the tuning runs at one scale, by scale."""
    at: str | None = None
    """Scale at which points are chosen for every scale; each chooses its own unless given."""


class Experiment(Settings):
    """Contents of an experiment's TOML file."""

    title: str
    source: str
    """Table or figure of the paper."""
    text: str = ""
    metric: Literal["accuracy", "macro_f1"] = "accuracy"
    show: list[View] = Field(default=["table"])
    axis: str = ""
    """Label of the horizontal axis, which shows the rows' ``x``."""
    logarithmic: bool = False
    """Whether the horizontal axis is logarithmic."""
    scale: dict[str, Scale]
    run: Keys = Field(default_factory=dict)
    grid: Grid = Field(default_factory=dict)
    tuning: Tuning = Tuning()
    row: list[Row] = Field(default_factory=list)
    method: list[Column] = Field(default_factory=list)
    case: list[Case] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names_exist(self) -> Experiment:
        """Raise `InputError` for names that appear twice, or do not exist and so would have no effect."""
        rows, methods = [row.name for row in self.row], [method.name for method in self.method]
        for what, names in (("row", rows), ("method", methods)):
            if twice := [name for name in names if names.count(name) > 1]:
                raise InputError(f"{what}: {twice[0]!r} appears twice; give every {what} its own name")
        if not ((rows and methods) or self.case):
            raise InputError("there is nothing to compute; give a [[row]] and a [[method]], or a [[case]]")
        references = [("tuning.rows", name, rows) for name in self.tuning.rows or ()]
        references += [("tuning.at", name, list(self.scale)) for name in [self.tuning.at] if name]
        for method in self.method:
            references += [(f"seeds of method {method.name!r}", name, list(self.scale)) for name in method.seeds]
        for row in self.row:
            where = f"methods of row {row.name!r}"
            references += [(where, name, methods) for name in (*(row.methods or ()), *row.method, *row.method_grid)]
        for where, name, names in references:
            if name not in names:
                raise InputError(f"{where}: there is no {name!r}{did_you_mean(name, names)}")
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
        """Return the scale with this name."""
        if scale not in self.scale:
            raise InputError(f"scale is {scale!r}; this experiment has {', '.join(self.scale)}")
        return self.scale[scale]


Point: TypeAlias = Keys
"""One combination of a grid's values."""


@dataclass(frozen=True)
class PlannedRun:
    """A run with its row, method and point in the experiment."""

    row: str
    method: str
    point: Point
    run: Run
    chosen_for: tuple[Evaluation, ...] = ()
    """Evaluations that chose the point; empty if the method has one point for all."""

    @property
    def title(self) -> str:
        """Name of the run for readers."""
        return f"{self.row}, {self.method}, seed {self.run.seed}"

    @property
    def key(self) -> tuple[str, str, str]:
        """Key that identifies the run in the experiment."""
        return self.row, self.method, self.run.digest


def definitions(folder: Path) -> list[Path]:
    """Return the files of a folder of experiments."""
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise InputError(f"{folder}: no experiments (*.toml) there; give their folder with --experiments")
    return paths


def read_experiment(name: str, folder: Path) -> Experiment:
    """Read an experiment by name from a folder of experiments, and check the settings of all its runs."""
    names = [path.stem for path in definitions(folder)]
    if name not in names:
        hint = did_you_mean(name, names) or f"; there are {', '.join(names)}"
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
    """Return all points of a method's grid in a row; one empty point if the grid is empty."""
    grid, fixed = {**experiment.grid, **method.grid}, {**method.run, **row.method.get(method.name, {})}
    replaced = {**row.grid, **row.method_grid.get(method.name, {})}
    grid = {key: replaced.get(key, values) for key, values in grid.items() if key not in fixed}
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def tuning_runs(experiment: Experiment, scale: str) -> list[PlannedRun]:
    """Return the runs that choose the points: all points of every grid with more than one, with tuning seeds."""
    rows, scale = experiment.tuning.rows, experiment.tuning.at or scale
    extra = experiment.tuning.scale.get(scale, {})
    seeds = range(TUNING_SEED, TUNING_SEED + experiment.tuning.seeds)
    return [
        _planned(experiment, scale, row, method, point, seed, extra)
        for row, method in cells(experiment)
        if (row.tuned_as is None if rows is None else row.name in rows)
        for point in grid_points(experiment, row, method)
        if len(grid_points(experiment, row, method)) > 1
        for seed in seeds
    ]


def rows_tuned_for(experiment: Experiment, row: Row) -> list[str]:
    """Return the rows whose tuning runs choose the points of a row."""
    shared = experiment.tuning.rows
    return [row.tuned_as or row.name] if shared is None else shared


ChosenPoints: TypeAlias = dict[tuple[str, str], dict[Evaluation, Point]]
"""The point that each evaluation chose, by (row, method)."""


def reported_runs(experiment: Experiment, scale: str, points: ChosenPoints) -> list[PlannedRun]:
    """Return the runs to report, at the chosen points of every (row, method)."""
    seeds = experiment.at(scale).seeds
    return [
        replace(planned, chosen_for=chosen_for)
        for row, method in cells(experiment)
        for point, chosen_for in _distinct(points[row.name, method.name])
        for seed in range(min(row.seeds or seeds, method.seeds.get(scale, seeds)))
        for planned in [_planned(experiment, scale, row, method, point, seed, {})]
    ]


def _distinct(points: Mapping[Evaluation, Point]) -> list[tuple[Point, tuple[Evaluation, ...]]]:
    """Return the different points, each with the evaluations that chose it; without them if there is one for all."""
    different = [point for i, point in enumerate(points.values()) if point not in [*points.values()][:i]]
    if len(different) == 1:
        return [(different[0], ())]
    return [(point, tuple(e for e, chosen in points.items() if chosen == point)) for point in different]


def choosing_evaluations(experiment: Experiment, method: Column) -> list[Evaluation]:
    """Return the evaluations that choose a point for a method."""
    return list(dict.fromkeys([method.chosen_by, *experiment.tuning.uses]))


def choose_points(
    experiment: Experiment, scores: Mapping[tuple[str, str, Evaluation], list[tuple[Point, float]]]
) -> ChosenPoints:
    """Choose points for every (row, method): for an evaluation, that with its best mean score in the tuning runs.

    ``scores`` holds, by (row, method, evaluation), the point and score of every tuning run. Among equally good
    points the first in the grid is chosen. A run that diverged counts as 0.
    """
    points: ChosenPoints = {}
    for row, method in cells(experiment):
        grid = grid_points(experiment, row, method)
        rows = rows_tuned_for(experiment, row)
        for evaluation in choosing_evaluations(experiment, method):
            results = [result for name in rows for result in scores.get((name, method.name, evaluation), [])]
            totals = [sum(value for point, value in results if point == candidate) for candidate in grid]
            best = grid[max(range(len(grid)), key=totals.__getitem__)]
            points.setdefault((row.name, method.name), {})[evaluation] = best
    return points


def cells(experiment: Experiment) -> Iterator[tuple[Row, Column]]:
    """Yield every row with each of its methods."""
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
            f"chosen_by of method {method.name!r} is {method.chosen_by.value!r}, but no client holds samples out; "
            "set held_out"
        )
    return PlannedRun(row.name, method.name, point, run)
