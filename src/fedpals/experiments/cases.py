"""Cases: label counts and a target to solve for without any training; from the experiment, or counted from a file."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from pydantic import BaseModel, ConfigDict, model_validator

from fedpals.data.official import search_path
from fedpals.errors import InputError


class CountsFile(BaseModel):
    """Label counts per camera, in the columns of WILDS: a file below a data folder.

    Every camera (``location_remapped``) of one split (``wilds_split``) is a client; the ``count`` of label
    ``y`` over all cameras of another split, divided by the sum over labels, is the target.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    clients: str
    """Split whose cameras are the clients."""
    target: str
    """Split whose pooled labels are the target."""
    labels: str
    """File that names the labels, in columns ``y`` and ``english``."""


class Case(BaseModel):
    """Label counts and a target; both are given, or a file that they are counted from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    labels: list[str] = []
    counts: list[list[int]] = []
    target: list[float] = []
    clients: list[str] = []
    """Names of the clients, where they have any."""
    file: CountsFile | None = None

    @model_validator(mode="after")
    def _has_counts(self) -> Case:
        if self.file is None and not (self.labels and self.counts and self.target):
            raise InputError(f"case {self.name!r} needs labels, counts and target, or a file to count them from")
        return self

    def counted(self, folder: Path | None = None) -> Case:
        """Return the case with its counts, read from the file where it names one."""
        return self if self.file is None else _count(self, self.file, folder)


def _count(case: Case, file: CountsFile, folder: Path | None) -> Case:
    path = _find(file.path, folder)
    rows = _read(path, ("wilds_split", "location_remapped", "y", "count"))
    try:
        table = [(split, int(camera), int(y), int(count)) for split, camera, y, count in rows]
    except ValueError as error:
        raise InputError(f"{path}: {error}; cameras, labels and counts are whole numbers") from None
    counts = Counter[tuple[int, int]]()
    pooled = Counter[int]()
    for split, camera, y, count in table:
        if split == file.clients:
            counts[camera, y] += count
        if split == file.target:
            pooled[y] += count
    for split, found in ((file.clients, counts), (file.target, pooled)):
        if not found.total():
            known = ", ".join(sorted({row[0] for row in table}))
            raise InputError(f"{path}: no samples of split {split!r}; its splits are {known}")
    cameras = sorted({camera for camera, _ in counts})
    labels = sorted({y for _, y in counts} | set(pooled))
    named = {row[0]: row[1] for row in _read(_find(file.labels, folder), ("y", "english"))}
    return case.model_copy(
        update={
            "labels": [named.get(str(y), str(y)) for y in labels],
            "counts": [[counts[camera, y] for y in labels] for camera in cameras],
            "target": [pooled[y] / pooled.total() for y in labels],
            "clients": [f"camera {camera}" for camera in cameras],
        }
    )


def _find(name: str, folder: Path | None) -> Path:
    places = [base / name for base in search_path(folder)]
    if found := next((path for path in places if path.is_file()), None):
        return found
    raise InputError(f"{name}: no such file; it is expected at {' or '.join(map(str, places))}")


def _read(path: Path, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            return [tuple(row[column] for column in columns) for row in csv.DictReader(lines, strict=True)]
    except KeyError as error:
        raise InputError(f"{path} has no column {error.args[0]}; it needs {', '.join(columns)}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a csv file ({error})") from None
