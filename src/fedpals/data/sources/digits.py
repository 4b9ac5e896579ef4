"""Handwritten digits: the 1,797 real 8×8 images that come with scikit-learn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedpals.data.dataset import Dataset
from fedpals.errors import MissingExtraError

_MAX_GREY = 16
"""Largest grey value; the images have 0..16."""


def read() -> Dataset:
    """Return (1797, 1, 8, 8) images, with grey values scaled to 0..255."""
    # scikit-learn's file, read without importing scikit-learn, which takes as long as many rounds.
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise MissingExtraError("the data set digits", "learn")
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    x = np.rint(table[:, :-1].reshape(-1, 1, 8, 8) * (255 / _MAX_GREY)).astype(np.uint8)
    y = table[:, -1].astype(np.int64)
    return Dataset("digits", x, y, tuple("0123456789"), {"train": np.arange(len(y))})
