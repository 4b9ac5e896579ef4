"""Signals to a command and to its workers: it stops in order, and no process is left."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.test_weights import EXECUTABLE

RUNS = ("run", "--task", "digits", "--model", "logistic", "--clients", "5", "--method", "fedavg", "--seeds", "3")
LONG = (*RUNS, "--rounds", "5000")


def started(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """A command in a session of its own, so that all its processes can be found."""
    return subprocess.Popen(
        [EXECUTABLE, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_of(session: int) -> dict[int, str]:
    """The processes of a session that have not ended, and what they run."""
    listed = subprocess.run(["ps", "-eww", "-o", "sid=,pid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 3) for line in listed.stdout.splitlines()]
    return {int(row[1]): row[3] for row in rows if int(row[0]) == session and not row[2].startswith("Z")}


def assert_none_left(session: int) -> None:
    deadline = time.monotonic() + 5
    while (left := processes_of(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def wait_for_round(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while not list(folder.glob("runs/*/*/*/checkpoint/state.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.02)


def check_records(folder: Path) -> None:
    for path in folder.glob("runs/*/*/*/metrics.jsonl"):
        numbers = [json.loads(line)["round"] for line in path.read_text().splitlines()]
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(
    ("number", "workers"),
    [(signal.SIGTERM, "2"), (signal.SIGHUP, "1"), (signal.SIGKILL, "2")],
)
def test_a_signal_while_rounds_are_computed(number: signal.Signals, workers: str, tmp_path: Path) -> None:
    process = started(*LONG, "--workers", workers, cwd=tmp_path)
    wait_for_round(tmp_path)
    time.sleep(random.Random(f"{number} {workers}").uniform(0, 1))
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert_none_left(process.pid)
    check_records(tmp_path)
    if number != signal.SIGKILL:
        assert (process.returncode, errors) == (128 + number, "")
        assert "3 of 3 runs are unfinished. The same command continues them." in " ".join(output.split())


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_a_signal_at_any_moment_while_workers_start(number: signal.Signals, tmp_path: Path) -> None:
    process = started(*LONG, "--workers", "2", cwd=tmp_path)
    deadline = time.monotonic() + 60
    while len(processes_of(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(random.Random(int(number)).uniform(0, 2))
    for pid, command in processes_of(process.pid).items():
        if "spawn_main" in command and number != signal.SIGKILL:
            subprocess.run(
                ["kill", f"-{int(number)}", str(pid)], check=False, capture_output=True
            )  # as a terminal does
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert_none_left(process.pid)
    check_records(tmp_path)
    if number != signal.SIGKILL:
        assert (process.returncode, errors) == (128 + number, "")


def test_a_worker_that_is_killed_fails_its_run_alone(tmp_path: Path) -> None:
    process = started(*RUNS, "--rounds", "80", "--workers", "2", cwd=tmp_path)
    wait_for_round(tmp_path)
    workers = [pid for pid, args in processes_of(process.pid).items() if "spawn_main" in args]
    subprocess.run(["kill", "-9", str(workers[0])], check=True)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (1, "")
    told = " ".join(output.split())
    assert told.count("failed: digits-C3 fedavg seed") == 1
    assert "its process was ended by SIGKILL, as the system does where memory runs out; the same command cont" in told
    assert len(list(tmp_path.glob("runs/*/*/*/result.json"))) == 2
    assert_none_left(process.pid)
    check_records(tmp_path)
