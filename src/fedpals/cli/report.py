"""`fedpals report`: results and runs as pages, and as files for publications."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpals.cli.terminal import escape, new_console


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATHS…", help="Folders of results, or of runs of fedpals run.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the report.")] = Path("report"),
) -> None:
    """Write pages that need no network: which method to use, then every experiment; and PNG, SVG, CSV and LaTeX."""
    from fedpals.report.figures import new_figure  # slow imports, so only here
    from fedpals.report.finished import read
    from fedpals.report.html import check_page
    from fedpals.report.page import write_report

    check_page(out / "index.html")
    new_figure(1, 1)
    console = new_console()
    experiments, empty = read(paths)
    with console.status("Drawing"):
        page = write_report(experiments, out)
    if empty:
        console.print(
            f"[dim]Left out, because they have no finished runs: {escape(', '.join(empty))}[/dim]", soft_wrap=True
        )
    console.print(f"Report: {escape(str(page))}", soft_wrap=True)
