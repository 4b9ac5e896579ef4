"""A task: the data part of a run's configuration, from which a seed makes a federation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from fedpals.config import Settings, hidden, unset
from fedpals.data import partitions
from fedpals.data.content import content_digest
from fedpals.data.dataset import Dataset
from fedpals.data.federation import Federation, federate
from fedpals.data.partitions import Partition
from fedpals.data.scaling import Impute, Scale
from fedpals.data.sources import SOURCES, Kind, load
from fedpals.errors import InputError
from fedpals.labels import Indices
from fedpals.labels.tables import read_target
from fedpals.rng import generator

_DEFAULT = "digits"
MEMORY = "memory:"
"""Begins the name of a federation that was given in Python."""
_OWN_KEYS = ("client_key", "client_column", "label_column", "target", "target_client", "scale", "impute")
"""Keys of data that name their clients themselves."""
_HELD_OUT = 0.25
"""Share of every label that is kept for testing where the publisher made no test split."""
_MOST_TESTED = 2000
"""Size of a test set that is drawn to follow T, where the task gives none and so many samples fit:
the paper's n_test for the synthetic task."""


class Task(Settings):
    """Which data, and how they are divided among clients and target.

    The keys decide how: ``labels_per_client`` means sparsity sampling and ``beta`` Dirichlet
    sampling; data that say themselves which client a sample belongs to are taken as they are; with
    none of these, the data set is divided the way the paper divides it. A key that the division does
    not use is an error.

    >>> Task(task="digits").partition, Task(task="cifar10", beta=0.1).partition
    ('sparsity', 'dirichlet')
    """

    task: str = _DEFAULT
    """A known data set, or the path of a .npz or .csv file, or of a folder of images by label."""
    clients: int | None = Field(default=None, ge=1, le=1_000_000, json_schema_extra=unset("10, iWildCam 100, PACS 3"))
    """How many clients. In sparsity and Dirichlet sampling the last of them is the target.
    PACS takes 2: a client per domain instead of the paper's three at random."""
    labels_per_client: int | None = Field(default=None, ge=1, json_schema_extra=unset("3"))
    """C of sparsity sampling: so many random labels per client."""
    beta: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, json_schema_extra=unset("no Dirichlet sampling")
    )
    """β of Dirichlet sampling: the smaller, the more clients differ."""
    samples_per_client: int | None = Field(default=None, ge=1, json_schema_extra=unset("as many as fit"))
    """n_i of sparsity and Dirichlet sampling, rounded down to a multiple of C."""
    delta: float | None = Field(default=None, ge=0, le=1, json_schema_extra=unset("0"))
    """δ of the synthetic task, how far its target lies outside the clients' hull."""
    test_samples: int | None = Field(
        default=None, ge=1, json_schema_extra=unset("the official target, else up to 2,000")
    )
    """Samples of the target to report with."""
    validation_samples: int | None = Field(
        default=None, ge=1, json_schema_extra=unset("the official set, else up to half the test set")
    )
    """Samples of the target to select rounds with."""
    client_key: str | None = Field(default=None, json_schema_extra=unset("clients are drawn"))
    """Your own clients: the array of the .npz file that says which client each sample belongs to."""
    client_column: str | None = Field(default=None, json_schema_extra=unset("clients are drawn"))
    """Your own clients: the column of the CSV file that says which client each row belongs to."""
    label_column: str | None = Field(default=None, json_schema_extra=unset("label"))
    """The column of the CSV file that holds the labels."""
    target: dict[str, float] | list[float] | None = Field(default=None, json_schema_extra=unset("drawn, as clients"))
    """Your own T: a CSV file of labels and probabilities; in TOML also a probability per label."""
    target_client: str | None = Field(default=None, json_schema_extra=unset("none of the clients"))
    """The client that is the target: its labels are T, its samples are only tested on."""
    scale: Scale | None = Field(default=None, json_schema_extra=unset("standard"))
    """Of your own clients' numbers: standard (mean 0, deviation 1 over all clients) or none."""
    impute: Impute | None = Field(default=None, json_schema_extra=unset("missing values are an error"))
    """What takes the place of missing values: mean or median over all clients."""
    content: str | None = Field(default=None, json_schema_extra=hidden())
    """Digits of the content of your own data, so that changed data are another run."""

    _given: Federation | None = PrivateAttr(default=None)
    """A federation that was given in Python."""

    @classmethod
    def of_federation(cls, federation: Federation) -> Task:
        """Return the task that stands for a federation given in Python."""
        task = cls(task=f"{MEMORY}{federation.dataset.name}", content=federation.digest)
        task._given = federation
        return task

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Write the division's defaults, T and the data's content into the task, so that its record says everything."""
        if not isinstance(values, Mapping):
            return values
        given = {key: value for key, value in values.items() if value is not None}
        if isinstance(given.get("target"), str):
            given["target"] = read_target(Path(given["target"]).expanduser()).probabilities
        task = str(given.get("task", _DEFAULT))
        path = Path(task).expanduser()
        if "content" not in given and task not in SOURCES and not task.startswith(MEMORY) and path.exists():
            given["content"] = content_digest(path)
        source = SOURCES.get(task)
        if source is not None and _kind(given) == "given":
            own = {"impute": source.impute, "target_client": None if "target" in given else source.target_client}
            given = {**{key: value for key, value in own.items() if value is not None}, **given}
        return {**_KINDS[_kind(given)].keys, **given}

    @model_validator(mode="after")
    def _only_keys_in_use(self) -> Task:
        keys = _KINDS[self.partition].keys
        every = {key for kind in _KINDS.values() for key in kind.keys}
        for key in sorted(every - keys.keys()):
            if getattr(self, key) is not None:
                raise InputError(
                    f"{key} does not apply to {self.task} with {self.partition} partition, "
                    f"which takes {', '.join(keys) or 'no keys of its own'}"
                )
        if self.target is not None and self.target_client is not None:
            raise InputError("target and target_client are two ways to say what T is: give one of them")
        return self

    @property
    def partition(self) -> Kind:
        """How the data set is divided."""
        return _kind(self.keys())

    @property
    def name(self) -> str:
        """Short name of the data and their partition, for folders and tables."""
        name, source = Path(self.task.removeprefix(MEMORY)).stem, SOURCES.get(self.task)
        for key, letter in (("labels_per_client", "C"), ("beta", "beta"), ("delta", "delta")):
            if (value := getattr(self, key)) is not None:
                name += f"-{letter}{value:g}"
        if source is not None and self.partition == source.partition_with_clients:
            name += "-domains"
        if self.target_client is not None:
            name += f"-{self.target_client}"
        return re.sub(r"[^A-Za-z0-9._+-]", "_", name)

    def dataset(self, folder: Path | None = None) -> Dataset:
        """Return the data set, read once per process."""
        if self._given is not None:
            return self._given.dataset
        if self.partition == "memory":
            raise InputError(f"{self.name}: these data were given in Python; give them again with fedpals.train")
        if self.content is not None and (now := content_digest(Path(self.task).expanduser())) != self.content:
            raise InputError(
                f"{self.task} has changed since the run was started (content {self.content}, now {now}); start "
                "another run"
            )
        return _load_once(self.task, folder, self.client_key, self.client_column, self.label_column)

    @property
    def own_clients(self) -> bool:
        """Whether clients and T are the user's own; then nobody has samples of the target to select rounds with."""
        return self.partition in {"given", "memory"}

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
        if self.own_clients:
            own = self._given or self._federate(data)
            return own.oracle(seed) if oracle else own
        divide = _KINDS[self.partition].divide
        assert divide is not None
        division = divide(self, data, seed)
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

    def _federate(self, data: Dataset) -> Federation:
        """Return the federation of the clients that the data name."""
        if data.domain is None:
            given = [key for key in _KINDS["given"].keys if getattr(self, key) is not None]
            raise InputError(
                f"{', '.join(given)}: {self.task} does not say which client a sample belongs to; give client_key "
                "(.npz), client_column (CSV), or a folder client/label/image"
            )
        target = self.target or self.target_client
        if target is None:
            raise InputError(
                f"{self.task}: T is missing; give target, a CSV file of labels and probabilities, or target_client, "
                f"one of {', '.join(data.domains[:12])}"
            )
        try:
            return federate(data, target, scale=self.scale or "standard", impute=self.impute)
        except InputError as error:
            raise InputError(f"{self.task}: {error}") from None


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

    divide: Callable[[Task, Dataset, int], _Division] | None
    """None where the data say themselves which client a sample belongs to."""
    keys: Mapping[str, int | float | str | None]
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
    "given": _Kind(None, dict.fromkeys(_OWN_KEYS)),
    "memory": _Kind(None, {}),
}


def _keys(task: Task) -> dict[str, Any]:
    """Return what the task says about its partition, as keyword arguments of the strategy."""
    return {key: getattr(task, key) for key in _KINDS[task.partition].keys}


def _kind(values: Mapping[str, Any]) -> Kind:
    """Infer how to divide from the keys that a task has."""
    if str(values.get("task", _DEFAULT)).startswith(MEMORY):
        return "memory"
    if any(key in values for key in _OWN_KEYS):
        return "given"
    if "labels_per_client" in values:
        return "sparsity"
    if "beta" in values:
        return "dirichlet"
    source = SOURCES.get(str(values.get("task", _DEFAULT)))
    if source is None:
        return "sparsity"
    return (source.partition_with_clients if "clients" in values else None) or source.partition


@lru_cache(maxsize=2)
def _load_once(data: str, folder: Path | None, *columns: str | None) -> Dataset:
    return load(data, folder, *columns)
