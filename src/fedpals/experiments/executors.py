"""Where runs are computed beside this process: in local worker processes, or on a Ray cluster."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from fedpals.atomic import replacing
from fedpals.errors import InputError, MissingExtraError
from fedpals.experiments.computing import Event, Settings, compute
from fedpals.record import Record
from fedpals.run import Run
from fedpals.worker import ignore_interrupts

_PATIENCE = 30.0
"""Seconds that a Ray cluster has to answer; Ray itself would try for minutes."""


@dataclass(frozen=True, eq=False)
class Computed:
    """How a run ended, and its record where that was written out of reach."""

    event: Event
    files: Mapping[str, bytes] = field(default_factory=dict)

    def keep(self, record: Record) -> None:
        """Write the record where it belongs."""
        _write(self.files, record.path)


class Executor(Protocol):
    """Computes runs, several at a time."""

    def submit(self, position: int, run: Run) -> Future[Computed]:
        """Compute a run as soon as there is room."""

    def news(self) -> Iterable[Event]:
        """Return what happened since it was last asked."""

    def stop(self) -> None:
        """Let the rounds under way end, and begin no other."""


def executor(settings: Settings, runs: int) -> AbstractContextManager[Executor]:
    """Return what the settings ask for, for so many runs."""
    return _on_ray(settings, settings.ray) if settings.ray else _in_processes(settings, runs)


@contextmanager
def _in_processes(settings: Settings, runs: int) -> Iterator[Executor]:
    context = get_context("spawn")
    events, stop = context.Queue(), context.Event()
    pool = ProcessPoolExecutor(min(settings.workers, runs), context, _start_process, (events, stop))
    try:
        yield _Processes(replace(settings, workers=1), pool, events, stop)
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, eq=False)
class _Processes:
    """Gives each process one run at a time; events come back through a queue."""

    settings: Settings
    pool: ProcessPoolExecutor
    events: Any
    flag: Any

    def submit(self, position: int, run: Run) -> Future[Computed]:
        return self.pool.submit(_compute_there, position, run.model_dump_json(exclude_none=True), self.settings)

    def news(self) -> Iterator[Event]:
        while True:
            try:
                yield self.events.get_nowait()
            except Empty:
                return

    def stop(self) -> None:
        self.flag.set()


_events: Any = None
_flag: Any = None
"""Of a process of `_Processes`."""


def _start_process(events: Any, flag: Any) -> None:
    global _events, _flag
    ignore_interrupts()
    events.cancel_join_thread()  # a process may end before the last of its news is read
    _events, _flag = events, flag


def _compute_there(position: int, run: str, settings: Settings) -> Computed:
    return Computed(compute(position, Run.model_validate_json(run), settings, notify=_events.put, stop=_flag.is_set))


@contextmanager
def _on_ray(settings: Settings, address: str) -> Iterator[Executor]:
    _check(address)
    import ray

    with warnings.catch_warnings(action="ignore"):  # advice on accelerators that nobody asked for
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        folder = settings.data_folder.absolute() if settings.data_folder else None
        yield _Ray(replace(settings, workers=1, ray=None, data_folder=folder), _board())
    finally:
        ray.shutdown()


def _board() -> Any:
    """Start the actor that passes news to this process, and the order to stop to the runs."""
    import ray

    class Board:  # defined here, it travels by value, so that its process need not load torch
        def __init__(self) -> None:
            self._news: list[tuple[int, Mapping[str, Any]]] = []
            self._stopped = False

        def tell(self, position: int, line: Mapping[str, Any]) -> None:
            self._news.append((position, line))

        def news(self) -> list[tuple[int, Mapping[str, Any]]]:
            news, self._news = self._news, []
            return news

        def stop(self) -> None:
            self._stopped = True

        def stopped(self) -> bool:
            return self._stopped

    return ray.remote(num_cpus=0)(Board).remote()


@dataclass(frozen=True, eq=False)
class _Ray:
    """Gives each CPU of a cluster one run at a time, in a folder of its own; the record comes back as files."""

    settings: Settings
    board: Any

    def submit(self, position: int, run: Run) -> Future[Computed]:
        import ray

        record = Record(run, self.settings.out)
        files = _files(record.path) if self.settings.resume and record.unfinished else {}
        task = ray.remote(num_cpus=1, num_gpus=int(self.settings.device != "cpu"))(_compute_away)
        text = run.model_dump_json(exclude_none=True)
        future: Future[Computed] = task.remote(position, text, self.settings, files, self.board).future()
        return future

    def news(self) -> list[Event]:
        import ray

        return [Event("round", position, line) for position, line in ray.get(self.board.news.remote())]

    def stop(self) -> None:
        self.board.stop.remote()


def _compute_away(position: int, text: str, settings: Settings, files: Mapping[str, bytes], board: Any) -> Computed:
    import ray

    def tell(event: Event) -> None:
        board.tell.remote(position, event.line)

    def stopped() -> bool:
        return bool(ray.get(board.stopped.remote()))

    run = Run.model_validate_json(text)
    with TemporaryDirectory(prefix="fedpals-") as folder:
        record = Record(run, Path(folder))
        _write(files, record.path)
        event = compute(position, run, replace(settings, out=Path(folder)), notify=tell, stop=stopped)
        return Computed(event, _files(record.path))


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files, each whole or not at all: what a run continues from late, the result, which ends it, last."""
    for name in sorted(files, key=lambda name: (name == "result.json", name.startswith("checkpoint"))):
        with replacing(folder / name) as temporary:
            temporary.write_bytes(files[name])


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
            command, capture_output=True, text=True, timeout=_PATIENCE, check=False, start_new_session=True
        )  # of its own session, so that Ctrl-C is not taken for a refusal
    except subprocess.TimeoutExpired:
        raise InputError(f"no Ray cluster answers at {address} within {_PATIENCE:.0f} seconds; {remedy}") from None
    if done.returncode:
        told = (done.stdout or done.stderr).strip().splitlines()
        raise InputError(
            f"cannot connect to a Ray cluster at {address} ({told[-1] if told else 'no reason'}); {remedy}"
        )
