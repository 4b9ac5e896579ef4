"""Notebooks as pages: run while the site is built, shown with what they print and draw."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from traitlets.config import Config

from fedpals.data import available

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
SECONDS = 600
"""That a cell may take before it counts as stuck; on a quiet machine a whole notebook takes half a minute."""
_log = get_plugin_logger("notebooks")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every notebook; the notebook itself can be downloaded."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        missing = missing_data(notebook)
        if config.extra["quick"]:
            note = "This is a quick build of the site: the notebook was not run."
        elif missing:
            note = f"Built on a machine without {missing} (`fedpals data get {missing}`): the notebook was not run."
            _log.info("%s is not run: %s is not here; fedpals data get %s", path.name, missing, missing)
        else:
            note = ""
            execute(notebook)
        text, pictures = as_page(notebook, path.stem)
        title, rest = text.split("\n", 1)
        download = f"[Download this notebook]({path.name})" + (f"\n\n!!! note\n    {note}" if note else "")
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=f"{title}\n\n{download}\n{rest}"))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def missing_data(notebook: Any) -> str | None:
    """Return the data set that a notebook needs (its metadata name it) and this machine lacks."""
    needed = notebook.metadata.get("fedpals", {}).get("data")
    here = {line.name for line in available() if line.where}
    return needed if needed is not None and needed not in here else None


def execute(notebook: Any) -> None:
    """Run a notebook in a new folder that has the examples beside it; an error in a cell is an error of the build."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            extra_arguments=["--log-level=ERROR"],
        ).execute()


def as_page(notebook: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by file name."""
    settings = Config()
    settings.ExtractOutputPreprocessor.output_filename_template = f"{name}-{{cell_index}}-{{index}}{{extension}}"
    text, resources = MarkdownExporter(config=settings).from_notebook_node(notebook)
    own_look = (
        r"<style scoped>.*?</style>\n| border=\"1\" class=\"dataframe\"| style=\"text-align: right;\""  # of pandas
    )
    return re.sub(own_look, "", text, flags=re.DOTALL), resources["outputs"]
