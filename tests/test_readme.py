"""The README says what is: its example prints what stands there. Its table: tests/published."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_stands_there() -> None:
    block = re.search(r"```\n\$ (fedpals weights .*)\n((?:.*\n)+?)```", README)
    assert block is not None
    command = [str(Path(sys.executable).with_name("fedpals")), *block[1].split()[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == block[2].split()


def test_it_is_read_in_two_minutes() -> None:
    prose = re.sub(r"```.*?```|\$\$.*?\$\$", "", README, flags=re.DOTALL)
    assert len(re.findall(r"\w+", prose)) < 750
