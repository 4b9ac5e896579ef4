"""Where clients are trained: in this process, or spread over several with the same bits."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from fedpals.data import Dataset, Federation, ImageFiles, Indices
from fedpals.data.files import search_path
from fedpals.errors import InputError
from fedpals.models import build, features, prepare
from fedpals.rng import generator
from fedpals.run import Run
from fedpals.training import FlatModel, Plan, Update, local_update, mean_loss

_ROOM = 1 << 28
"""Bytes of clients' samples that a worker keeps prepared; beyond that they are prepared in every round."""
_IMAGE_SIZE = 224
"""Pixels a side of images from files, where the run does not say."""


@dataclass(frozen=True, eq=False)
class Job:
    """One client's part of a round."""

    round: int
    client: int
    start: Tensor
    server: Tensor | None = None
    state: Tensor | None = None


def as_read(
    run: Run, dataset: Dataset, data_folder: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> Dataset:
    """Return a data set as the run's model reads it: where it has a backbone, features take the place of images.

    ``progress`` is called with the number of images done and their total while features are computed.
    """
    if run.backbone is None:
        return dataset
    cache = search_path(data_folder)[0] / "features"
    return features(dataset, run.backbone, size=run.image_size or _IMAGE_SIZE, folder=cache, progress=progress)


def network(run: Run, dataset: Dataset) -> nn.Module:
    """Return the run's network for a data set `as_read`, with its initial values."""
    x, size = dataset.x, run.image_size or _IMAGE_SIZE
    shape = (3, size, size) if isinstance(x, ImageFiles) else x.shape[1:]
    return build(run.model or "cnn", shape=shape, classes=len(dataset.labels), seed=run.seed)


def inputs(run: Run, dataset: Dataset, indices: Indices) -> Tensor:
    """Return prepared samples of a data set `as_read`."""
    x = dataset.x
    return prepare(x.take(indices, run.image_size or _IMAGE_SIZE) if isinstance(x, ImageFiles) else x[indices])


class Worker:
    """Trains and evaluates the clients of one run in one process, with one network."""

    def __init__(self, run: Run, data_folder: Path | None = None, device: str = "cpu") -> None:
        torch.set_num_threads(1)  # More threads for one small network cost more than they bring.
        self.run, self.device = run, device
        self.method = run.build_method()
        federation = run.build_federation(data_folder)
        dataset = as_read(run, federation.dataset, data_folder)
        self.federation: Federation = replace(federation, dataset=dataset)
        self.model = FlatModel(network(run, dataset), device)
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        # With other clients in every round, what is kept would grow from round to round.
        self._room = _ROOM if run.participation >= 1.0 else 0
        self.plan = Plan(run.epochs, run.steps, run.batch_size, run.optimizer, run.learning_rate, run.augment)
        if run.augment is not None and (isinstance(dataset.x, np.ndarray) and dataset.x.ndim != 4):
            raise InputError(f"augment is {run.augment!r}, but the samples are no images; leave it out")

    def samples(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return prepared inputs and labels."""
        dataset = self.federation.dataset
        labels = torch.from_numpy(dataset.y[indices])
        return inputs(self.run, dataset, indices).to(self.device), labels.to(self.device)

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a client's samples; kept prepared from round to round while there is room."""
        if number in self._kept:
            return self._kept[number]
        x, y = self.samples(self.federation.clients[number])
        self._room -= x.nbytes
        if self._room >= 0:
            self._kept[number] = x, y
        return x, y

    def train(self, job: Job) -> Update:
        """Train one client for one round."""
        x, y = self.client(job.client)
        marginal = torch.bincount(y, minlength=len(self.federation.dataset.labels)) / len(y)
        rng = generator(self.run.seed, "batches", job.round, job.client)
        return local_update(
            self.model, job.start, x, y, marginal, self.method.rule, self.plan, rng, server=job.server, client=job.state
        )

    def loss(self, job: Job) -> float:
        """Return the loss of the global parameters at one client."""
        return mean_loss(self.model, job.start, *self.client(job.client))


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
        arguments = run.model_dump_json(exclude_none=True), data_folder, device
        self._executor = ProcessPoolExecutor(processes, get_context("spawn"), _start_process, arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def train(self, jobs: Sequence[Job]) -> Iterable[Update]:
        """Train clients, several at a time."""
        return self._executor.map(_train_there, jobs)

    def losses(self, jobs: Sequence[Job]) -> Iterable[float]:
        """Evaluate clients, several at a time."""
        return self._executor.map(_loss_there, jobs)


_there: Worker | None = None
"""The worker of a process of a `ProcessPool`."""


def _start_process(run: str, data_folder: Path | None, device: str) -> None:
    global _there
    ignore_interrupts()
    _there = Worker(Run.model_validate_json(run), data_folder, device)


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent process, which ends the round in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _train_there(job: Job) -> Update:
    assert _there is not None
    return _there.train(job)


def _loss_there(job: Job) -> float:
    assert _there is not None
    return _there.loss(job)
