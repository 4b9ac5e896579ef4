from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from fedpals.data import Federation, Task
from fedpals.errors import InputError
from fedpals.labels import Indices
from tests.data.test_sources import need


def counts(federation: Federation) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    labels = len(federation.dataset.labels)
    return np.array([np.bincount(federation.dataset.y[c], minlength=labels) for c in federation.clients])


def marginal(federation: Federation, indices: Indices) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.bincount(federation.dataset.y[indices], minlength=len(federation.dataset.labels)) / indices.size


def assert_follows(federation: Federation) -> None:
    for indices in (federation.validation, federation.test):
        assert (np.abs(marginal(federation, indices) - federation.target) < 1 / indices.size).all()


class TestKeys:
    def test_they_decide_the_partition_and_fill_in_its_defaults(self) -> None:
        assert Task() == Task(task="digits", clients=10, labels_per_client=3)
        assert Task(task="cifar10", beta=0.1).partition == "dirichlet"
        assert Task(task="pacs").partition == "pacs"
        assert Task(task="pacs", labels_per_client=2).partition == "sparsity"
        assert Task(task="pacs", clients=2).partition == "by_domain"
        assert (Task(task="iwildcam").partition, Task(task="iwildcam").clients) == ("by_domain", 100)
        assert (Task(task="synthetic").partition, Task(task="synthetic").delta) == ("synthetic", 0.0)
        assert Task(task="own.npz").partition == "sparsity"

    def test_a_task_survives_being_written_down(self) -> None:
        for task in (
            Task(),
            Task(task="cifar10", beta=0.1, samples_per_client=50),
            Task(task="synthetic", delta=0.3),
        ):
            assert Task.model_validate(task.model_dump(exclude_none=True)) == task
            assert Task.model_validate_json(task.model_dump_json()) == task

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"labels_per_client": 3, "beta": 0.1}, "beta does not apply to digits with sparsity partition"),
            (
                {"delta": 0.5},
                "delta does not apply to digits .* takes clients, labels_per_client, samples_per_client",
            ),
            ({"task": "pacs", "delta": 0.5}, "delta does not apply to pacs .* no keys of its own"),
            ({"beta": 0}, "greater than 0"),
            ({"beta": float("nan")}, "finite"),
            ({"clients": 0}, "greater than or equal to 1"),
            ({"task": "synthetic", "delta": 1.5}, "less than or equal to 1"),
            ({"labels": 3}, "Extra inputs are not permitted"),
        ],
    )
    def test_keys_out_of_place_are_refused(self, keys: dict[str, object], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            Task.model_validate(keys)

    def test_a_task_is_a_mapping(self) -> None:
        with pytest.raises(ValidationError):
            Task.model_validate("digits")


class TestSampled:
    @pytest.mark.parametrize("keys", [{}, {"labels_per_client": 6}, {"beta": 0.5}, {"beta": 0.1, "clients": 4}])
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_digits(self, keys: dict[str, float], seed: int) -> None:
        federation = Task.model_validate(keys).federation(seed)
        assert len(federation.clients) == keys.get("clients", 10) - 1
        assert np.unique(counts(federation).sum(axis=1)).size == 1
        assert_follows(federation)
        assert federation.test.size >= 60
        assert federation.counts.shape == (len(federation.clients), 10)

    def test_the_seed_decides_everything_and_the_evaluation_sets_nothing(self) -> None:
        first, again, other = (Task().federation(seed) for seed in (0, 0, 1))
        smaller = Task(validation_samples=30, test_samples=60).federation(0)
        for a, b, c in zip(first.clients, again.clients, smaller.clients, strict=True):
            assert np.array_equal(a, b)
            assert np.array_equal(a, c)
        assert np.array_equal(first.test, again.test)
        assert np.array_equal(first.validation, again.validation)
        assert not np.array_equal(first.clients[0], other.clients[0])
        assert (smaller.validation.size, smaller.test.size) == (30, 60)

    def test_the_data_set_is_read_once(self) -> None:
        assert Task().federation(0).dataset is Task(beta=0.1).federation(1).dataset

    def test_an_oracle_shares_target_and_evaluation_sets(self) -> None:
        plain, oracle = Task().federation(0), Task().federation(0, oracle=True)
        assert np.array_equal(plain.target, oracle.target)
        assert np.array_equal(plain.test, oracle.test)
        assert np.array_equal(plain.validation, oracle.validation)
        assert (np.abs(counts(oracle) - counts(oracle).sum(axis=1, keepdims=True) * plain.target) < 2).all()
        assert oracle.coverage.squared_distance < 1e-3 < plain.coverage.squared_distance

    def test_an_oracle_has_the_clients_sizes_where_they_fit(self) -> None:
        plain = Task(samples_per_client=30).federation(0)
        oracle = Task(samples_per_client=30).federation(0, oracle=True)
        assert oracle.counts.sizes.tolist() == plain.counts.sizes.tolist() == [30.0] * 9

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"clients": 1}, "clients is 1; at least 2 are needed, because the last one is the target"),
            ({"labels_per_client": 11}, "labels_per_client is 11 but the data has 10 labels"),
            ({"test_samples": 5000}, "5000 test samples with the target's label marginal do not fit"),
            (
                {"validation_samples": 5000},
                "5000 validation samples with the target's label marginal do not fit",
            ),
            ({"samples_per_client": 3000}, "samples_per_client is 3000, which does not fit"),
        ],
    )
    def test_impossible_tasks_say_what_would_fit(self, keys: dict[str, int], message: str) -> None:
        with pytest.raises(InputError, match=message):
            Task.model_validate(keys).federation(0)

    def test_a_users_own_data(self, npz: Callable[..., Path]) -> None:
        y = np.repeat(np.arange(4), 50)
        path = npz(x=np.arange(200.0)[:, None], y=y)
        federation = Task(task=str(path), clients=4, labels_per_client=2).federation(0)
        assert len(federation.clients) == 3
        assert_follows(federation)
        assert federation.dataset.name == "own"

    def test_nothing_to_test_with_is_said(self, npz: Callable[..., Path]) -> None:
        path = npz(x=np.zeros((6, 1)), y=np.repeat([0, 1], 3))
        with pytest.raises(InputError, match=r"1 test samples .* use at most 0"):
            Task(task=str(path), clients=2, labels_per_client=1).federation(0)


