"""Where the clients of a round are trained: in this process, or spread over several with the same bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from fedpals.engine.client import Update
from fedpals.simulation.failure import failure
from fedpals.simulation.processes import Processes, Work
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Job, Worker


class Pool(Protocol):
    """Where the clients of a round are trained: in this process, or in several."""

    def train(self, jobs: Sequence[Job]) -> Iterable[Update]:
        """Train clients; results in the order of the jobs."""

    def losses(self, jobs: Sequence[Job]) -> Iterable[float]:
        """Evaluate the global parameters at clients."""


@dataclass(frozen=True, eq=False)
class SerialPool:
    """One client after the other, with the worker at hand."""

    worker: Worker

    def train(self, jobs: Sequence[Job]) -> Iterable[Update]:
        """Train clients one after the other."""
        return map(self.worker.train, jobs)

    def losses(self, jobs: Sequence[Job]) -> Iterable[float]:
        """Evaluate clients one after the other."""
        return map(self.worker.loss, jobs)


class ProcessPool:
    """Several processes, each with a worker of its own; for a single run with many clients a round."""

    def __init__(self, run: Run, processes: int, data_folder: Path | None = None, device: str = "cpu") -> None:
        self._processes = Processes(processes, _client_work, run, data_folder, device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def train(self, jobs: Sequence[Job]) -> Iterable[Update]:
        """Train clients, several at a time."""
        return self._map("train", jobs)

    def losses(self, jobs: Sequence[Job]) -> Iterable[float]:
        """Evaluate clients, several at a time."""
        return self._map("loss", jobs)

    def _map(self, what: str, jobs: Sequence[Job]) -> Iterable[Any]:
        futures = [self._processes.submit((what, job)) for job in jobs]
        return (future.result() for future in futures)


def _client_work(run: Run, data_folder: Path | None, device: str) -> Work:
    """Return what trains and evaluates clients in a worker process."""
    worker = Worker(run, data_folder, device)

    def work(task: tuple[str, Job], *_: Any) -> Any:
        what, job = task
        try:
            return worker.train(job) if what == "train" else worker.loss(job)
        except Exception as error:  # noqa: BLE001 -- told to the parent, whatever it is
            raise failure(error, run) from None

    return work
