"""Runs on a Ray cluster: one run at a time on each of its CPUs, records sent back as files."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedpals.errors import InputError, MissingExtraError
from fedpals.simulation.computing import Event, SweepSettings, compute
from fedpals.simulation.executors import Computed, Executor
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run

_ANSWER_SECONDS = 30.0
"""That a Ray cluster has to answer; Ray itself would try for minutes."""


@contextmanager
def on_ray(settings: SweepSettings, address: str, runs: Mapping[int, Run]) -> Iterator[Executor]:
    """Compute runs, by position, on the cluster at an address."""
    _check(address)
    import ray

    with warnings.catch_warnings(action="ignore"):  # advice on accelerators that nobody asked for
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        folder = settings.data_folder.absolute() if settings.data_folder else None
        yield _Ray(replace(settings, workers=1, ray=None, data_folder=folder), _board(), runs)
    finally:
        ray.shutdown()


def _board() -> Any:
    """Start the actor that passes news to this process, and the order to stop to the runs."""
    import ray

    class Board:  # defined here, it travels by value, so that its process need not load torch
        def __init__(self) -> None:
            self._news: list[tuple[int, Any]] = []
            self._stopped = False

        def tell(self, position: int, line: Any) -> None:
            self._news.append((position, line))

        def news(self) -> list[tuple[int, Any]]:
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

    settings: SweepSettings
    board: Any
    runs: Mapping[int, Run]

    def submit(self, position: int) -> Future[Computed]:
        import ray

        run = self.runs[position]
        record = Record(run, self.settings.out)
        files = record.pack() if self.settings.resume and record.unfinished else {}
        task = ray.remote(num_cpus=1, num_gpus=int(self.settings.device != "cpu"))(_compute_away)
        future: Future[Computed] = task.remote(position, run, self.settings, files, self.board).future()
        return future

    def news(self) -> list[Event]:
        import ray

        return [Event("round", position, line) for position, line in ray.get(self.board.news.remote())]

    def stop(self) -> None:
        self.board.stop.remote()


def _compute_away(position: int, run: Run, settings: SweepSettings, files: Mapping[str, bytes], board: Any) -> Computed:
    import ray

    def tell(event: Event) -> None:
        board.tell.remote(position, event.line)

    def stopped() -> bool:
        return bool(ray.get(board.stopped.remote()))

    with TemporaryDirectory(prefix="fedpals-") as folder:
        record = Record(run, Path(folder))
        record.unpack(files)
        event = compute(position, run, replace(settings, out=Path(folder)), notify=tell, stop=stopped)
        return Computed(event, record.pack())


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
