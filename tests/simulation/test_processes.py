"""Worker processes: one that is killed takes only its own task along, and all end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from fedpals.errors import FedpalsError, InputError
from fedpals.simulation.processes import Processes, Work


def make_work(base: int) -> Work:
    def work(task: Any, tell: Callable[[Any], None], stop: Callable[[], bool]) -> Any:
        if task == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if task == "refuse":
            raise InputError("task is 'refuse'; give another")
        if task == "wait":
            tell(os.getpid())
            while not stop():
                time.sleep(0.01)
            return "stopped"
        return base + task

    return work


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes(2, make_work, 10)
    yield processes
    processes.close()


def test_a_task_that_takes_its_process_down_fails_alone(processes: Processes) -> None:
    futures = [processes.submit(task) for task in (1, "die", 2, "refuse", 3)]
    with pytest.raises(FedpalsError, match="its process was ended by SIGKILL, as the system does where memory runs"):
        futures[1].result(60)
    with pytest.raises(InputError, match="give another"):
        futures[3].result(60)
    assert [futures[i].result(60) for i in (0, 2, 4)] == [11, 12, 13]


def test_stop_is_heard_by_tasks_under_way_and_cancels_the_rest(processes: Processes) -> None:
    futures = [processes.submit("wait") for _ in range(3)]
    pids = [processes.progress.get(timeout=60) for _ in range(2)]
    for pid in pids:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)  # as a terminal sends to all: the parent decides
    processes.stop()
    assert [future.result(60) for future in futures[:2]] == ["stopped", "stopped"]
    with pytest.raises(CancelledError):
        futures[2].result(60)


def test_one_that_was_killed_while_idle_costs_no_task() -> None:
    processes = Processes(1, make_work, 10)
    try:
        assert processes.submit(1).result(60) == 11
        (process,) = processes._all
        process.kill()
        process._process.join()
        assert processes.submit(2).result(60) == 12
    finally:
        processes.close()


PARENT = """
from tests.simulation.test_processes import make_work
from fedpals.simulation.processes import Processes
processes = Processes(2, make_work, 10)
futures = [processes.submit("wait") for _ in range(2)]
for _ in futures:
    print(processes.progress.get(), flush=True)
futures[0].result()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_parent_that_is_killed(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(is_running(pid) for pid in workers)
        parent.send_signal(number)
        parent.wait()
    assert_all_end(workers)


def is_running(pid: int) -> bool:
    """Whether a process has not ended; one whose end nobody has asked for yet has."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(done.stdout.strip()) and not done.stdout.strip().startswith("Z")


def assert_all_end(pids: list[int], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while (running := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not running