@pytest.mark.parametrize("delta", [0.0, 0.5, 1.0])
def test_synthetic(delta: float) -> None:
    federation = Task(task="synthetic", delta=delta).federation(3)
    assert counts(federation).tolist() == [[20, 20, 0], [9, 0, 9]]
    assert federation.coverage.squared_distance == pytest.approx(0.375 * delta**2)
    assert (federation.test.size, federation.validation.size) == (2000, 1000)
    assert_follows(federation)
    assert counts(Task(task="synthetic", delta=delta).federation(3, oracle=True)).sum(axis=1).tolist() == [
        40,
        18,
    ]


def test_official_test_samples_are_for_testing_only() -> None:
    need("fashion-mnist")
    federation = Task(task="fashion-mnist", labels_per_client=2).federation(0)
    train, test = federation.dataset.splits["train"], federation.dataset.splits["test"]
    assert np.isin(federation.test, test).all()
    assert np.isin(np.concatenate([*federation.clients, federation.validation]), train).all()
    assert (federation.test.size, federation.validation.size) == (2000, 1000)
    assert_follows(federation)


def test_ten_thousand_clients() -> None:
    need("fashion-mnist")
    federation = Task(task="fashion-mnist", clients=10_000).federation(0)
    assert (counts(federation).sum(axis=1) == 3).all()
    assert federation.counts.shape == (9999, 10)


