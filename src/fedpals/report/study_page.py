"""The page of a study, whole in one file: from its records, or asking for what is new while it is under way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpals.files import replacing
from fedpals.report.html import check_page, render
from fedpals.report.overview import overview
from fedpals.report.watched import WatchedRun

SCRIPTS = ("charts.js", "study.js")


def study_page(data: dict[str, Any], *, live: bool = False) -> str:
    """Return the page; a ``live`` one asks its server for data every few seconds."""
    return render("study.html", scripts=SCRIPTS, study=data, live=live)


def write_study_page(runs: Sequence[WatchedRun], path: Path, title: str) -> None:
    """Write the page of a study, atomically."""
    check_page(path)
    page = study_page(overview(runs, title))
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
