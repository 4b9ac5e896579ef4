"""What a source yields: samples, labels, and the splits their publisher made.

Everything after this point speaks of samples by index, so ten thousand clients cost no copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedpals.data.scaling import Scaling
from fedpals.errors import InputError, MissingExtraError

Indices: TypeAlias = npt.NDArray[np.int64]
Images: TypeAlias = npt.NDArray[np.uint8]
Samples: TypeAlias = "npt.NDArray[np.uint8] | npt.NDArray[np.float32] | ImageFiles"


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """n images that stay on disk until a batch of them is taken."""

    folder: Path
    names: tuple[str, ...]
    """Paths below ``folder``, with forward slashes."""

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: npt.NDArray[np.integer], size: int) -> Images:
        """Read images as (m, 3, size, size) RGB, each stretched to a square.

        Raises
        ------
        InputError
            Naming a file that cannot be read as an image.
        """
        try:
            from PIL import Image
        except ImportError:
            raise MissingExtraError("reading image files", "learn") from None
        batch = np.empty((len(indices), 3, size, size), dtype=np.uint8)
        for row, index in enumerate(indices):
            path = self.folder / self.names[index]
            try:
                with Image.open(path) as image:
                    square = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            except (OSError, Image.DecompressionBombError) as error:
                raise InputError(f"{path} cannot be read as an image ({error}); replace the file") from error
            batch[row] = np.asarray(square).transpose(2, 0, 1)
        return batch


@dataclass(frozen=True, eq=False)
class Dataset:
    """n labelled samples over K labels."""

    name: str
    x: Samples
    """(n, C, H, W) uint8 or float32 images, (n, d) float32 vectors, or image files."""
    y: Indices
    """(n,) labels in 0..K-1."""
    labels: tuple[str, ...]
    """K names."""
    splits: Mapping[str, Indices]
    """The publisher's splits; "train" over everything where there is none."""
    domain: Indices | None = None
    """(n,) where a sample comes from, an index into ``domains``: a style, a camera, …"""
    domains: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """Names of the columns of ``x``, where it is a table that has them."""
    scaling: Scaling | None = None
    """How raw inputs were brought to ``x``; None where ``x`` is raw."""

    def __post_init__(self) -> None:
        samples = len(self.x)
        if self.y.shape != (samples,):
            raise InputError(f"{self.name}: y has shape {self.y.shape} for {samples} samples; give one each")
        _in_range(self.name, "label", self.y, len(self.labels))
        if len(set(self.labels)) < len(self.labels):
            twice = next(name for name in self.labels if self.labels.count(name) > 1)
            raise InputError(f"{self.name}: the label name {twice!r} appears twice; give every label its own name")
        if self.domain is not None:
            if self.domain.shape != (samples,):
                raise InputError(
                    f"{self.name}: domain has shape {self.domain.shape} for {samples} samples; give one each"
                )
            _in_range(self.name, "domain", self.domain, len(self.domains))


def _in_range(name: str, what: str, values: Indices, count: int) -> None:
    outside = (values < 0) | (values >= count)
    if outside.any():
        at = int(np.argmax(outside))
        raise InputError(f"{name}: sample {at} has {what} {values[at]}, but {what}s run from 0 to {count - 1}")
