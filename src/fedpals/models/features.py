"""Features of a frozen backbone, computed once and stored on disk.

Training then uses vectors instead of images: a round over PACS takes a second instead of an hour.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedpals.data.dataset import Dataset, ImageFiles, Samples
from fedpals.errors import InputError
from fedpals.files import replacing
from fedpals.models.backbones import BACKBONES, checkpoint, pretrained
from fedpals.models.networks import prepare

_CHUNK = 16
"""Number of images in a batch, and the most that an interruption loses. Larger batches are slower: the data between
the layers then no longer fits into the processor's cache."""

Vectors: TypeAlias = npt.NDArray[np.float32]


def features(
    dataset: Dataset,
    backbone: str,
    weights: Path | None = None,
    *,
    size: int,
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Replace the images of a data set by their (n, d) feature vectors from a frozen backbone.

    The vectors are computed once and then read from ``folder``, as long as backbone, weights, size and
    images stay the same. An interrupted computation continues where it stopped.

    Parameters
    ----------
    dataset
        Image files, or (n, C, H, W) images.
    backbone
        A name of `fedpals.models.BACKBONES`; d is its width.
    weights
        A torchvision checkpoint; searched for unless given.
    size
        Side in pixels to which images are scaled first.
    folder
        Folder in which the vectors are stored.
    progress
        Function of the number of finished images and their total, called after every few images.

    Raises
    ------
    InputError
        If the data set has no images, or weights or stored vectors cannot be used.
    """
    images = dataset.x
    if isinstance(images, np.ndarray) and images.dtype != np.uint8:
        raise InputError(f"{dataset.name} holds vectors; features of a backbone need images")
    backbone_weights = checkpoint(backbone, weights)
    key = _digest(f"{backbone} {backbone_weights.digest} {size}".encode(), *_content(images))
    path = folder / f"{dataset.name}-{backbone}-{size}-{key[:16]}.npy"
    shape = (len(images), BACKBONES[backbone].width)
    if not path.exists():
        network = pretrained(backbone, backbone_weights).eval()
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's types leave it out
        _compute(network, images, size, path, shape, progress)
    return replace(dataset, x=_load(path, shape))


def embed(images: Samples, rows: npt.NDArray[np.int64], backbone: str, *, size: int) -> Vectors:
    """Return the vectors, (m, d), of the images ``rows``; nothing is stored."""
    network = _backbone(backbone)
    parts = [_forward(network, _prepare_rows(images, rows[i : i + _CHUNK], size)) for i in range(0, len(rows), _CHUNK)]
    return np.concatenate(parts)


@lru_cache(maxsize=1)
def _backbone(backbone: str) -> nn.Module:
    network = pretrained(backbone, checkpoint(backbone, None)).eval()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's types leave it out
    return network


def _compute(
    network: nn.Module,
    images: Samples,
    size: int,
    path: Path,
    shape: tuple[int, int],
    progress: Callable[[int, int], None] | None,
) -> None:
    """Compute the vectors of all images and write them to ``path``, with one temporary file per chunk."""
    chunks = path.with_suffix(".chunks")
    total, width = shape
    vectors = np.empty(shape, dtype=np.float32)
    for start in range(0, total, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, total))
        chunk = chunks / f"{start:09d}.npy"
        if not chunk.exists():
            _write(chunk, _forward(network, _prepare_rows(images, rows, size)))
        vectors[rows] = _load(chunk, (len(rows), width))
        if progress is not None:
            progress(int(rows[-1]) + 1, total)
    _write(path, vectors)
    shutil.rmtree(chunks, ignore_errors=True)


def _prepare_rows(images: Samples, rows: npt.NDArray[np.int64], size: int) -> torch.Tensor:
    """Return the images ``rows``, scaled for the models, as (m, C, size, size)."""
    if isinstance(images, ImageFiles):
        return prepare(images.take(rows, size))
    batch = prepare(images[rows])
    if batch.shape[2:] == (size, size):
        return batch
    return nn.functional.interpolate(batch, (size, size), mode="bilinear", antialias=True)


def _forward(network: nn.Module, images: torch.Tensor) -> Vectors:
    with torch.inference_mode():
        vectors: Vectors = network(images).numpy()
    return vectors


def _content(images: Samples) -> Iterator[bytes | memoryview]:
    """Yield the data that identifies these images.

    Files are identified by name and length, because reading them all would take as long as computing their
    features. The name alone is not enough: copies of PACS in other resolutions have the same names.
    """
    if isinstance(images, ImageFiles):
        for name in images.names:
            yield f"{name}\0{(images.folder / name).stat().st_size}\n".encode()
    else:
        yield str(images.shape).encode()
        yield np.ascontiguousarray(images).data


def _digest(*parts: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _write(path: Path, vectors: Vectors) -> None:
    with replacing(path) as temporary:
        np.save(temporary, vectors)


def _load(path: Path, shape: tuple[int, int]) -> Vectors:
    try:
        vectors: Vectors = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read as stored features ({error}); delete it") from error
    if vectors.shape != shape or vectors.dtype != np.float32:
        raise InputError(f"{path} holds {vectors.dtype} {vectors.shape}, not float32 {shape}; delete it")
    return vectors
