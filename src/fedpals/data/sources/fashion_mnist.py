"""Fashion-MNIST (Xiao et al. 2017): 70,000 grey 28×28 images of clothing, in idx files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedpals.data.dataset import Dataset
from fedpals.data.official import OfficialFiles
from fedpals.data.official import read as read_file

_IMAGES_HEADER, _LABELS_HEADER = 16, 8
"""Number of bytes before the data: a magic number and one 32-bit length per axis."""

_CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
FILES = OfficialFiles(
    name="fashion-mnist",
    folder="fashion-mnist",
    checksums=_CHECKSUMS,
    by_hand="apt-get install dataset-fashion-mnist",
    downloads={f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}": None for name in _CHECKSUMS},
)
LABELS = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def read(root: Path) -> Dataset:
    """Return (70000, 1, 28, 28) images: 60,000 for training, then 10,000 for testing."""
    images = [_read_bytes(root, f"{part}-images-idx3-ubyte.gz", _IMAGES_HEADER) for part in ("train", "t10k")]
    labels = [_read_bytes(root, f"{part}-labels-idx1-ubyte.gz", _LABELS_HEADER) for part in ("train", "t10k")]
    x = np.concatenate(images).reshape(-1, 1, 28, 28)
    y = np.concatenate(labels).astype(np.int64)
    train = len(labels[0])
    return Dataset("fashion-mnist", x, y, LABELS, {"train": np.arange(train), "test": np.arange(train, len(y))})


def _read_bytes(root: Path, name: str, header: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(read_file(FILES, root, name), dtype=np.uint8, offset=header)
