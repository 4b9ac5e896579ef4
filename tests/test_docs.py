"""Every Python block of README and docs that uses the package runs, block after block, on real data."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedpals.data import available

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/own-data.md"]
HEART = any(line.name == "heart" and line.where for line in available())


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.skipif(not HEART, reason="heart disease data are not here: fedpals data get heart")
@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page: str, tmp_path: Path) -> None:
    code = blocks(page)
    assert code
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


EVERY_PAGE = [p for pattern in ("*.md", "docs/*.md", "examples/*/*.md", "results/*.md") for p in ROOT.glob(pattern)]


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in EVERY_PAGE))
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?://)([^)#\s]+)", text):
        assert ((ROOT / page).parent / link).exists(), link
