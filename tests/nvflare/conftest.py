"""Folders for jobs in real processes."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nvflare.processes import running

_PORT = 8002
"""Of the server in FLARE's POC mode, always."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose processes do not outlive the test."""
    if not Path("/proc").is_dir():
        pytest.skip("looks for processes in /proc")
    yield tmp_path
    for pid in running(tmp_path):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def poc_folder(folder: Path) -> Iterator[Path]:
    """A folder for POC mode, of which there can be only one at a time on a machine."""
    with Path(tempfile.gettempdir(), "fedpals-poc.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", _PORT)) == 0:
                pytest.skip(f"something else serves port {_PORT}, which FLARE's POC mode needs")
        yield folder
