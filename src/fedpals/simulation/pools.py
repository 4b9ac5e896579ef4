"""Where the clients of a round are trained: in this process, or spread over several with the same bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol, Self

from fedpals.engine.client import Update
from fedpals.simulation.processes import ignore_interrupts, pack, unpack, without_main
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
        arguments = pack(run), data_folder, device
        self._executor = ProcessPoolExecutor(processes, get_context("spawn"), _start_process, arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def train(self, jobs: Sequence[Job]) -> Iterable[Update]:
        """Train clients, several at a time."""
        with without_main():
            return self._executor.map(_train_in_process, jobs)

    def losses(self, jobs: Sequence[Job]) -> Iterable[float]:
        """Evaluate clients, several at a time."""
        with without_main():
            return self._executor.map(_loss_in_process, jobs)


_worker: Worker | None = None
"""The worker of a process of a `ProcessPool`."""


def _start_process(run: bytes, data_folder: Path | None, device: str) -> None:
    global _worker
    ignore_interrupts()
    _worker = Worker(unpack(run), data_folder, device)


def _train_in_process(job: Job) -> Update:
    assert _worker is not None
    return _worker.train(job)


def _loss_in_process(job: Job) -> float:
    assert _worker is not None
    return _worker.loss(job)
