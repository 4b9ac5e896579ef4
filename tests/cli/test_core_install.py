"""Every command where torch, flwr and matplotlib are not installed: it works, or says which extra to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from tests.runs import SMALL

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "torchvision", "flwr", "matplotlib", "jinja2", "numba", "safetensors"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from fedpals.cli import main
main()
"""
EXAMPLES = Path(__file__).parents[2] / "examples"
WEIGHTS = ("weights", str(EXAMPLES / "retail/stores.csv"), "--target", str(EXAMPLES / "retail/new-store.csv"))


def fedpals(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("--help",),
        ("run", "--help"),
        WEIGHTS,
        ("data",),
        ("data", "show", "synthetic"),
        ("reproduce", "--list"),
        ("reproduce",),
    ],
    ids=" ".join,
)
def test_what_needs_no_extra_works(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = fedpals(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("run", "--task", "digits"), "learn"),
        (("tune", "--task", "digits"), "learn"),
        (("demo",), "learn"),
        (("reproduce", "synthetic"), "learn"),
        (("estimate-target", "somewhere"), "learn"),
        (("report", "."), "plots"),
        (("data", "show", "synthetic", "--plot", "x.png"), "plots"),
        ((*WEIGHTS, "--explore", "x.html"), "plots"),
        (("flower", "up", str(EXAMPLES / "flower")), "flower"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else value,
)
def test_what_needs_an_extra_names_it(arguments: tuple[str, ...], extra: str, tmp_path: Path) -> None:
    done = fedpals(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"pip install 'fedpals[{extra}]'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_check_reads_a_run_without_torch(tmp_path: Path) -> None:
    record = simulate(Run.of({**SMALL, "held_out": 0.3}), tmp_path)
    done = fedpals("check", str(record.path))
    assert done.returncode == 0, done.stderr
    assert "labels" in done.stdout
