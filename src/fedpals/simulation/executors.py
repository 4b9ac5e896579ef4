"""Where runs are computed beside this process: in local worker processes, or on a Ray cluster (`ray_cluster`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from queue import Empty
from typing import Any, Protocol

from fedpals.simulation.computing import Event, SweepSettings, compute
from fedpals.simulation.processes import ignore_interrupts, pack, unpack, without_main
from fedpals.simulation.run import Run


@dataclass(frozen=True, eq=False)
class Computed:
    """How a run ended, and the files of its record where that was written out of reach."""

    event: Event
    files: Mapping[str, bytes] = field(default_factory=dict)


class Executor(Protocol):
    """Computes runs, several at a time."""

    def submit(self, position: int) -> Future[Computed]:
        """Compute the run of a position as soon as there is room."""

    def news(self) -> Iterable[Event]:
        """Return what happened since it was last asked."""

    def stop(self) -> None:
        """Let the rounds under way end, and begin no other."""


def executor(settings: SweepSettings, runs: Mapping[int, Run]) -> AbstractContextManager[Executor]:
    """Return what the settings ask for, for runs by position."""
    if not settings.ray:
        return _in_processes(settings, runs)
    from fedpals.simulation.ray_cluster import on_ray

    return on_ray(settings, settings.ray, runs)


@contextmanager
def _in_processes(settings: SweepSettings, runs: Mapping[int, Run]) -> Iterator[Executor]:
    context = get_context("spawn")
    events, stop = context.Queue(), context.Event()
    # The data of all runs travel once to each process, not once with every run.
    arguments = events, stop, pack(dict(runs))
    pool = ProcessPoolExecutor(min(settings.workers, len(runs)), context, _start_process, arguments)
    try:
        yield _Processes(replace(settings, workers=1), pool, events, stop)
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, eq=False)
class _Processes:
    """Gives each process one run at a time; events come back through a queue."""

    settings: SweepSettings
    pool: ProcessPoolExecutor
    events: Any
    flag: Any

    def submit(self, position: int) -> Future[Computed]:
        with without_main():
            return self.pool.submit(_compute_in_process, position, self.settings)

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
_runs: Mapping[int, Run] = {}
"""Of a process of `_Processes`."""


def _start_process(events: Any, flag: Any, runs: bytes) -> None:
    global _events, _flag, _runs
    ignore_interrupts()
    events.cancel_join_thread()  # a process may end before the last of its news is read
    _events, _flag, _runs = events, flag, unpack(runs)


def _compute_in_process(position: int, settings: SweepSettings) -> Computed:
    return Computed(compute(position, _runs[position], settings, notify=_events.put, stop=_flag.is_set))
