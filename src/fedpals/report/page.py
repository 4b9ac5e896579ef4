"""The report: one HTML page that needs no network, and files of every table and figure next to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpals.files import replacing
from fedpals.report.drawing import Drawing, DrawnPanel
from fedpals.report.exhibit import Exhibit, settings_text
from fedpals.report.explorer import explore
from fedpals.report.finished import FinishedExperiment
from fedpals.report.html import render
from fedpals.report.sheet import Sheet
from fedpals.report.views import exhibits

_MAX_ROWS = 120
"""Number of rows above which a sheet is only in its CSV file."""
_PAPER_SETTINGS = {"labels_per_client": 6.0, "beta": 0.1}
"""Settings of the federations whose marginals the paper shows; the page first shows the nearest federation."""


@dataclass(frozen=True, eq=False)
class _PageExhibit:
    """An exhibit on the page."""

    exhibit: Exhibit
    panels: Sequence[DrawnPanel]
    files: str
    """Path of its files, without ending."""
    numbers: Sheet | None


@dataclass(frozen=True, eq=False)
class _Section:
    """An experiment on the page."""

    finished: FinishedExperiment
    exhibits: Sequence[_PageExhibit]
    settings: Sheet
    points: Sheet | None
    """Chosen hyperparameters."""
    cuts: Sequence[str]
    explorers: Sequence[Mapping[str, Any]]
    federation: int
    """Index of the explorer that is shown first."""


def write_report(experiments: Sequence[FinishedExperiment], folder: Path) -> Path:
    """Write ``index.html`` and the files of all tables and figures; return the page's path.

    Everything is computed before anything is written, every file is written atomically, and the page comes last.
    """
    files: dict[str, bytes] = {}
    sections = []
    for finished in experiments:
        page_exhibits = []
        for exhibit in exhibits(finished):
            drawing = exhibit.draw(f"{finished.name}-{exhibit.name}")
            files |= dict(_files(finished, exhibit, drawing))
            sheet = exhibit.sheet if len(exhibit.sheet.rows) <= _MAX_ROWS else None
            files_path = f"{finished.name}/{exhibit.name}"
            page_exhibits.append(_PageExhibit(exhibit, drawing.panels, files_path, sheet))
        sections.append(_section(finished, page_exhibits))
    page = render("page.html", sections=sections)
    for name, content in {**files, "index.html": page.encode()}.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)
    return folder / "index.html"


def _files(finished: FinishedExperiment, exhibit: Exhibit, drawing: Drawing) -> Iterator[tuple[str, bytes]]:
    name = f"{finished.name}/{exhibit.name}"
    comment = f"{finished.experiment.title}. {exhibit.title}.\n{finished.provenance.get('command', '')}".strip()
    yield f"{name}.png", drawing.png
    yield f"{name}.svg", drawing.svg
    yield f"{name}.csv", exhibit.sheet.csv().encode()
    yield f"{name}.tex", exhibit.sheet.latex(f"{comment}\nNeeds the package booktabs.").encode()


def _section(finished: FinishedExperiment, page_exhibits: Sequence[_PageExhibit]) -> _Section:
    experiment = finished.experiment
    scale = experiment.scale.get(str(finished.provenance.get("scale", "")))
    return _Section(
        finished,
        page_exhibits,
        _settings(finished),
        _points(finished),
        scale.cuts if scale else (),
        [explore(f.counts, f.target, name=f.name, ess=f.ess) for f in finished.federations],
        _nearest_to_paper(finished),
    )


def _settings(finished: FinishedExperiment) -> Sheet:
    """Return the settings of all runs, of every row and of every method."""
    experiment, name = finished.experiment, str(finished.provenance.get("scale", ""))
    scale = experiment.scale.get(name)
    lines = [("all runs", settings_text({**experiment.run, **(scale.run if scale else {})}))]
    lines += [(row.name, settings_text({**row.run, **row.scale.get(name, {})})) for row in finished.rows]
    lines += [(method.name, settings_text(method.run)) for method in finished.methods]
    return Sheet.of(["runs", "settings"], [line for line in lines if line[1]])


def _points(finished: FinishedExperiment) -> Sheet | None:
    """Return the point chosen on validation for every row and method, and the number of points tried."""
    lines = []
    for row in finished.rows:
        for method in finished.methods:
            members = finished.members(row, method)
            candidates = {
                settings_text(s.point) for s in finished.tuning if (s.row, s.method) == (row.name, method.name)
            }
            if members and members[0].point:
                seconds = sum(summary.seconds for summary in members) / len(members)
                lines.append(
                    [
                        row.name,
                        method.name,
                        settings_text(members[0].point),
                        len(candidates) or None,
                        len(members),
                        seconds,
                    ]
                )
    columns = ["row", "method", "chosen on validation", "points tried", "seeds", "seconds per run"]
    return Sheet.of(columns, lines) if lines else None


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
