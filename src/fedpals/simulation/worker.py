"""The clients of a run in one process, with one network to train them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedpals.data import Dataset, Federation, ImageFiles
from fedpals.data.official import search_path
from fedpals.engine.client import Client, Update
from fedpals.engine.evaluation import Evaluator, Part
from fedpals.engine.flat_model import FlatModel
from fedpals.errors import InputError
from fedpals.labels import Indices
from fedpals.models import build, build_own, features, prepare
from fedpals.simulation.run import Network, Run
from fedpals.weights.threads import keep_one_blas_thread

_CACHE_BYTES = 1 << 28
"""Clients' samples that a worker keeps prepared; beyond that they are prepared in every round."""
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


def network_inputs(
    network: Network,
    dataset: Dataset,
    data_folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Return a data set as the network reads it: where it has a backbone, features take the place of images.

    ``progress`` is called with the number of images done and their total while features are computed.
    """
    if network.backbone is None:
        return dataset
    cache = search_path(data_folder)[0] / "features"
    return features(dataset, network.backbone, size=network.image_size or _IMAGE_SIZE, folder=cache, progress=progress)


def build_network(run: Run, dataset: Dataset) -> nn.Module:
    """Return the run's network for a data set of `network_inputs`, with its initial values."""
    shape = input_shape(run.network, dataset)
    classes, builder = len(dataset.labels), run.network.builder
    if builder is not None:
        return build_own(builder, shape=shape, classes=classes, seed=run.seed)
    return build(run.network.model or "cnn", shape=shape, classes=classes, seed=run.seed)


def input_shape(network: Network, dataset: Dataset) -> tuple[int, ...]:
    """Return the shape of one input of the network."""
    x, size = dataset.x, network.image_size or _IMAGE_SIZE
    return (3, size, size) if isinstance(x, ImageFiles) else x.shape[1:]


def prepared(network: Network, dataset: Dataset, indices: Indices) -> Tensor:
    """Return samples of a data set of `network_inputs`, scaled for the network."""
    x = dataset.x
    return prepare(x.take(indices, network.image_size or _IMAGE_SIZE) if isinstance(x, ImageFiles) else x[indices])


class Worker:
    """Trains the clients of one run in one process, with one network."""

    def __init__(self, run: Run, data_folder: Path | None = None, device: str = "cpu") -> None:
        # More threads for one small network cost more than they bring, and their number would change bits.
        torch.set_num_threads(1)
        keep_one_blas_thread()
        self.run, self.device = run, device
        federation = run.build_federation(data_folder)
        dataset = network_inputs(run.network, federation.dataset, data_folder)
        self.federation: Federation = replace(federation, dataset=dataset)
        self.model = FlatModel(build_network(run, dataset), device)
        self._prepared: dict[int, Client] = {}
        # With other clients in every round, the cache would grow from round to round.
        self._free_bytes = _CACHE_BYTES if run.server.participation >= 1.0 else 0
        augment = run.plan.augment
        if augment is not None and (isinstance(dataset.x, np.ndarray) and dataset.x.ndim != 4):
            raise InputError(f"augment is {augment!r}, but the samples are no images; leave it out")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input of the network."""
        return input_shape(self.run.network, self.federation.dataset)

    def samples(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return prepared inputs and labels."""
        dataset = self.federation.dataset
        labels = torch.from_numpy(dataset.y[indices])
        return prepared(self.run.network, dataset, indices).to(self.device), labels.to(self.device)

    def client(self, number: int) -> Client:
        """Return a client with its samples to train with; kept prepared from round to round while there is room."""
        if number in self._prepared:
            return self._prepared[number]
        x, y = self.samples(self.federation.clients[number])
        client = Client(x, y, len(self.federation.dataset.labels), number, self.run.seed)
        self._free_bytes -= x.nbytes
        if self._free_bytes >= 0:
            self._prepared[number] = client
        return client

    def train(self, job: Job) -> Update:
        """Train one client for one round."""
        rule, plan = self.run.method.rule, self.run.plan.at(job.round, self.run.server.rounds)
        client = self.client(job.client)
        return client.train(self.model, job.start, rule, plan, job.round, server=job.server, state=job.state)

    def loss(self, job: Job) -> float:
        """Return the loss of the global parameters at one client."""
        return self.client(job.client).loss(self.model, job.start)

    def evaluator(self) -> Evaluator:
        """Return what evaluates the run's models: on the target's samples, and on those that clients hold out."""
        federation = self.federation
        target = {Part.VALIDATION: federation.validation, Part.TEST: federation.test}
        indices = {part: rows for part, rows in target.items() if rows.size}
        if federation.held_out:
            indices[Part.CLIENTS] = np.concatenate(federation.held_out)
            if not indices[Part.CLIENTS].size:
                raise InputError(
                    f"held_out is {self.run.knowledge.held_out:g}: no client has so many samples of a label that one "
                    "of them is held out; give a larger share"
                )
        samples = {part: (self.samples(rows)[0], federation.dataset.y[rows]) for part, rows in indices.items()}
        return Evaluator(self.model, samples)
