"""Cases: label counts and a target, solved without training; given in the experiment or counted from a file."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from pydantic import BaseModel, ConfigDict, model_validator

from fedpals.data.official import search_path
from fedpals.errors import InputError


class CountsFile(BaseModel):
    """File of label counts per camera, with the columns of WILDS, in a data folder.

    Every camera (``location_remapped``) of one split (``wilds_split``) is a client. The target is the share of each
    label ``y`` in the ``count`` over all cameras of another split.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    clients: str
    """Split whose cameras are the clients."""
    target: str
    """Split whose pooled labels are the target."""
    labels: str
    """File with the names of the labels, in columns ``y`` and ``english``."""


class Case(BaseModel):
    """Label counts and a target, given directly or counted from a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    labels: list[str] = []
    counts: list[list[int]] = []
    target: list[float] = []
    clients: list[str] = []
    """Names of the clients, if any."""
    file: CountsFile | None = None

    @model_validator(mode="after")
    def _has_counts(self) -> Case:
        if self.file is None and not (self.labels and self.counts and self.target):
            raise InputError(f"case {self.name!r} needs labels, counts and target, or a file to count them from")
        return self

    def counted(self, folder: Path | None = None) -> Case:
        """Return the case with its counts, read from its file if it has one."""
        return self if self.file is None else _count(self, self.file, folder)


def _count(case: Case, file: CountsFile, folder: Path | None) -> Case:
    path = _find(file.path, folder)
    rows = _read(path, ("wilds_split", "location_remapped", "y", "count"))
    try:
        table = [(split, int(camera), int(y), int(count)) for split, camera, y, count in rows]
    except ValueError as error:
        raise InputError(f"{path}: {error}; cameras, labels and counts must be whole numbers") from None
    counts = Counter[tuple[int, int]]()
    pooled = Counter[int]()
    for split, camera, y, count in table:
        if split == file.clients:
            counts[camera, y] += count
        if split == file.target:
            pooled[y] += count
    for split, samples in ((file.clients, counts), (file.target, pooled)):
        if not samples.total():
            splits = ", ".join(sorted({row[0] for row in table}))
            raise InputError(f"{path}: no samples of split {split!r}; its splits are {splits}")
    cameras = sorted({camera for camera, _ in counts})
    labels = sorted({y for _, y in counts} | set(pooled))
    names = {row[0]: row[1] for row in _read(_find(file.labels, folder), ("y", "english"))}
    return case.model_copy(
        update={
            "labels": [names.get(str(y), str(y)) for y in labels],
            "counts": [[counts[camera, y] for y in labels] for camera in cameras],
            "target": [pooled[y] / pooled.total() for y in labels],
            "clients": [f"camera {camera}" for camera in cameras],
        }
    )


def _find(name: str, folder: Path | None) -> Path:
    paths = [base / name for base in search_path(folder)]
    for path in paths:
        if path.is_file():
            return path
    raise InputError(f"{name}: no such file; it is expected at {' or '.join(map(str, paths))}")


def _read(path: Path, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            return [tuple(row[column] for column in columns) for row in csv.DictReader(lines, strict=True)]
    except KeyError as error:
        raise InputError(f"{path} has no column {error.args[0]}; it needs {', '.join(columns)}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a csv file ({error})") from None
