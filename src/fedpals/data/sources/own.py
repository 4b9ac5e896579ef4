"""A user's own data: arrays in a .npz file, a table in a .csv file, or a folder of images by (client and) label."""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpals.config import did_you_mean
from fedpals.data.dataset import Dataset, ImageFiles, Samples
from fedpals.data.inputs import as_clients, as_labels, as_samples
from fedpals.errors import InputError
from fedpals.labels import Indices
from fedpals.labels.cells import Sheet, is_percentage, parse_number, read_sheet

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


def read_npz(path: Path, client_key: str | None = None) -> Dataset:
    """Return the data of a .npz file.

    It holds ``x``, (n, C, H, W) uint8 images or (n, d) numbers, and ``y``, (n,) integers from 0 or names; and
    may hold ``labels``, K names, and ``domain``, (n,) integers from 0. ``client_key`` is the array that says which
    client a sample belongs to; then numbers may be missing (NaN). An array that is not used is an error.
    """
    optional = ("labels", *((client_key,) if client_key is not None else ("domain",)))
    arrays = _arrays(path, ("x", "y"), optional)
    names = _array_names(path)
    if client_key is not None and client_key not in arrays:
        raise InputError(f"{path} has no array {client_key}, which client_key names; its arrays are {', '.join(names)}")
    if unused := [name for name in names if name not in arrays]:
        raise InputError(
            f"{path} holds the array {unused[0]!r}, which nothing uses; if it names the clients give "
            f"client_key={unused[0]!r}, else leave it out of the file"
        )
    x = as_samples(arrays["x"], f"{path}: x") if client_key is not None else _samples(path, arrays["x"])
    if not len(x):
        raise InputError(f"{path} holds no samples")
    given = arrays["labels"].ravel().tolist() if "labels" in arrays else None
    y, labels = as_labels(arrays["y"], given, len(x), f"{path}: y")
    domain: Indices | None = None
    domains: tuple[str, ...] = ()
    if client_key is not None:
        domain, domains = as_clients(arrays[client_key], len(x))
    elif "domain" in arrays:
        domain = _whole(path, "domain", arrays["domain"], len(x))
        domains = tuple(str(place) for place in range(domain.max() + 1))
    return Dataset(path.stem, x, y, labels, {"train": np.arange(len(x))}, domain, domains)


def read_csv(path: Path, client_column: str | None, label_column: str) -> Dataset:
    """Return the table of a .csv file: a sample per row, with a header; all columns but client and label are numbers.

    Empty cells and NA, NaN, null and ? are missing values.
    """
    sheet = read_sheet(path)
    header, rows = _header(sheet), sheet.rows[1:]
    for column, key in ((label_column, "label_column"), (client_column, "client_column")):
        if column is not None and column not in header:
            hint = did_you_mean(column, header) or f"; its columns are {', '.join(header[:20])}"
            raise InputError(f"{path} has no column {column!r}, which {key} names{hint}")
    columns = [name for name in header if name not in {client_column, label_column}]
    if not columns:
        raise InputError(f"{path} has no columns besides client and label; it needs at least one of numbers")
    x = _numbers(sheet, columns)
    texts = [cells[header.index(label_column)] for cells in rows]
    whole = all(re.fullmatch(r"\d+", text) for text in texts)
    y, labels = as_labels(
        np.array(texts).astype(np.int64) if whole else texts, None, len(rows), f"{path}: {label_column}"
    )
    domain: Indices | None = None
    domains: tuple[str, ...] = ()
    if client_column is not None:
        domain, domains = as_clients([cells[header.index(client_column)] for cells in rows], len(rows))
    elif np.isnan(x).any():
        row, k = (int(i) for i in np.argwhere(np.isnan(x))[0])
        raise InputError(f"{sheet.place(row + 1)}, column {columns[k]!r}: a missing value; fill it in")
    return Dataset(path.stem, x, y, labels, {"train": np.arange(len(rows))}, domain, domains, tuple(columns))


