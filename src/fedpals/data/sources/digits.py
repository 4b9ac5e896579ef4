"""Handwritten digits: the 1,797 real 8×8 images that come with scikit-learn."""

from __future__ import annotations

import numpy as np

from fedpals.data.dataset import Dataset
from fedpals.errors import MissingExtraError

_MAX_GREY = 16
"""Largest grey value; the images have 0..16."""


def read() -> Dataset:
    """Return (1797, 1, 8, 8) images, with grey values scaled to 0..255."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtraError("the data set digits", "learn") from None
    bunch = load_digits()
    x = np.rint(bunch.images * (255 / _MAX_GREY)).astype(np.uint8)[:, None]
    y = bunch.target.astype(np.int64)
    return Dataset("digits", x, y, tuple("0123456789"), {"train": np.arange(len(y))})
