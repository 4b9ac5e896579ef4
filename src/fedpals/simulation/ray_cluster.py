"""Runs on a Ray cluster: one run at a time on each of its CPUs, records sent back as files."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedpals.engine.lock import locked
from fedpals.errors import InputError, MissingExtraError
from fedpals.simulation.computing import compute
from fedpals.simulation.event import Event
from fedpals.simulation.executors import Executor
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings

_ANSWER_SECONDS = 30.0
"""That a Ray cluster has to answer; Ray itself would try for minutes."""


@contextmanager
def on_ray(settings: SweepSettings, address: str, runs: Mapping[int, Run]) -> Iterator[Executor]:
    """Compute runs, by position, on the cluster at an address."""
    _check(address)
    import ray

    with warnings.catch_warnings(action="ignore"):  # advice on accelerators that nobody asked for
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    locks: dict[int, ExitStack] = {}
    try:
        folder = settings.data_folder.absolute() if settings.data_folder else None
        yield _Ray(replace(settings, workers=1, ray=None, data_folder=folder), _board(), runs, locks)
    finally:
        for lock in locks.values():
            lock.close()
        ray.shutdown()


@dataclass(frozen=True, eq=False)
class _Computed:
    """How a run ended on a node of the cluster, and the files of its record."""

    event: Event
    files: Mapping[str, bytes] = field(default_factory=dict)


def _board() -> Any:
    """Start the actor that passes news to this process, and the order to stop to the runs."""
    import ray

    class Board:  # defined here, it travels by value, so that its process need not load torch
        def __init__(self) -> None:
            self._news: list[tuple[int, Any, Any]] = []
            self._stopped = False

        def tell(self, position: int, line: Any, text: Any) -> None:
            self._news.append((position, line, text))

        def news(self) -> list[tuple[int, Any, Any]]:
            news, self._news = self._news, []
            return news

        def stop(self) -> None:
            self._stopped = True

        def stopped(self) -> bool:
            return self._stopped

    return ray.remote(num_cpus=0)(Board).remote()


@dataclass(frozen=True, eq=False)
class _Ray:
    """Gives each CPU of a cluster one run at a time, in a folder of its own; the record comes back as files.

    The folder that they come back to is locked from here, from the submission on.
    """

    settings: SweepSettings
    board: Any
    runs: Mapping[int, Run]
    locks: dict[int, ExitStack]
    """By position."""

    def submit(self, position: int) -> Future[Any]:
        import ray

        run, lock = self.runs[position], ExitStack()
        record = Record(run, self.settings.out)
        if not lock.enter_context(locked(record.path)):
            return _done(Event("busy", position))
        self.locks[position] = lock
        if record.intact:  # another command has finished it
            return _done(Event("finished", position))
        files = record.pack() if self.settings.resume else {}
        task = ray.remote(num_cpus=1, num_gpus=int(self.settings.device != "cpu"))(_compute_away)
        future: Future[Any] = task.remote(position, run, self.settings, files, self.board).future()
        return future

    def end(self, position: int, future: Future[Any]) -> Event:
        with self.locks.pop(position, ExitStack()):
            computed: _Computed = future.result()
            Record(self.runs[position], self.settings.out).unpack(computed.files)
            return computed.event

    def news(self) -> list[Event]:
        import ray

        told = ray.get(self.board.news.remote())
        return [Event("note" if line is None else "round", position, line, text=text) for position, line, text in told]

    def stop(self) -> None:
        self.board.stop.remote()


def _done(event: Event) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(_Computed(event))
    return future


def _compute_away(
    position: int, run: Run, settings: SweepSettings, files: Mapping[str, bytes], board: Any
) -> _Computed:
    import ray

    def tell(event: Event) -> None:
        board.tell.remote(position, event.line, event.text)

    def stopped() -> bool:
        return bool(ray.get(board.stopped.remote()))

    with TemporaryDirectory(prefix="fedpals-") as folder:
        record = Record(run, Path(folder))
        record.unpack(files)
        event = compute(position, run, replace(settings, out=Path(folder)), notify=tell, stop=stopped)
        return _Computed(event, record.pack())


_PROBE = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    print(*str(error).split())
    sys.exit(1)
"""


def _check(address: str) -> None:
    """Connect to the cluster once from another process, which can be ended when there is no answer."""
    if find_spec("ray") is None:
        raise MissingExtraError("computing on a Ray cluster (--ray)", "ray")
    remedy = "start one with ray start --head, and give the address that it prints"
    command = [sys.executable, "-W", "ignore", "-c", _PROBE, address]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False, start_new_session=True
        )  # of its own session, so that Ctrl-C is not taken for a refusal
    except subprocess.TimeoutExpired:
        raise InputError(
            f"no Ray cluster answers at {address} within {_ANSWER_SECONDS:.0f} seconds; {remedy}"
        ) from None
    if done.returncode:
        told = (done.stdout or done.stderr).strip().splitlines()
        raise InputError(
            f"cannot connect to a Ray cluster at {address} ({told[-1] if told else 'no reason'}); {remedy}"
        )
