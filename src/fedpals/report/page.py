"""The report: a front page that answers, a page per experiment, one λ explorer, and files of every table and figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpals.files import replacing
from fedpals.report.answer import answer
from fedpals.report.explorer import explore
from fedpals.report.finished import FederationView, FinishedExperiment
from fedpals.report.html import render
from fedpals.report.section import section
from fedpals.report.study_page import SCRIPTS as STUDY_SCRIPTS
from fedpals.report.thumbnails import thumbnail


def write_report(experiments: Sequence[FinishedExperiment], folder: Path) -> Path:
    """Write all pages and the files of all tables and figures; return the path of the front page.

    Everything is computed before anything is written, every file is written atomically, and the front page comes last.
    """
    sections = [section(finished) for finished in experiments]
    federations, links = _distinct_federations(experiments)
    files: dict[str, bytes] = {}
    for own in sections:
        files |= own.contents
        scripts = ("page.js",) if own.study is None else ("page.js", *STUDY_SCRIPTS)
        files[f"{own.name}.html"] = render(
            "experiment.html", scripts=scripts, section=own, explorers=links[own.name]
        ).encode()
    if federations:
        files["explorer.html"] = _explorer(federations).encode()
    cards = [(own, thumbnail(own.finished)) for own in sections]
    front = render("front.html", answer=answer(experiments), cards=cards, federations=[view for _, view in federations])
    for name, content in {**files, "index.html": front.encode()}.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)
    return folder / "index.html"


def _explorer(federations: Sequence[tuple[FinishedExperiment, FederationView]]) -> str:
    """Return the page of the explorer, with a choice of all federations."""
    groups: dict[str, dict[int, str]] = {}
    for number, (finished, view) in enumerate(federations):
        groups.setdefault(finished.experiment.title, {})[number] = view.name
    data = [explore(view.counts, view.target, name=view.name, ess=view.ess) for _, view in federations]
    return render("explorer.html", scripts=("charts.js", "explorer.js"), explorers=data, groups=groups)


def _distinct_federations(
    experiments: Sequence[FinishedExperiment],
) -> tuple[list[tuple[FinishedExperiment, FederationView]], dict[str, dict[str, int]]]:
    """Return each federation once, with its first experiment; and, by experiment, the numbers of its federations."""
    numbers: dict[tuple[bytes, bytes], int] = {}
    distinct: list[tuple[FinishedExperiment, FederationView]] = []
    links: dict[str, dict[str, int]] = {}
    for finished in experiments:
        links[finished.name] = {}
        for view in finished.federations:
            key = (np.asarray(view.counts.table).tobytes(), view.target.tobytes())
            if key not in numbers:
                numbers[key] = len(distinct)
                distinct.append((finished, view))
            links[finished.name][view.name] = numbers[key]
    return distinct, links
