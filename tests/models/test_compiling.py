"""How compiled functions are kept for the next process; tried with a small function of the same kind as the step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from fedpals.models.compiled.compiling import entry

@entry
def compute(n):
    total = 0.0
    for i in range(n):
        total += 1.0 / (i + 1)
    return total

print(repr(compute(1000)), sum(compute.stats.cache_hits.values()))
"""


PATH = os.environ.get("PYTHONPATH", "")


def start(folder: Path, before: str = "") -> subprocess.Popen[str]:
    """Compile in another process, with the cache in a folder of its own."""
    script = folder / "compute.py"
    script.write_text(MODULE, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-c", f"{before}\nimport compute"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": f"{folder}{os.pathsep}{PATH}"},
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Return the result, and how often it was found in the cache."""
    output, _ = process.communicate()
    assert process.returncode == 0
    result, hits = output.split()
    return result, int(hits)


def test_processes_that_compile_at_once_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPALS_LANES", "8")
    together = [finish(process) for process in [start(tmp_path), start(tmp_path)]]
    assert len(list(tmp_path.rglob("*.nbi"))) == 1
    assert finish(start(tmp_path)) == (together[0][0], 1)
    assert together[0][0] == together[1][0]
    monkeypatch.setenv("FEDPALS_LANES", "16")
    assert finish(start(tmp_path)) == (together[0][0], 0)  # another processor's code is no use
    assert len(list(tmp_path.rglob("*.nbi"))) == 2


def test_without_a_folder_to_write_to_it_is_compiled_all_the_same(tmp_path: Path) -> None:
    # Numba asks for a folder in which it can write a file; to be root is enough to find one in every folder.
    refusing = "import tempfile\ndef refuse(**_):\n    raise PermissionError\ntempfile.TemporaryFile = refuse"
    assert finish(start(tmp_path, refusing))[1] == 0
    assert not list(tmp_path.rglob("*.nbi"))


def test_lanes_are_8_or_16() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import fedpals.models.compiled.lanes"],
        env={**os.environ, "FEDPALS_LANES": "12"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "FEDPALS_LANES is '12'; set it to 8 or 16" in done.stderr
