"""A federation: what a partition makes of a data set, or what a user has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpals.config import did_you_mean
from fedpals.data import partitions
from fedpals.data.dataset import Dataset
from fedpals.data.inputs import as_clients, as_labels, as_samples, column_names, pooled
from fedpals.data.scaling import Impute, Scale, federated_scaling
from fedpals.errors import InputError
from fedpals.labels import Indices, LabelCounts, Vector, as_target, with_names
from fedpals.rng import generator
from fedpals.weights import Projection, coverage

_NOTHING: Indices = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Federation:
    """The clients' data, the target's validation and test data, and T; all by index."""

    dataset: Dataset
    clients: tuple[Indices, ...]
    """M index arrays into the data set, of the clients to train on."""
    validation: Indices
    """To select models with; disjoint from every client and from ``test``. Empty where the target has none."""
    test: Indices
    """To report with; disjoint from everything else. Empty where the target has no samples at all."""
    target: Vector
    """T, K probabilities."""
    held_out: tuple[Indices, ...] = ()
    """What each client keeps out of training, to report on; nothing unless asked for."""
    names: tuple[str, ...] = ()
    """Of the clients, where they have any."""

    @classmethod
    def of(
        cls,
        x: Any,
        y: Any = None,
        *,
        client: Any = None,
        labels: Sequence[Any] | None = None,
        target: Any,
        scale: Scale = "standard",
        impute: Impute | None = None,
        name: str = "own",
    ) -> Federation:
        """Make a federation of one's own clients and a known target.

        Parameters
        ----------
        x
            Samples of all clients: (n, d) numbers, or (n, C, H, W) images; numpy, torch or pandas. Or, instead of
            ``x``, ``y`` and ``client``: a mapping from client to (x, y), or to a torch data set of such pairs.
        y
            n labels: whole numbers from 0, or names.
        client
            The client of each sample: numbers or names.
        labels
            Names of the labels, in the order of the target; the values that occur unless given.
        target
            T: a probability per label, or a mapping (or pandas Series) from label to probability. Or the name of a
            client, which is then the target: its samples are only tested on. Or its samples, (x, y), to test on.
        scale
            "standard" brings every column (of float images: every channel) to mean 0 and standard deviation 1 over
            the clients, by sums that they send; "none" leaves numbers as they are. Images of bytes become −1 to 1.
        impute
            "mean" or "median" of all clients takes the place of missing values (NaN), which are an error unless given.
        name
            Of tables and folders.

        Examples
        --------
        >>> x, y = [[0.1], [0.9], [0.2], [0.8]], ["healthy", "sick", "healthy", "sick"]
        >>> federation = Federation.of(x, y, client=["A", "A", "B", "B"], target={"healthy": 0.3, "sick": 0.7})
        >>> federation.names, federation.table.tolist(), federation.target.tolist()
        (('A', 'B'), [[1, 1], [1, 1]], [0.3, 0.7])
        """
        if y is None:
            if client is not None:
                raise InputError("client is given without y; give y as well, or a mapping from client to (x, y)")
            x, y, client = pooled(x)
        elif client is None:
            raise InputError("client is missing: give the client of each sample, or a mapping from client to (x, y)")
        columns, samples = column_names(x), as_samples(x)
        numbers, names = as_labels(y, labels, len(samples))
        owner, clients = as_clients(client, len(samples))
        dataset = Dataset(name, samples, numbers, names, {"train": np.arange(len(numbers))}, owner, clients, columns)
        return federate(dataset, target, scale=scale, impute=impute)

    def __post_init__(self) -> None:
        everything = np.concatenate([*self.clients, *self.held_out, self.validation, self.test])
        uses = np.bincount(everything, minlength=1)
        if uses.max() > 1:
            raise InputError(
                f"sample {int(uses.argmax())} is used {uses.max()} times; clients, validation and test must not overlap"
            )

    def holding_out(self, share: float, seed: int) -> Federation:
        """Let every client keep a random ``share`` of each of its labels, rounded down, out of training."""
        parts = [
            partitions.held_out(self.dataset.y, indices, share, generator(seed, "held out", i))
            for i, indices in enumerate(self.clients)
        ]
        return replace(self, clients=tuple(rest for rest, _ in parts), held_out=tuple(held for _, held in parts))

    @cached_property
    def table(self) -> Indices:
        """The M×K label counts of the clients, as plain integers."""
        clients, labels = len(self.clients), len(self.dataset.labels)
        owner = np.repeat(np.arange(clients), [indices.size for indices in self.clients])
        cell = owner * labels + self.dataset.y[np.concatenate(self.clients)]
        return np.bincount(cell, minlength=clients * labels).reshape(clients, labels)

    @cached_property
    def counts(self) -> LabelCounts:
        """The label counts, checked: what the server knows of the clients."""
        return LabelCounts.of(self.table, clients=self.names or None, labels=self.dataset.labels)

    @property
    def images(self) -> bool:
        """Whether samples are images."""
        return not (isinstance(self.dataset.x, np.ndarray) and self.dataset.x.ndim == 2)

    def oracle(self, seed: int) -> Federation:
        """Redraw the clients, from all their samples, with the target's label marginal: no label shift at all."""
        pool = np.sort(np.concatenate(self.clients))
        sizes = [indices.size for indices in self.clients]
        clients = partitions.oracle(self.dataset.y, pool, self.target, sizes, generator(seed, "oracle"))
        return replace(self, clients=clients)

    def pooled(self) -> Federation:
        """Put the samples of all clients in one place, where one client trains with them.

        What clients hold out stays theirs, so that models are compared and clients tested on the same samples.
        """
        everything = np.sort(np.concatenate(self.clients))
        return replace(self, clients=(everything,), names=("all clients",) if self.names else ())

    @cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that differ whenever a sample, a label, a client or T does."""
        digest, data = hashlib.sha256(), self.dataset
        for part in (data.labels, self.names, data.scaling and (data.scaling.shift, data.scaling.scale)):
            digest.update(repr(part).encode())
        if not isinstance(data.x, np.ndarray):
            raise InputError(f"{data.name}: image files are hashed by their task, not by the federation")
        arrays = (data.x, data.y, *self.clients, self.validation, self.test, self.target)
        for array in arrays:
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]

    @cached_property
    def coverage(self) -> Projection:
        """Whether some weighting of the clients reproduces T, or how far T is from their hull."""
        return coverage(self.counts, self.target)


def federate(dataset: Dataset, target: Any, *, scale: Scale = "standard", impute: Impute | None = None) -> Federation:
    """Make a federation of a data set whose domains are the clients; ``target`` as for `Federation.of`."""
    assert dataset.domain is not None
    test_x: npt.NDArray[Any] | None = None
    rows = {name: np.flatnonzero(dataset.domain == i) for i, name in enumerate(dataset.domains)}
    test = _NOTHING
    if isinstance(target, str):
        if target not in rows:
            hint = did_you_mean(target, rows) or f"; the clients are {', '.join(rows)}"
            raise InputError(f"target is {target!r}, which is not a client{hint}")
        test = rows.pop(target)
        T = partitions.marginal(dataset.y, test, len(dataset.labels))
    elif isinstance(target, tuple) and len(target) == 2 and np.ndim(target[0]) > 1:
        test_x = as_samples(target[0], "target[0]")
        y, _ = as_labels(target[1], dataset.labels, len(test_x), "target[1]")
        dataset, test = _with_samples(dataset, test_x, y)
        T = partitions.marginal(dataset.y, test, len(dataset.labels))
    else:
        T = _probabilities(target, dataset.labels)
    if not rows:
        raise InputError("no client is left to train on; give at least one besides the target")
    for name, own in rows.items():
        if not own.size:
            raise InputError(f"client {name!r} has no samples; leave it out")
    clients = tuple(rows.values())
    held = np.bincount(dataset.y[np.concatenate(clients)], minlength=len(dataset.labels))
    if (absent := np.flatnonzero(held == 0)).size:
        share = f", {T[absent[0]]:.0%} of the target" if T[absent[0]] else ""
        raise InputError(
            f"labels: no client has a sample of {dataset.labels[absent[0]]!r}{share}; leave the label out of labels "
            "and target, or get a client that has it"
        )
    return Federation(_scaled(dataset, clients, scale, impute), clients, _NOTHING, test, T, names=tuple(rows))


def _with_samples(dataset: Dataset, x: npt.NDArray[Any], y: Indices) -> tuple[Dataset, Indices]:
    """Append samples that belong to no client; return them as rows of the data set."""
    assert isinstance(dataset.x, np.ndarray)
    if x.shape[1:] != dataset.x.shape[1:]:
        raise InputError(f"target: samples of shape {x.shape[1:]}, but those of clients are {dataset.x.shape[1:]}")
    n = len(dataset.y)
    whole = replace(
        dataset,
        x=np.concatenate([dataset.x, x.astype(dataset.x.dtype)]),
        y=np.concatenate([dataset.y, y]),
        domain=None,
        domains=(),
    )
    return whole, np.arange(n, n + len(y))


def _probabilities(target: Any, labels: Sequence[str]) -> Vector:
    """Return T, a probability per label."""
    target = with_names(target, labels)
    if isinstance(target, Mapping):
        names = {"0": "False", "1": "True"} if tuple(labels) == ("False", "True") else {}  # as numbers they are equal
        given = {names.get(str(label), str(label)): share for label, share in target.items()}
        for label in given:
            if label not in labels:
                hint = did_you_mean(label, labels) or f"; they are {', '.join(labels)}"
                raise InputError(f"target: {label!r} is none of the labels{hint}")
        if missing := [label for label in labels if label not in given]:
            raise InputError(f"target does not name the label {missing[0]!r}; give 0 where the target lacks it")
        target = [given[label] for label in labels]
    try:
        return as_target(target, LabelCounts.of(np.ones((1, len(labels))), labels=labels))
    except InputError as error:
        raise InputError(f"{error} (labels: {', '.join(labels[:12])})") from None


def _scaled(dataset: Dataset, clients: Sequence[Indices], scale: Scale, impute: Impute | None) -> Dataset:
    """Bring numbers to a common scale, and fill in what is missing; bytes of images stay as they are."""
    x = dataset.x
    if not isinstance(x, np.ndarray) or x.dtype == np.uint8:
        return dataset
    missing = np.isnan(x)
    if missing.any() and impute is None:
        row, column = (int(i) for i in np.argwhere(missing)[0][:2])
        raise InputError(
            f"x[{row}, {column}] is missing (NaN), and {np.count_nonzero(missing) - 1} more values are; fill them in, "
            'or give impute="median" or "mean"'
        )
    scaling = federated_scaling(x, clients, scale, impute)
    return replace(dataset, x=scaling(x), scaling=scaling)
