"""The report: one HTML page that needs no network, and files of every table and figure beside it."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpals.atomic import replacing
from fedpals.report.exhibit import Exhibit
from fedpals.report.explorer import explore
from fedpals.report.html import render
from fedpals.report.sheet import Sheet
from fedpals.report.study import Study
from fedpals.report.svg import inline
from fedpals.report.views import exhibits, keys

_MOST_ROWS = 120
"""Longer sheets are left to their CSV file."""
_WIDE = 7.0
"""Inches from which on a panel has a line of the page to itself."""
_PAPER = {"labels_per_client": 6.0, "beta": 0.1}
"""The federations whose marginals the paper shows: readers see those nearest to them first."""


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A panel on the page."""

    title: str
    svg: str
    inches: float
    """How wide it was drawn: its text is as large as all others' then."""
    wide: bool


@dataclass(frozen=True, eq=False)
class _Shown:
    """An exhibit on the page."""

    exhibit: Exhibit
    panels: Sequence[_Drawn]
    files: str
    """Path of its files, without ending."""
    numbers: Sheet | None


@dataclass(frozen=True, eq=False)
class _Section:
    """An experiment on the page."""

    study: Study
    shown: Sequence[_Shown]
    settings: Sheet
    chosen: Sheet | None
    cuts: Sequence[str]
    explorers: Sequence[Mapping[str, Any]]
    federation: int
    """Which of ``explorers`` is seen first."""


def write_report(studies: Sequence[Study], folder: Path) -> Path:
    """Write ``index.html`` and the files of all tables and figures; return the page's path.

    Everything is computed before anything is written, every file appears whole, and the page comes last.
    """
    files: dict[str, bytes] = {}
    sections = []
    for study in studies:
        shown = exhibits(study)
        for exhibit in shown:
            files |= dict(_files(study, exhibit))
        sections.append(_section(study, shown))
    page = render("page.html", sections=sections)
    for name, content in {**files, "index.html": page.encode()}.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)
    return folder / "index.html"


def _files(study: Study, exhibit: Exhibit) -> Iterator[tuple[str, bytes]]:
    import matplotlib as mpl

    figure = exhibit.figure()
    with mpl.rc_context({"svg.hashsalt": "fedpals"}):
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
            figure.set_layout_engine("none")  # the second file has the first's layout, which takes longest
            yield f"{study.name}/{exhibit.name}.{suffix}", buffer.getvalue()
    made = f"{study.experiment.title}. {exhibit.title}.\n{study.provenance.get('command', '')}".strip()
    yield f"{study.name}/{exhibit.name}.csv", exhibit.sheet.csv().encode()
    yield f"{study.name}/{exhibit.name}.tex", exhibit.sheet.latex(f"{made}\nNeeds the package booktabs.").encode()


def _section(study: Study, shown: Sequence[Exhibit]) -> _Section:
    experiment = study.experiment
    scale = experiment.scale.get(str(study.provenance.get("scale", "")))
    return _Section(
        study,
        [_on_page(study, exhibit) for exhibit in shown],
        _settings(study),
        _chosen(study),
        scale.cuts if scale else (),
        [explore(f.counts, f.target, name=f.name, ess=f.ess) for f in study.federations],
        _first(study),
    )


def _on_page(study: Study, exhibit: Exhibit) -> _Shown:
    panels = []
    for i, panel in enumerate(exhibit.panels):
        description = f"{exhibit.title}: {panel.title}. {exhibit.caption}"
        svg = inline(panel.figure(), f"{study.name}-{exhibit.name}-{i}", description)
        panels.append(_Drawn(panel.title, svg, round(panel.size[0], 2), wide=panel.size[0] > _WIDE))
    small = len(exhibit.sheet.rows) <= _MOST_ROWS
    return _Shown(exhibit, panels, f"{study.name}/{exhibit.name}", exhibit.sheet if small else None)


def _settings(study: Study) -> Sheet:
    """Return what was set, from what all runs share to what sets methods apart."""
    experiment, name = study.experiment, str(study.provenance.get("scale", ""))
    scale = experiment.scale.get(name)
    lines = [("all runs", keys({**experiment.run, **(scale.run if scale else {})}))]
    lines += [(row.name, keys({**row.run, **row.scale.get(name, {})})) for row in study.rows]
    lines += [(method.name, keys(method.run)) for method in study.methods]
    return Sheet.of(["of", "settings"], [line for line in lines if line[1]])


def _chosen(study: Study) -> Sheet | None:
    """Return the point that validation chose for every row and method, and of how many."""
    lines = []
    for row in study.rows:
        for method in study.methods:
            members = study.members(row, method)
            tried = {keys(s.point) for s in study.tuning if (s.row, s.method) == (row.name, method.name)}
            if members and members[0].point:
                seconds = sum(summary.seconds for summary in members) / len(members)
                lines.append([row.name, method.name, keys(members[0].point), len(tried) or None, len(members), seconds])
    columns = ["row", "method", "chosen on validation", "points tried", "seeds", "seconds per run"]
    return Sheet.of(columns, lines) if lines else None


def _first(study: Study) -> int:
    """Return which federation is nearest to one that the paper shows."""
    runs = [next((s.run for s in study.runs if s.row == f.name), {}) for f in study.federations]
    gaps = [
        min((abs(math.log(float(run[key]) / value)) for key, value in _PAPER.items() if run.get(key)), default=math.inf)
        for run in runs
    ]
    return gaps.index(min(gaps)) if gaps else 0
