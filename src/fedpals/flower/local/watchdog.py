"""The process that cleans up after a deployment, in whichever way the process that started it ends.

It runs as a script, with the standard library alone, in a session of its own: it makes the deployment's folder, prints
its path, and waits until its standard input ends, because the parent closed it or was killed. Then it ends every
process of the deployment and removes the folder with the private keys. Signals to stop are for the parent.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_TERM_SECONDS = 5.0
"""Time limit for processes to end by themselves."""
_KILL_SECONDS = 10.0
"""Time limit for the system to end killed processes."""
_POLL_SECONDS = 0.1


def end_all(home: Path) -> bool:
    """End every process that was started with FLWR_HOME at ``home``, also SuperLink's helpers, which leave its session.

    Processes that others are just starting count, too: nothing must be seen twice in a row. Return whether all ended.
    """
    begin, asked, empty = time.monotonic(), set[int](), 0
    while empty < 2:
        ids = set(process_ids(home))
        empty = 0 if ids else empty + 1
        elapsed = time.monotonic() - begin
        if elapsed > _TERM_SECONDS + _KILL_SECONDS:
            return False
        kill = elapsed > _TERM_SECONDS
        for pid in ids if kill else ids - asked:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
        asked |= ids
        time.sleep(_POLL_SECONDS)
    return True


def process_ids(home: Path) -> list[int]:
    """Return the processes whose FLWR_HOME is ``home``, without those that only wait to be collected."""
    variable, ids = f"FLWR_HOME={home}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and variable in (folder / "environ").read_bytes().split(b"\0"):
                ids.append(int(folder.name))
    return ids


def clean(folder: Path) -> bool:
    """End the processes of the deployment in ``folder`` and remove it; return whether nothing is left."""
    ended = end_all(folder / "home")
    shutil.rmtree(folder, ignore_errors=True)
    return ended and not folder.exists()


def _main() -> int:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    folder = Path(tempfile.mkdtemp(prefix="fedpals-flower-"))
    with suppress(BrokenPipeError):  # the parent is gone already
        print(folder, flush=True)
        sys.stdin.buffer.read()
    return 0 if clean(folder) else 1


if __name__ == "__main__":
    sys.exit(_main())
