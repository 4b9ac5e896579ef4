"""An experiment on its page: its exhibits with their files, its settings, and the points chosen for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpals.experiments.experiment import Point
from fedpals.report.choices import finding
from fedpals.report.drawing import Drawing, DrawnPanel
from fedpals.report.exhibit import Exhibit, settings_text
from fedpals.report.finished import EVALUATIONS, FinishedExperiment
from fedpals.report.overview import overview
from fedpals.report.sheet import Sheet
from fedpals.report.views import exhibits
from fedpals.report.watched import WatchedRun

_MAX_ROWS = 120
"""Number of rows above which a sheet is only in its CSV file."""
_ENDINGS = {"PNG": "png", "SVG": "svg", "CSV": "csv", "LaTeX": "tex"}
"""Endings of an exhibit's files by format."""
_PAPER_SETTINGS = {"labels_per_client": 6.0, "beta": 0.1}
"""Settings of the federations whose marginals the paper shows; the page first shows the nearest federation."""


@dataclass(frozen=True, eq=False)
class PageExhibit:
    """An exhibit on the page."""

    exhibit: Exhibit
    panels: Sequence[DrawnPanel]
    files: Mapping[str, str]
    """Paths of its files by format."""
    tables: Mapping[str, Sheet]
    """Tables by title; the first is shown at once if the exhibit is tabular, the others are folded away."""

    @property
    def single(self) -> bool:
        """Whether a figure of one panel stands beside its text."""
        return len(self.panels) == 1 and not self.panels[0].wide


@dataclass(frozen=True, eq=False)
class Section:
    """An experiment on its page."""

    finished: FinishedExperiment
    exhibits: Sequence[PageExhibit]
    settings: Sheet
    points: Sheet | None
    """Chosen hyperparameters."""
    cuts: Sequence[str]
    federation: int
    """Index of the federation that is shown first."""
    contents: Mapping[str, bytes]
    """Files of all exhibits, by path."""
    study: Mapping[str, Any] | None
    """Overview of runs that are not those of an experiment."""

    @property
    def name(self) -> str:
        """Name of the experiment, and of its page without ending."""
        return self.finished.name

    @property
    def finding(self) -> str:
        """What came out, in a sentence."""
        said = next((item.exhibit.finding for item in self.exhibits if item.exhibit.finding), "")
        first, end, _ = self.finished.experiment.text.partition(". ")
        return said or finding(self.finished) or first + end.strip()


def section(finished: FinishedExperiment) -> Section:
    """Draw all exhibits of an experiment."""
    files: dict[str, bytes] = {}
    page_exhibits = []
    for exhibit in exhibits(finished):
        drawing = exhibit.draw(f"{finished.name}-{exhibit.name}")
        contents = _contents(finished, exhibit, drawing)
        paths = {name: f"{finished.name}/{exhibit.name}.{_ENDINGS[name]}" for name in contents}
        files |= {paths[name]: content for name, content in contents.items()}
        tables = exhibit.tables or ({"The numbers": exhibit.sheet} if len(exhibit.sheet.rows) <= _MAX_ROWS else {})
        filled = {title: sheet.filled for title, sheet in tables.items()}
        page_exhibits.append(PageExhibit(exhibit, drawing.panels if drawing else (), paths, filled))
    experiment = finished.experiment
    scale = experiment.scale.get(str(finished.provenance.get("scale", "")))
    return Section(
        finished,
        page_exhibits,
        _settings(finished),
        _points(finished),
        scale.cuts if scale and finished.runs else (),  # nothing was cut where nothing was trained
        _nearest_to_paper(finished),
        files,
        overview([WatchedRun.of_record(r) for r in finished.records], experiment.title) if finished.records else None,
    )


def _contents(finished: FinishedExperiment, exhibit: Exhibit, drawing: Drawing | None) -> dict[str, bytes]:
    """Return the contents of an exhibit's files by format."""
    comment = f"{finished.experiment.title}. {exhibit.title}.\n{finished.provenance.get('command', '')}".strip()
    contents = {
        "PNG": drawing.png if drawing else None,
        "SVG": drawing.svg if drawing else None,
        "CSV": exhibit.sheet.csv().encode(),
        "LaTeX": exhibit.sheet.latex(f"{comment}\nNeeds the package booktabs.").encode(),
    }
    return {name: content for name, content in contents.items() if content is not None}


def _settings(finished: FinishedExperiment) -> Sheet:
    """Return the settings of all runs, of every row and of every method."""
    experiment, name = finished.experiment, str(finished.provenance.get("scale", ""))
    scale = experiment.scale.get(name)
    lines = [("all runs", settings_text({**experiment.run, **(scale.run if scale else {})}))]
    lines += [(row.name, settings_text({**row.run, **row.scale.get(name, {})})) for row in finished.rows]
    lines += [(method.name, settings_text(method.run)) for method in finished.methods]
    return Sheet.of(["runs", "settings"], [line for line in lines if line[1]])


def _points(finished: FinishedExperiment) -> Sheet | None:
    """Return the points chosen on validation for every row and method, and the number of points tried."""
    lines = []
    for row in finished.rows:
        for method in finished.methods:
            tried = [s.point for s in finished.tuning if (s.row, s.method) == (row.name, method.name)]
            for evaluation in finished.evaluations_of_points(row, method):
                members = finished.members(row, method, evaluation)
                title = EVALUATIONS.get(evaluation, evaluation.value) if evaluation else ""
                seconds = sum(summary.seconds for summary in members) / len(members)
                point = members[0].point
                points = len({settings_text(other) for other in tried}) or None
                cells = [settings_text(point), ", ".join(keys_at_an_end(point, tried)), points, len(members), seconds]
                lines.append([row.name, method.name, title, *cells])
    columns = ["row", "method", "evaluation", "chosen on validation", "at an end of its grid", "points tried", "seeds"]
    return Sheet.of([*columns, "seconds per run"], lines) if lines else None


def keys_at_an_end(point: Point, tried: Sequence[Point]) -> list[str]:
    """Return the keys of a point with the smallest or largest of three or more numbers that were tried.

    A value beyond it may be better still.

    >>> keys_at_an_end({"ess": 0.5, "learning_rate": 0.3}, [{"ess": e, "learning_rate": e} for e in (0.1, 0.3, 0.5)])
    ['ess']
    """
    ends = []
    for key, value in point.items():
        numbers = {other[key] for other in tried if isinstance(other.get(key), int | float)}
        if len(numbers) > 2 and value in (min(numbers), max(numbers)):
            ends.append(key)
    return ends


def _nearest_to_paper(finished: FinishedExperiment) -> int:
    """Return the index of the federation nearest to one that the paper shows."""
    runs = [next((s.run for s in finished.runs if s.row == f.name), {}) for f in finished.federations]
    gaps = [
        min(
            (abs(math.log(float(run[key]) / value)) for key, value in _PAPER_SETTINGS.items() if run.get(key)),
            default=math.inf,
        )
        for run in runs
    ]
    return gaps.index(min(gaps)) if gaps else 0
