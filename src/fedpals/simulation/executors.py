"""Where runs are computed beside this process: in local worker processes, or on a Ray cluster (`ray_cluster`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fedpals.simulation.event import Event
from fedpals.simulation.processes import Processes, Work
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings


class Executor(Protocol):
    """Computes runs, several at a time."""

    def submit(self, position: int) -> Future[Any]:
        """Compute the run of a position as soon as there is room."""

    def end(self, position: int, future: Future[Any]) -> Event:
        """Return how a run ended whose future is done; its record is in its folder then."""

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
    number = min(settings.workers, len(runs))
    processes = Processes(number, _run_work, dict(runs), replace(settings, workers=1))
    try:
        yield _Local(processes)
    finally:
        processes.close()


def _run_work(runs: Mapping[int, Run], settings: SweepSettings) -> Work:
    """Return what computes runs in a worker process."""
    from fedpals.simulation.computing import compute  # which loads torch: there, not where processes are started

    def work(position: int, tell: Callable[[Event], None], stop: Callable[[], bool]) -> Event:
        return compute(position, runs[position], settings, notify=tell, stop=stop)

    return work


@dataclass(frozen=True, eq=False)
class _Local:
    """Gives each process one run at a time; events come back through a queue."""

    processes: Processes

    def submit(self, position: int) -> Future[Any]:
        return self.processes.submit(position)

    def end(self, position: int, future: Future[Any]) -> Event:
        del position
        event: Event = future.result()
        return event

    def news(self) -> Iterator[Event]:
        while not self.processes.progress.empty():
            yield self.processes.progress.get()

    def stop(self) -> None:
        self.processes.stop()
