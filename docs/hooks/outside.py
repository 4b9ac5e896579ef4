"""Pages of the site whose text lies elsewhere in the repository, and links between them and `docs`."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "CONTRIBUTING.md": "inside/contributing.md",
    "CHANGELOG.md": "inside/changelog.md",
    "results/README.md": "results/index.md",
    "results/tried.md": "results/tried.md",
    "examples/hospitals/README.md": "results/hospitals.md",
}
"""Path in the repository → path in the site."""
_TOGETHER = re.compile(r"(?<=\d) (±) (?=\d)|(?<=[Cβδε]) (=) (?=\d)")
_NO_BREAK = "\N{NO-BREAK SPACE}\\1\\2\N{NO-BREAK SPACE}"
_LINK = re.compile(r"(?<!\!)\[(?P<text>[^\]]*)\]\((?P<path>(?!\w+:)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that are right in the repository lead to the same text in the site.

    A link to a file that is not part of the site becomes its text.
    """
    del config, files
    place = page.file.src_uri
    sources = {site: source for source, site in OUTSIDE.items()}
    folder = posixpath.dirname(sources.get(place, f"docs/{place}"))

    def lead(link: re.Match[str]) -> str:
        source = posixpath.normpath(posixpath.join(folder, link["path"]))
        inside = OUTSIDE.get(source) or posixpath.relpath(source, "docs")
        if inside.endswith(".ipynb") and not place.startswith("notebooks/"):
            inside = inside.removesuffix("ipynb") + "md"
        if inside.startswith("../"):
            return link["text"]
        relative = posixpath.relpath(inside, posixpath.dirname(place) or ".")
        return f"[{link['text']}]({relative}{link['anchor'] or ''})"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else _unbroken(_LINK.sub(lead, part)) for part in parts)


def _unbroken(markdown: str) -> str:
    """Keep ``84.1 ± 14.6`` and ``C = 3`` in one line where they stand in a table."""
    lines = markdown.split("\n")
    return "\n".join(_TOGETHER.sub(_NO_BREAK, line) if line.startswith("|") else line for line in lines)
