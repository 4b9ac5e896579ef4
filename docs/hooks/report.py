"""The report of `results` as a part of the site: every table and figure, made by the report's own code."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedpals.report.finished import read
from fedpals.report.page import write_report

RESULTS = Path(__file__).parents[2] / "results"
QUICK = ("simplex",)
"""Experiments of the report in a quick build."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the report."""
    paths = [RESULTS / name for name in QUICK] if config.extra["quick"] else [RESULTS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_report(read(paths)[0], folder)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            place = f"results/report/{path.relative_to(folder).as_posix()}"
            files.append(File.generated(config, place, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead readers of the results to the report."""
    del config, files
    if page.file.src_uri != "results/index.md":
        return markdown
    title, rest = markdown.split("\n", 1)
    return f"{title}\n\n[**The report**: every table and figure, to look at](report/index.html)\n{rest}"
