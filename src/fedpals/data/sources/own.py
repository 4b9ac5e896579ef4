"""A user's own data: arrays in a .npz file, or a folder with one subfolder of images per label."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpals.data.dataset import Dataset, ImageFiles, Indices, Samples
from fedpals.errors import InputError

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


def read_npz(path: Path) -> Dataset:
    """Return the data of a .npz file.

    It holds ``x``, (n, C, H, W) uint8 images or (n, d) numbers, and ``y``, (n,) integers from 0; and
    may hold ``labels``, K names, and ``domain``, (n,) integers from 0.
    """
    arrays = _arrays(path, ("x", "y"), ("labels", "domain"))
    x = _samples(path, arrays["x"])
    y = _whole(path, "y", arrays["y"], len(x))
    names = arrays.get("labels", np.arange(y.max() + 1))
    domain = _whole(path, "domain", arrays["domain"], len(x)) if "domain" in arrays else None
    return Dataset(
        path.stem,
        x,
        y,
        tuple(str(name) for name in names.ravel()),
        {"train": np.arange(len(x))},
        domain,
        () if domain is None else tuple(str(place) for place in range(domain.max() + 1)),
    )


def read_folder(path: Path) -> Dataset:
    """Return the images of ``path``/<label>/…, labels in alphabetical order."""
    folders = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    if not folders:
        raise InputError(f"{path} has no subfolders; it needs one per label, with that label's images in it")
    names: list[str] = []
    counts: list[int] = []
    for folder in folders:
        images = sorted(f"{folder.name}/{file.name}" for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
        if not images:
            raise InputError(f"{folder} holds no images ({', '.join(sorted(_SUFFIXES))}); add some or remove it")
        names += images
        counts.append(len(images))
    y = np.repeat(np.arange(len(folders)), counts)
    labels = tuple(folder.name for folder in folders)
    return Dataset(path.name, ImageFiles(path, tuple(names)), y, labels, {"train": np.arange(len(y))})


def read_inputs(path: Path) -> Samples:
    """Return inputs without labels: ``x`` of a .npz file, as `read_npz` takes it, or all images below a folder."""
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file())
        if not found:
            raise InputError(f"{path} holds no images ({', '.join(sorted(_SUFFIXES))})")
        return ImageFiles(path, tuple(file.relative_to(path).as_posix() for file in found))
    x = _samples(path, _arrays(path, ("x",))["x"])
    if not len(x):
        raise InputError(f"{path} holds no samples")
    return x


def _arrays(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, npt.NDArray[Any]]:
    remedy = f"write it with numpy.savez(path, {', '.join(f'{name}={name}' for name in needed)})"
    try:
        # numpy takes other formats too, by content; this one refuses them, whatever the file's name.
        zipfile.ZipFile(path).close()
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in (*needed, *optional) if name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as a .npz file of plain arrays ({error}); {remedy}") from error
    if missing := [name for name in needed if name not in arrays]:
        raise InputError(f"{path} has no array {' and no '.join(missing)}; {remedy}")
    return arrays


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
