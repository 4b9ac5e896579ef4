"""Blocks of Markdown that stand between a line that names a table and its experiment, and a line that ends it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.published.tables import TABLES, Table

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", ROOT / "results" / "README.md", ROOT / "examples" / "hospitals" / "README.md"]
BLOCK = re.compile(r"(<!-- (\w+) ([\w-]+): written by make results -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def markdown(table: Table) -> str:
    """Return a table, its first line the header."""
    header, *lines = table
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *lines))


def rebuilt(text: str) -> str:
    """Return a page with every table made anew from the stored results."""
    return BLOCK.sub(lambda block: f"{block[1]}{markdown(TABLES[block[2]](block[3]))}{block[5]}", text)
