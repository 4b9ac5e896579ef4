"""CIFAR-10 (Krizhevsky 2009): 60,000 colour 32×32 images, in the binary version's six files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedpals.data.dataset import Dataset
from fedpals.data.official import OfficialFiles
from fedpals.data.official import read as read_file

_IMAGE_SHAPE = (3, 32, 32)
_BATCH_SIZE = 10_000

FILES = OfficialFiles(
    name="cifar10",
    folder="cifar-10-batches-bin",
    checksums={
        "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    by_hand="unpack the binary version from https://www.cs.toronto.edu/~kriz/cifar.html",
    downloads={"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
)
LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def read(root: Path) -> Dataset:
    """Return (60000, 3, 32, 32) images: 50,000 for training, then 10,000 for testing."""
    samples = _BATCH_SIZE * len(FILES.checksums)
    x = np.empty((samples, *_IMAGE_SHAPE), dtype=np.uint8)
    y = np.empty(samples, dtype=np.int64)
    for batch, name in enumerate(FILES.checksums):
        rows = slice(batch * _BATCH_SIZE, (batch + 1) * _BATCH_SIZE)
        # A record is one byte for the label, then the red, green and blue planes.
        records = np.frombuffer(read_file(FILES, root, name), dtype=np.uint8).reshape(_BATCH_SIZE, -1)
        y[rows] = records[:, 0]
        x[rows] = records[:, 1:].reshape(-1, *_IMAGE_SHAPE)
    train = samples - _BATCH_SIZE
    return Dataset("cifar10", x, y, LABELS, {"train": np.arange(train), "test": np.arange(train, samples)})
