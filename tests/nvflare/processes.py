"""FLARE's processes: all that a test starts has the test's folder in its command, and is gone at its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def running(folder: Path, patience: float = 0.0) -> list[int]:
    """Processes that a command with this folder started, once there are none or after some seconds."""
    end = time.monotonic() + patience
    while (pids := _running(folder)) and time.monotonic() < end:
        time.sleep(0.2)
    return pids


def _running(folder: Path) -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if str(folder).encode() in command:
            pids.append(int(path.parent.name))
    return [pid for pid in pids if pid != os.getpid()]


def run_script(folder: Path, *command: str, timeout: float = 240.0) -> str:
    """Run a Python program that keeps all of FLARE's files in the folder; return what it prints."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    own = {"HOME": folder, "TMPDIR": folder, "NVFLARE_POC_WORKSPACE": folder / "poc", "XDG_CACHE_HOME": cache}
    # To a file: FLARE's services have the output's pipe, which then stays open as long as one of them runs.
    with (folder / "printed.txt").open("w+", encoding="utf-8") as printed:
        done = subprocess.run(
            [sys.executable, *command], stdout=printed, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder,
            env=os.environ | {name: str(value) for name, value in own.items()}, timeout=timeout, check=False,
        )  # fmt: skip
        printed.seek(0)
        text = printed.read()
    assert done.returncode == 0, text
    return text


def logs(folder: Path) -> str:
    """All that servers and sites have logged in the folder."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("log.txt")))