def read_columns(path: Path, columns: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return the named columns of a .csv file, in that order; all of them where none is named."""
    sheet = read_sheet(path)
    header = _header(sheet)
    if missing := [name for name in columns if name not in header]:
        raise InputError(
            f"{path} has no column {missing[0]!r}, which the model was trained with{did_you_mean(missing[0], header)}"
        )
    return _numbers(sheet, columns or header)


def _numbers(sheet: Sheet, columns: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return columns of numbers, (n, d); NaN where a value is missing."""
    header, *rows = sheet.rows
    x = np.empty((len(rows), len(columns)), dtype=np.float32)
    places = [header.index(name) for name in columns]
    for row, cells in enumerate(rows):
        for k, i in enumerate(places):
            value = _cell(cells[i], sheet)
            # A number beyond float32 would become infinite.
            if value is None or abs(value) > np.finfo(np.float32).max:
                kind = "a number" if value is None else "finite"
                raise InputError(
                    f"{sheet.place(row + 1)}, column {header[i]!r}: {cells[i]!r} is not {kind}; turn the column into "
                    "numbers or leave it out"
                )
            x[row, k] = value
    return x


def _header(sheet: Sheet) -> list[str]:
    """Return the names of the columns, after a check of the table's form."""
    header, *rows = sheet.rows
    if not rows:
        raise InputError(f"{sheet.path} has no rows below its header; it needs a row per sample")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise InputError(f"{sheet.place(number)}: {len(row)} cells, but the header has {len(header)}")
    if twice := [name for name in header if header.count(name) > 1]:
        raise InputError(f"{sheet.path}: the column {twice[0]!r} appears twice; give every column its own name")
    return header


def _cell(text: str, sheet: Sheet) -> float | None:
    if text.lower() in {"", "na", "nan", "null", "?"}:
        return math.nan
    return None if is_percentage(text) else parse_number(text, decimal_comma=sheet.decimal_comma)


def read_folder(path: Path) -> Dataset:
    """Return the images of ``path``/<label>/…, or of ``path``/<client>/<label>/…; labels in alphabetical order."""
    folders = _folders(path)
    if not folders:
        raise InputError(f"{path} has no subfolders; it needs one per label, with that label's images in it")
    if all(_folders(folder) for folder in folders):
        return _read_clients(path, folders)
    names: list[str] = []
    counts: list[int] = []
    for folder in folders:
        images = _images(folder)
        names += [f"{folder.name}/{image}" for image in images]
        counts.append(len(images))
    y = np.repeat(np.arange(len(folders)), counts)
    labels = tuple(folder.name for folder in folders)
    return Dataset(path.name, ImageFiles(path, tuple(names)), y, labels, {"train": np.arange(len(y))})


def _read_clients(path: Path, clients: list[Path]) -> Dataset:
    labels = sorted({folder.name for client in clients for folder in _folders(client)})
    names: list[str] = []
    y: list[int] = []
    owner: list[int] = []
    for number, client in enumerate(clients):
        for folder in _folders(client):
            images = _images(folder)
            names += [f"{client.name}/{folder.name}/{image}" for image in images]
            y += [labels.index(folder.name)] * len(images)
            owner += [number] * len(images)
    splits = {"train": np.arange(len(y))}
    domains = tuple(client.name for client in clients)
    files = ImageFiles(path, tuple(names))
    return Dataset(path.name, files, np.array(y), tuple(labels), splits, np.array(owner), domains)


def _folders(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))


def _images(folder: Path) -> list[str]:
    images = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
    if not images:
        raise InputError(f"{folder} holds no images ({', '.join(sorted(_SUFFIXES))}); add some or remove it")
    return images


def holds_vectors(path: Path) -> bool:
    """Whether ``x`` of a .npz file is (n, d), read off its header alone; False where the file cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("x.npy") as header:
            return len(_read_header(header)[0]) == 2
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return False


def read_inputs(path: Path) -> Samples:
    """Return inputs without labels: ``x`` of a .npz file, as `read_npz` takes it, or all images below a folder."""
    if path.is_dir():
        images = sorted(file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file())
        if not images:
            raise InputError(f"{path} holds no images ({', '.join(sorted(_SUFFIXES))})")
        return ImageFiles(path, tuple(file.relative_to(path).as_posix() for file in images))
    x = as_samples(_arrays(path, ("x",))["x"], f"{path}: x")
    if not len(x):
        raise InputError(f"{path} holds no samples")
    return x


def _arrays(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, npt.NDArray[Any]]:
    remedy = f"write it with numpy.savez(path, {', '.join(f'{name}={name}' for name in needed)})"
    try:
        # numpy takes other formats too, by content; this one refuses them, whatever the file's name.
        with zipfile.ZipFile(path) as zipped:
            _check_headers(zipped)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in (*needed, *optional) if name in archive.files}
    except (OSError, ValueError, EOFError, MemoryError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as a .npz file of plain arrays ({error}); {remedy}") from error
    if missing := [name for name in needed if name not in arrays]:
        raise InputError(f"{path} has no array {' and no '.join(missing)}; {remedy}")
    return arrays


def _check_headers(archive: zipfile.ZipFile) -> None:
    """Raise ValueError for an array whose header promises more than the file holds, before memory is asked for."""
    for member in archive.infolist():
        with archive.open(member) as file:
            shape, _, dtype = _read_header(file)
            if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(f"{member.filename} has fewer bytes than its shape {shape} needs")


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def _array_names(path: Path) -> list[str]:
    with np.load(path, allow_pickle=False) as archive:
        return list(archive.files)


def _samples(path: Path, x: npt.NDArray[Any]) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
    if x.ndim == 4 and x.dtype == np.uint8:
        return x
    if x.ndim != 2 or x.dtype.kind not in "buif":
        raise InputError(
            f"{path}: x is {x.dtype} of shape {x.shape}; it must be (samples, channels, height, width) uint8 "
            "with values 0..255, or (samples, features) numbers"
        )
    # A number beyond float32 becomes infinite and is refused below.
    with np.errstate(over="ignore"):
        vectors = x.astype(np.float32)
    bad = ~np.isfinite(vectors)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise InputError(f"{path}: x[{row}, {column}] is {x[row, column]}; remove samples without a finite value")
    return vectors


def _whole(path: Path, name: str, values: npt.NDArray[Any], samples: int) -> Indices:
    if values.shape != (samples,):
        raise InputError(f"{path}: {name} has shape {values.shape} but x has {samples} samples; give one value each")
    if samples == 0:
        raise InputError(f"{path} holds no samples")
    if values.dtype.kind not in "ui":
        raise InputError(f"{path}: {name} is {values.dtype}, not integers; number the values from 0 and store integers")
    if values.min() < 0:
        raise InputError(f"{path}: {name} holds {values.min()}; number the values from 0")
    return values.astype(np.int64)
