"""A run that is killed anywhere has the same bits when it is resumed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_killed_before_every_file_operation_the_run_has_the_same_bits(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.simulation.crashing", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 80, "operations that were not seen cannot be killed before"


def test_two_commands_at_once_eight_times_leave_everything_intact(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.simulation.twice", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 0, "the commands never met"
