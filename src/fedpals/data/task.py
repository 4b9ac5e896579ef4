"""A task: the data part of a run's configuration, from which a seed makes a federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedpals.data import partitions
from fedpals.data.dataset import Dataset, Indices
from fedpals.data.federation import Federation
from fedpals.data.partitions import Partition
from fedpals.data.sources import SOURCES, Kind, load
from fedpals.errors import InputError
from fedpals.rng import generator

_DEFAULT = "digits"
_HELD_OUT = 0.25
"""Share of every label that is kept for testing where the publisher made no test split."""
_MOST_TESTED = 2000
"""Size of a test set that is drawn to follow T, where the task gives none and so many samples fit:
the paper's n_test for the synthetic task."""


class Task(BaseModel):
    """Which data, and how they are divided among clients and target.

    The keys decide how: ``labels_per_client`` means sparsity sampling and ``beta`` Dirichlet
    sampling; with neither, the data set is divided the way the paper divides it. A key that the
    division does not use is an error.

    >>> Task(task="digits").partition, Task(task="cifar10", beta=0.1).partition
    ('sparsity', 'dirichlet')
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: str = _DEFAULT
    """A known data set, or the path of a .npz file or of a folder of images by label."""
    clients: int | None = Field(default=None, ge=1)
    """Sparsity and Dirichlet sampling: 10, the target being the last. iWildCam: 100, all of which train.
    PACS: 2 for a client per domain, instead of the paper's random thirds."""
    labels_per_client: int | None = Field(default=None, ge=1)
    """C of sparsity sampling; 3 unless given."""
    beta: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """β of Dirichlet sampling."""
    samples_per_client: int | None = Field(default=None, ge=1)
    """n_i of sparsity and Dirichlet sampling, rounded down to a multiple of C; as many as fit unless given."""
    delta: float | None = Field(default=None, ge=0, le=1)
    """δ of the synthetic task, how far its target lies outside the clients' hull; 0 unless given."""
    test_samples: int | None = Field(default=None, ge=1)
    """Unless given: the whole of an official target, else as many as fit up to 2,000."""
    validation_samples: int | None = Field(default=None, ge=1)
    """Unless given: the whole of an official validation set, else as many as fit up to half the test set."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Write the division's defaults into the task, so that its record says everything."""
        if not isinstance(values, Mapping):
            return values
        given = {key: value for key, value in values.items() if value is not None}
        return {**_KINDS[_kind(given)].keys, **given}

    @model_validator(mode="after")
    def _only_keys_in_use(self) -> Task:
        known = _KINDS[self.partition].keys
        every = {key for kind in _KINDS.values() for key in kind.keys}
        for key in sorted(every - known.keys()):
            if getattr(self, key) is not None:
                raise InputError(
                    f"{key} does not apply to {self.task} with {self.partition} partition, "
                    f"which takes {', '.join(known) or 'no keys of its own'}"
                )
        return self

    @property
    def partition(self) -> Kind:
        """How the data set is divided."""
        return _kind(self.model_dump(exclude_none=True))

    def dataset(self, folder: Path | None = None) -> Dataset:
        """Return the data set, read once per process."""
        return _load_once(self.task, folder)

    def federation(self, seed: int, *, oracle: bool = False, folder: Path | None = None) -> Federation:
        """Divide the data set.

        Parameters
        ----------
        seed
            Decides every draw; validation and test sets do not influence which samples clients get.
        oracle
            Redraw the clients from the target's label marginal: the paper's Oracle. Target, validation
            and test set stay the same.
        folder
            Where to look for official files first.
        """
        data = self.dataset(folder)
        division = _KINDS[self.partition].divide(self, data, seed)
        y, target = data.y, division.partition.target
        test = division.evaluation(y, "test", self.test_samples, _MOST_TESTED, seed)
        # Samples to validate on are taken from the same pool as those to train an oracle on: few will do.
        validation = division.evaluation(y, "validation", self.validation_samples, test.size // 2, seed)
        clients = division.partition.clients
        if oracle:
            pool = np.setdiff1d(division.pool, validation, assume_unique=True)
            sizes = [indices.size for indices in clients]
            clients = partitions.oracle(y, pool, target, sizes, generator(seed, "oracle"))
        return Federation(data, clients, validation, test, target)


@dataclass(frozen=True, eq=False)
class _Division:
    """A partition, and the samples that its evaluation sets may come from."""

    partition: Partition
    pool: Indices
    """What the clients were drawn from."""
    candidates: Mapping[str, Indices]
    """For "validation" and for "test"."""
    official: bool
    """Whether the candidates are evaluation sets already, rather than samples to draw them from."""

    def evaluation(self, y: Indices, name: str, size: int | None, most: int, seed: int) -> Indices:
        """Return an evaluation set of ``size``, or unless given of what fits up to ``most``."""
        candidates, target = self.candidates[name], self.partition.target
        if size is None and self.official:
            return candidates
        if size is None:
            size = max(1, min(most, partitions.most(y, candidates, target)))
        return partitions.follow(y, candidates, target, size, generator(seed, name), what=f"{name} samples")


@dataclass(frozen=True)
class _Kind:
    """A way to divide a data set."""

    divide: Callable[[Task, Dataset, int], _Division]
    keys: Mapping[str, int | float | None]
    """The keys of a task that it takes, with their defaults: keyword arguments of its strategy."""


def _sampled(strategy: Callable[..., Partition], task: Task, data: Dataset, seed: int) -> _Division:
    """Draw clients from the training samples; test on others, validate on those that are left over."""
    pool = data.splits["train"]
    if "test" in data.splits:
        test = data.splits["test"]
    else:
        pool, test = partitions.held_out(data.y, pool, _HELD_OUT, generator(seed, "held out"))
    rng = generator(seed, "partition")
    partition = strategy(data.y, pool, len(data.labels), rng=rng, **_keys(task))
    rest = np.setdiff1d(pool, np.concatenate(partition.clients), assume_unique=True)
    return _Division(partition, pool, {"validation": rest, "test": test}, official=False)


def _pacs(_: Task, data: Dataset, seed: int) -> _Division:
    train, source, photos = _official(data, "train", "id_val", "test")
    partition, test = partitions.pacs(data.y, train, photos, len(data.labels), generator(seed, "partition"))
    # "We modify the source domain validation set to also lack the samples with label '2'."
    validation = source[data.y[source] != partitions.PACS_ABSENT]
    return _Division(partition, train, {"validation": validation, "test": test}, official=True)


def _by_domain(task: Task, data: Dataset, _: int) -> _Division:
    train, validation, test = _official(data, "train", "id_val", "test")
    assert data.domain is not None
    clients = partitions.by_domain(data.domain, train, **_keys(task))
    partition = Partition(clients, partitions.marginal(data.y, test, len(data.labels)))
    return _Division(partition, train, {"validation": validation, "test": test}, official=True)


def _official(data: Dataset, *names: str) -> list[Indices]:
    if missing := [name for name in names if name not in data.splits]:
        raise InputError(
            f"{data.name}: its metadata has no split {', '.join(missing)}; it has {', '.join(data.splits)}"
        )
    return [data.splits[name] for name in names]


_KINDS: Mapping[Kind, _Kind] = {
    "sparsity": _Kind(
        partial(_sampled, partitions.sparsity),
        {"clients": 10, "labels_per_client": 3, "samples_per_client": None},
    ),
    "dirichlet": _Kind(
        partial(_sampled, partitions.dirichlet),
        {"clients": 10, "beta": None, "samples_per_client": None},
    ),
    "synthetic": _Kind(partial(_sampled, partitions.synthetic), {"delta": 0.0}),
    "pacs": _Kind(_pacs, {}),
    "by_domain": _Kind(_by_domain, {"clients": 100}),
}


def _keys(task: Task) -> dict[str, Any]:
    """Return what the task says about its partition, as keyword arguments of the strategy."""
    return {key: getattr(task, key) for key in _KINDS[task.partition].keys}


def _kind(values: Mapping[str, Any]) -> Kind:
    """Infer how to divide from the keys that a task has."""
    if "labels_per_client" in values:
        return "sparsity"
    if "beta" in values:
        return "dirichlet"
    source = SOURCES.get(str(values.get("task", _DEFAULT)))
    if source is None:
        return "sparsity"
    return "by_domain" if source.partition == "pacs" and "clients" in values else source.partition


@lru_cache(maxsize=2)
def _load_once(data: str, folder: Path | None) -> Dataset:
    return load(data, folder)
