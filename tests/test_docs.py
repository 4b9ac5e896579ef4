"""README and docs are true: every Python block runs, and every console block prints what the page shows.

`python -m tests.test_docs PAGE` writes what the commands of a page print today into the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedpals.data import available

ROOT = Path(__file__).parents[1]
HERE = {line.name for line in available() if line.where}
IN_PROCESS = {"docs/flower.md", "docs/start/flower.md", "docs/nvflare.md"}
"""Pages whose Python blocks tests/flower/test_docs.py and tests/nvflare/test_docs.py run."""
QUOTED = "from the package:"
"""What stands before a Python block that is quoted from the package, and so not run."""
_SHELL = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "110"}
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


def blocks(page: str, *, quoted: bool = False) -> list[str]:
    """The Python blocks of a page that are a program, or those that are quoted from the package."""
    text = (ROOT / page).read_text(encoding="utf-8")
    every = re.findall(r"([^\n]*)\n\n```python\n(.*?)```", text, flags=re.DOTALL)
    return [code for before, code in every if before.endswith(QUOTED) == quoted]


def pages_with(fence: str) -> list[str]:
    """The pages that have a block of a kind."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page.relative_to(ROOT).as_posix() for page in pages if f"```{fence}\n" in page.read_text(encoding="utf-8")]


def need_data(text: str) -> None:
    for name, words in {"heart": 'load("heart")', "fashion-mnist": "--task fashion-mnist"}.items():
        if words in text and name not in HERE:
            pytest.skip(f"{name} is not here: fedpals data get {name}")


@pytest.mark.parametrize("page", [page for page in pages_with("python") if page not in IN_PROCESS and blocks(page)])
def test_blocks_run(page: str, tmp_path: Path) -> None:
    code = blocks(page)
    need_data("\n".join(code))
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def run_console_blocks(text: str, folder: Path) -> str:
    """The page with the output that its console blocks print in `folder`, one after the other, as one shell session."""
    settings: list[str] = []

    def run_block(block: re.Match[str]) -> str:
        lines: list[str] = []
        for command in re.findall(r"^\$ ((?:.*\\\n)*.*)", block[1], flags=re.MULTILINE):
            lines.append(f"$ {command}")
            if re.match(r"\w+=", command):
                settings.append(command)
                continue
            done = subprocess.run(
                ["bash", "-c", "\n".join([*settings, command])], capture_output=True, text=True, cwd=folder,
                env=os.environ | _SHELL, timeout=300, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{command}: {done.stderr}"
            # A page may leave the output of a command out: then it shows nothing before the next command.
            if re.search(re.escape(command) + r"\n(?!\$ |\Z)", block[1]):
                lines.extend(line.rstrip() for line in done.stdout.strip("\n").splitlines())
        return "```console\n" + "\n".join(lines) + "\n```"

    (folder / "examples").symlink_to(ROOT / "examples")
    return re.sub(r"```console\n(.*?)\n```", run_block, text, flags=re.DOTALL)


@pytest.mark.parametrize("page", pages_with("console"))
def test_console_blocks_print_what_the_page_shows(page: str, tmp_path: Path) -> None:
    """Words are equal; numbers may differ as much as they do between kinds of processors (3 in a hundred, or 0.03)."""
    shown = (ROOT / page).read_text(encoding="utf-8")
    need_data(shown)
    printed = run_console_blocks(shown, tmp_path)
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    for today, then in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        assert float(today) == pytest.approx(float(then), rel=0.03, abs=0.03)


def test_quoted_blocks_stand_in_the_package() -> None:
    (block,) = blocks("docs/how-to/method.md", quoted=True)
    assert block.strip() in (ROOT / "src" / "fedpals" / "methods" / "proximal.py").read_text(encoding="utf-8")


EVERY_PAGE = [p for pattern in ("*.md", "docs/**/*.md", "examples/*/*.md", "results/*.md") for p in ROOT.glob(pattern)]


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in EVERY_PAGE))
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?://)([^)#\s]+)", text):
        assert ((ROOT / page).parent / link).exists(), link


if __name__ == "__main__":
    pages = [ROOT / page for page in sys.argv[1:] or pages_with("console")]
    for page_path in pages:
        with tempfile.TemporaryDirectory() as folder_name:
            page_path.write_text(run_console_blocks(page_path.read_text("utf-8"), Path(folder_name)), "utf-8")