@pytest.mark.usefixtures("nowhere")
class TestLayouts:
    def test_pacs(self, pacs_like: Path) -> None:
        federation = Task(task="pacs").federation(0, folder=pacs_like)
        table, splits, y = counts(federation), federation.dataset.splits, federation.dataset.y
        assert table[[0, 1, 2], [0, 1, 2]].tolist() == [0, 0, 0]
        # 756 training images in thirds of 252, each without a label that 108 of the 756 have.
        assert (np.abs(table.sum(axis=1) - [216, 216, 21.6]) < [40, 40, 4]).all()
        assert np.array_equal(federation.validation, splits["id_val"][y[splits["id_val"]] != 2])
        assert np.array_equal(federation.test, splits["test"][y[splits["test"]] != 2])
        assert federation.target.tolist() == pytest.approx([1 / 6, 1 / 6, 0, 1 / 6, 1 / 6, 1 / 6, 1 / 6])

    def test_pacs_with_a_client_per_domain(self, pacs_like: Path) -> None:
        federation = Task(task="pacs", clients=2).federation(0, folder=pacs_like)
        domain = federation.dataset.domain
        assert domain is not None
        homes = [set(domain[indices].tolist()) for indices in federation.clients]
        assert [len(home) for home in homes] == [1, 1]
        assert len(set.union(*homes)) == 2
        assert not set(domain[federation.test].tolist()) & set.union(*homes)

    def test_pacs_with_a_smaller_test_set(self, pacs_like: Path) -> None:
        federation = Task(task="pacs", test_samples=60, validation_samples=12).federation(0, folder=pacs_like)
        assert (federation.test.size, federation.validation.size) == (60, 12)
        assert_follows(federation)

    def test_pacs_oracle(self, pacs_like: Path) -> None:
        plain, oracle = (Task(task="pacs").federation(1, oracle=flag, folder=pacs_like) for flag in (False, True))
        assert oracle.counts.sizes.tolist() == plain.counts.sizes.tolist()
        assert (counts(oracle)[:, 2] == 0).all()

    def test_iwildcam(self, iwildcam_like: Path) -> None:
        federation = Task(task="iwildcam", clients=3).federation(0, folder=iwildcam_like)
        # Locations of 9 7 5 4 2: 9 | 7 + 2 | 5 + 4.
        assert counts(federation).sum(axis=1).tolist() == [9, 9, 9]
        domain = federation.dataset.domain
        assert domain is not None
        assert [sorted(set(domain[client])) for client in federation.clients] == [[1], [2, 3], [0, 4]]
        assert federation.target.tolist() == pytest.approx([1 / 3] * 3)
        assert np.array_equal(federation.validation, federation.dataset.splits["id_val"])

    def test_iwildcam_by_default_wants_a_hundred_clients(self, iwildcam_like: Path) -> None:
        with pytest.raises(InputError, match="clients is 100 but the samples come from 5 domains"):
            Task(task="iwildcam").federation(0, folder=iwildcam_like)

    def test_a_missing_split_is_named(self, iwildcam_like: Path) -> None:
        path = iwildcam_like / "iwildcam_v2.0" / "metadata.csv"
        path.write_text(path.read_text().replace("id_val,", "held_out,"))
        with pytest.raises(InputError, match="iwildcam: its metadata has no split id_val; it has held_out, id_test"):
            Task(task="iwildcam", clients=3).federation(0, folder=iwildcam_like)


def test_the_real_pacs_task() -> None:
    need("pacs")
    federation = Task(task="pacs").federation(0)
    table, y = counts(federation), federation.dataset.y
    assert federation.test.size == 1488
    assert table[[0, 1, 2], [0, 1, 2]].tolist() == [0, 0, 0]
    assert 1500 < table[0].sum() < 1650
    assert 1500 < table[1].sum() < 1650
    assert 150 < table[2].sum() < 165
    assert federation.target[2] == 0
    assert not (y[federation.validation] == 2).any()
    assert federation.coverage.alpha.argmax() == 2
