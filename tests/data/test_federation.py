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


def test_clients_hold_out_a_share_of_every_label() -> None:
    y = np.repeat([0, 1, 2], [50, 30, 20])
    data = Dataset("held", np.zeros((100, 1), np.float32), y, ("a", "b", "c"), {"train": np.arange(100)})
    nothing = np.array([], dtype=np.int64)
    clients = (np.arange(0, 60), np.arange(60, 100), nothing)
    whole = Federation(data, clients, nothing, nothing, np.array([1.0, 0.0, 0.0]))
    held = whole.holding_out(0.2, seed=4)
    for before, rest, out in zip(whole.clients, held.clients, held.held_out, strict=True):
        assert np.array_equal(np.union1d(rest, out), before)
        assert np.bincount(y[out], minlength=3).tolist() == (np.bincount(y[before], minlength=3) // 5).tolist()
    assert held.counts.total == 100 - 10 - 6 - 4
    again = whole.holding_out(0.2, seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(again.held_out, held.held_out, strict=True))
    other = whole.holding_out(0.2, seed=5)
    assert not all(np.array_equal(a, b) for a, b in zip(other.held_out, held.held_out, strict=True))
