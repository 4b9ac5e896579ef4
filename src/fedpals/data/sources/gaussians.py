"""The paper's synthetic task: three labels in the plane, p(X | Y = y) = N(μ_y, I)."""

from __future__ import annotations

import numpy as np

from fedpals.data.dataset import Dataset
from fedpals.rng import generator

MEANS = np.array([[6.0, 4.6], [1.2, -1.6], [4.6, -5.4]])
"""μ_y, as printed in the appendix."""


def read(per_label: int = 10_000, seed: int = 0) -> Dataset:
    """Return a population of 3 · ``per_label`` points; a run draws its clients and test set from it.

    The population is a data set like any other, and runs with different seeds draw different samples from it.
    With the paper's 58 training and 2,000 test samples, they hardly overlap.
    """
    y = np.repeat(np.arange(len(MEANS)), per_label)
    x = MEANS[y] + generator(seed, "synthetic").standard_normal((y.size, 2))
    return Dataset("synthetic", x.astype(np.float32), y, ("0", "1", "2"), {"train": np.arange(y.size)})
