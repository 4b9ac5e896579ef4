"""The whole of `tests.torture`, in a process of its own because its cases are forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_every_bad_input_is_answered_in_one_sentence() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.torture"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tally = done.stdout.splitlines()[-1]
    assert "traceback 0, silent 0" in tally
    assert int(tally.split()[1].rstrip(",")) > 300
