from __future__ import annotations

import numpy as np
import pytest

from fedpals.data import Dataset, Federation
from fedpals.errors import InputError

DATA = Dataset(
    "tiny",
    np.zeros((8, 2), np.float32),
    np.array([0, 0, 0, 1, 1, 2, 2, 2]),
    ("cat", "dog", "owl"),
    {"train": np.arange(8)},
)


def federation(*clients: list[int], target: list[float], validation: int = 7) -> Federation:
    arrays = tuple(np.array(client, dtype=np.int64) for client in clients)
    return Federation(DATA, arrays, np.array([validation]), np.array([2]), np.array(target))


def test_counts_and_coverage() -> None:
    tiny = federation([0, 1, 3], [4, 5, 6], target=[1 / 3, 1 / 3, 1 / 3])
    assert np.allclose(tiny.counts.marginals, [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]])  # type: ignore[arg-type]
    assert tiny.counts.sizes.tolist() == [3, 3]
    assert tiny.counts.labels == ("cat", "dog", "owl")
    assert tiny.coverage.covered
    assert tiny.counts is tiny.counts
    assert not federation([0, 1, 3], [4, 5, 6], target=[0, 1, 0]).coverage.covered


def test_a_client_without_samples_has_size_0() -> None:
    assert federation([0, 1], [], target=[1, 0, 0]).counts.sizes.tolist() == [2, 0]


@pytest.mark.parametrize(("clients", "validation"), [(([0, 1], [1, 3]), 7), (([0], [7]), 7), (([0], [1]), 2)])
def test_overlaps_are_refused(clients: tuple[list[int], ...], validation: int) -> None:
    with pytest.raises(InputError, match=r"sample [127] is used 2 times"):
        federation(*clients, target=[1, 0, 0], validation=validation)
