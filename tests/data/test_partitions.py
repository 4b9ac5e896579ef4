from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpals.data import partitions
from fedpals.data.partitions import Partition
from fedpals.errors import InputError
from fedpals.labels import Indices, Vector
from fedpals.weights import coverage

K = 5
SEEDS = st.integers(0, 2**32)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labelled(counts: list[int], seed: int = 0) -> tuple[Indices, Indices]:
    """Labels in random order, with a pool that leaves out some samples at either end."""
    y = rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    outside = np.zeros(7, dtype=np.int64)
    return np.concatenate([outside, y, outside]), np.arange(7, 7 + y.size)


def table(y: Indices, clients: tuple[Indices, ...], labels: int = K) -> list[list[int]]:
    return [np.bincount(y[client], minlength=labels).tolist() for client in clients]


def assert_disjoint(pool: Indices, *parts: Indices) -> None:
    everything = np.concatenate(parts)
    assert np.unique(everything).size == everything.size
    assert np.isin(everything, pool).all()


def same(a: Partition, b: Partition) -> bool:
    return (a.target == b.target).all() and all(np.array_equal(i, j) for i, j in zip(a.clients, b.clients, strict=True))


shares = hnp.arrays(np.float64, (3, K), elements=st.floats(0, 1)).filter(lambda p: (p.sum(axis=1) > 1e-3).all())


@given(shares, st.lists(st.integers(0, 10**6), min_size=3, max_size=3))
def test_largest_remainder_is_off_by_less_than_one(p: Vector, sizes: list[int]) -> None:
    p = p / p.sum(axis=1, keepdims=True)
    counts = partitions.largest_remainder(p, sizes)
    assert counts.sum(axis=1).tolist() == sizes
    assert (np.abs(counts - p * np.array(sizes)[:, None]) < 1 + 1e-6).all()
    assert (counts[p == 0] == 0).all()


class TestDeal:
    @given(hnp.arrays(np.int64, (4, K), elements=st.integers(0, 5)), SEEDS)
    def test_counts_are_exact_and_samples_unique(self, counts: partitions.Table, seed: int) -> None:
        y, pool = labelled([20] * K, seed)
        clients = partitions.deal(y, pool, counts, rng(seed))
        assert table(y, clients) == counts.tolist()
        assert_disjoint(pool, *clients)
        again = partitions.deal(y, pool, counts, rng(seed))
        assert all(np.array_equal(a, b) for a, b in zip(clients, again, strict=True))

    def test_samples_are_drawn_at_random(self) -> None:
        y, pool = labelled([50])
        (a,), (b,) = (partitions.deal(y, pool, np.array([[10]]), rng(seed)) for seed in (1, 2))
        assert not np.array_equal(a, b)

    def test_a_label_that_runs_out_is_named(self) -> None:
        y, pool = labelled([5, 2])
        with pytest.raises(InputError, match="3 samples of label 1 are needed, but only 2 are available"):
            partitions.deal(y, pool, np.array([[1, 2], [0, 1]]), rng())


class TestSparsity:
    @given(st.integers(2, 12), st.integers(1, K), SEEDS)
    def test_each_client_has_c_labels_equally(self, clients: int, C: int, seed: int) -> None:
        y, pool = labelled([30, 40, 50, 60, 70], seed)
        args = {"clients": clients, "labels_per_client": C, "samples_per_client": None}
        split = partitions.sparsity(y, pool, K, **args, rng=rng(seed))  # type: ignore[arg-type]
        counts = np.array(table(y, split.clients))
        assert len(split.clients) == clients - 1
        assert ((counts > 0).sum(axis=1) == C).all()
        assert np.unique(counts[counts > 0]).size == 1
        assert sorted(split.target.tolist()) == [0.0] * (K - C) + [1 / C] * C
        assert_disjoint(pool, *split.clients)
        assert same(split, partitions.sparsity(y, pool, K, **args, rng=rng(seed)))  # type: ignore[arg-type]

    @given(SEEDS)
    def test_unless_given_as_many_samples_as_fit(self, seed: int) -> None:
        supply = np.array([30, 40, 50, 60, 70])
        y, pool = labelled(supply.tolist(), seed)
        split = partitions.sparsity(y, pool, K, clients=8, labels_per_client=3, samples_per_client=None, rng=rng(seed))
        has = np.vstack([np.array(table(y, split.clients)) > 0, split.target > 0])
        per_label = np.bincount(y[split.clients[0]]).max()
        assert (has.sum(axis=0) * per_label <= supply).all()
        assert (has.sum(axis=0) * (per_label + 1) > supply).any()

    def test_label_sets_are_uniform(self) -> None:
        y, pool = labelled([40_000] * 4)
        split = partitions.sparsity(y, pool, 4, clients=12_001, labels_per_client=2, samples_per_client=2, rng=rng())
        _, times = np.unique(table(y, split.clients, 4), axis=0, return_counts=True)
        assert times.size == 6
        # Six sets, 2,000 expected of each, standard deviation 41.
        assert (np.abs(times - 2000) < 200).all()

    @pytest.mark.parametrize(
        ("clients", "C", "n", "message"),
        [
            (1, 2, None, "clients is 1; at least 2 are needed, because the last one is the target"),
            (5, 6, None, "labels_per_client is 6 but the data has 5 labels; give 1 to 5"),
            (5, 0, None, "labels_per_client is 0 but"),
            (5, 3, 2, "samples_per_client is 2, too few for 3 labels; use at least 3"),
            (5, 5, 25, "samples_per_client is 25, which does not fit; use at most 20"),
            (30, 5, None, "clients is 30, of which 30 drew label 0, but it has only 20 samples"),
        ],
    )
    def test_impossible_requests_say_what_would_fit(self, clients: int, C: int, n: int | None, message: str) -> None:
        y, pool = labelled([20] * K)
        with pytest.raises(InputError, match=message):
            partitions.sparsity(y, pool, K, clients=clients, labels_per_client=C, samples_per_client=n, rng=rng())

    def test_what_would_fit_does_fit(self) -> None:
        y, pool = labelled([20] * K)
        split = partitions.sparsity(y, pool, K, clients=5, labels_per_client=5, samples_per_client=20, rng=rng())
        assert [client.size for client in split.clients] == [20] * 4


class TestDirichlet:
    @given(st.integers(2, 12), st.sampled_from([0.01, 0.1, 1.0, 100.0]), SEEDS)
    def test_clients_are_equal_in_size_and_disjoint(self, clients: int, beta: float, seed: int) -> None:
        y, pool = labelled([30, 40, 50, 60, 70], seed)
        args = {"clients": clients, "beta": beta, "samples_per_client": None}
        split = partitions.dirichlet(y, pool, K, **args, rng=rng(seed))  # type: ignore[arg-type]
        assert len(split.clients) == clients - 1
        assert len({client.size for client in split.clients}) == 1
        assert split.clients[0].size > 0
        assert split.target.sum() == pytest.approx(1.0)
        assert_disjoint(pool, *split.clients)
        assert same(split, partitions.dirichlet(y, pool, K, **args, rng=rng(seed)))  # type: ignore[arg-type]

    def test_counts_round_the_drawn_shares(self) -> None:
        y, pool = labelled([1000] * K)
        split = partitions.dirichlet(y, pool, K, clients=4, beta=0.5, samples_per_client=100, rng=rng(3))
        drawn = rng(3).dirichlet(np.full(K, 0.5), size=4)
        assert (np.abs(np.array(table(y, split.clients)) - 100 * drawn[:3]) < 1).all()
        assert (np.abs(split.target - drawn[3]) < 0.01).all()

    def test_a_large_beta_is_uniform_and_a_small_one_concentrated(self) -> None:
        y, pool = labelled([1000] * K)
        even, odd = (
            partitions.dirichlet(y, pool, K, clients=5, beta=beta, samples_per_client=50, rng=rng())
            for beta in (1e6, 1e-6)
        )
        assert table(y, even.clients) == [[10] * K] * 4
        assert (np.array(table(y, odd.clients)).max(axis=1) == 50).all()

    @pytest.mark.parametrize(
        ("clients", "beta", "n", "message"),
        [
            (1, 0.1, None, "clients is 1"),
            (5, 0.0, None, "beta is 0.0; the Dirichlet concentration must be a number > 0"),
            (5, np.inf, None, "beta is inf"),
            (4, 1e6, 26, "samples_per_client is 26, which does not fit at beta 1000000.0; use 1 to 25"),
            (101, 1.0, None, "clients is 101, but 100 samples are too few for them at beta 1.0; use fewer"),
        ],
    )
    def test_impossible_requests_say_what_would_fit(
        self, clients: int, beta: float, n: int | None, message: str
    ) -> None:
        y, pool = labelled([20] * K)
        with pytest.raises(InputError, match=message):
            partitions.dirichlet(y, pool, K, clients=clients, beta=beta, samples_per_client=n, rng=rng())


class TestEvaluationSets:
    @given(shares, st.integers(1, 60), SEEDS)
    def test_they_follow_the_target(self, p: Vector, size: int, seed: int) -> None:
        y, pool = labelled([60] * K, seed)
        T = p[0] / p[0].sum()
        chosen = partitions.follow(y, pool, T, size, rng(seed))
        assert chosen.size == size
        assert (np.abs(np.bincount(y[chosen], minlength=K) - size * T) < 1 + 1e-9).all()
        assert_disjoint(pool, chosen)

    @given(shares)
    def test_the_most_that_fit_do_fit_and_one_more_does_not(self, p: Vector) -> None:
        y, pool = labelled([3, 10, 20, 30, 40])
        T = p[0] / p[0].sum()
        most = partitions.most(y, pool, T)
        with pytest.raises(InputError, match=rf"{most + 1} test samples .* use at most {most}"):
            partitions.follow(y, pool, T, most + 1, rng(), what="test samples")
        if most:
            assert partitions.follow(y, pool, T, most, rng()).size == most

    def test_none_at_all_is_refused(self) -> None:
        y, pool = labelled([3, 3])
        with pytest.raises(InputError, match="0 samples with the target's label marginal"):
            partitions.follow(y, pool, np.array([0.5, 0.5]), 0, rng())

    @given(st.floats(0, 1), SEEDS)
    def test_a_held_out_share_is_stratified(self, share: float, seed: int) -> None:
        y, pool = labelled([3, 10, 20, 30, 40], seed)
        rest, held = partitions.held_out(y, pool, share, rng(seed))
        assert np.bincount(y[held], minlength=K).tolist() == [int(n * share) for n in (3, 10, 20, 30, 40)]
        assert np.array_equal(np.sort(np.concatenate([rest, held])), pool)


class TestSynthetic:
    @given(st.just(0.0) | st.floats(1e-3, 1), SEEDS)
    def test_the_papers_clients_and_target(self, delta: float, seed: int) -> None:
        y, pool = labelled([60] * 3, seed)
        split = partitions.synthetic(y, pool, 3, delta=delta, rng=rng(seed))
        assert table(y, split.clients, 3) == [[20, 20, 0], [9, 0, 9]]
        assert_disjoint(pool, *split.clients)
        assert split.target == pytest.approx([0.5 * (1 - delta), 0.25 * (1 + delta), 0.25 * (1 + delta)])
        # T_δ − T_proj = δ·(−1/2, 1/4, 1/4), orthogonal to the clients' line.
        assert coverage(table(y, split.clients, 3), split.target).squared_distance == pytest.approx(0.375 * delta**2)

    def test_delta_and_labels_are_checked(self) -> None:
        y, pool = labelled([60] * 3)
        with pytest.raises(InputError, match=r"delta is 1.5; it must lie between 0 and 1"):
            partitions.synthetic(y, pool, 3, delta=1.5, rng=rng())
        with pytest.raises(InputError, match="has 3 labels, not 4"):
            partitions.synthetic(y, pool, 4, delta=0.5, rng=rng())


class TestPacs:
    @given(SEEDS)
    def test_the_construction_of_the_appendix(self, seed: int) -> None:
        y, everything = labelled([60, 50, 70, 40, 30, 20, 90], seed)
        train, test = everything[:200], everything[200:]
        split, left = partitions.pacs(y, train, test, 7, rng(seed))
        first, second, third = split.clients
        assert [int((y[client] == k).sum()) for k, client in enumerate(split.clients)] == [0, 0, 0]
        # 200 images in thirds of 67, 67 and 66; the label that a third loses is all that it loses.
        in_train = np.bincount(y[train], minlength=7)
        assert 67 - in_train[0] <= first.size <= 67
        assert 67 - in_train[1] <= second.size <= 67
        assert round(0.1 * (66 - in_train[2])) <= third.size <= 7
        assert_disjoint(train, first, second, third)
        assert np.array_equal(left, test[y[test] != 2])
        assert split.target == pytest.approx(np.bincount(y[left], minlength=7) / left.size)

    def test_a_third_is_cut_to_a_tenth_of_what_is_left_of_it(self) -> None:
        y, train = labelled([0, 0, 0, 300])
        split, _ = partitions.pacs(y, train, train, 4, rng())
        assert [client.size for client in split.clients] == [100, 100, 10]

    def test_a_target_of_label_2_alone_is_refused(self) -> None:
        y, train = labelled([3, 3, 3])
        with pytest.raises(InputError, match="no samples are left"):
            partitions.pacs(y, train, train[y[train] == 2], 3, rng())


class TestByDomain:
    def test_a_hand_computed_example(self) -> None:
        # Sizes 5 3 4 2 1. Largest first: 0→a(5) 2→b(4) 1→b(7) 3→a(7) 4→a, the lower of two clients of 7.
        domain = np.repeat([0, 1, 2, 3, 4], [5, 3, 4, 2, 1])
        pool = np.arange(15)
        a, b = partitions.by_domain(domain, pool, clients=2)
        assert sorted(set(domain[a])) == [0, 3, 4]
        assert sorted(set(domain[b])) == [1, 2]

    @given(hnp.arrays(np.int64, 80, elements=st.integers(0, 12)), st.integers(1, 4))
    def test_domains_stay_whole_and_clients_balanced(self, domain: Indices, clients: int) -> None:
        pool = np.arange(10, 80)
        if clients > np.unique(domain[pool]).size:
            return
        parts = partitions.by_domain(domain, pool, clients=clients)
        assert np.array_equal(np.sort(np.concatenate(parts)), pool)
        assert sum(np.unique(domain[part]).size for part in parts) == np.unique(domain[pool]).size
        sizes = [part.size for part in parts]
        assert max(sizes) - min(sizes) <= np.bincount(domain[pool]).max()

    def test_more_clients_than_domains_are_refused(self) -> None:
        with pytest.raises(InputError, match=r"clients is 4 but the samples come from 3 domains.*give 1 to 3"):
            partitions.by_domain(np.array([0, 5, 5, 9]), np.arange(4), clients=4)


class TestOracle:
    @given(shares, st.lists(st.integers(1, 40), min_size=1, max_size=6), SEEDS)
    def test_every_client_has_the_targets_marginal(self, p: Vector, sizes: list[int], seed: int) -> None:
        y, pool = labelled([300] * K, seed)
        T = p[0] / p[0].sum()
        clients = partitions.oracle(y, pool, T, sizes, rng(seed))
        counts = np.array(table(y, clients))
        assert counts.sum(axis=1).tolist() == sizes
        assert_disjoint(pool, *clients)
        together = counts.sum(axis=0)
        assert (np.abs(together - sum(sizes) * T) < 1 + 1e-9).all()
        assert (np.abs(counts - np.array(sizes)[:, None] * T) <= 2 + K * T).all()

    def test_all_shrink_alike_where_the_labels_do_not_suffice(self) -> None:
        y, pool = labelled([60, 60, 500])
        clients = partitions.oracle(y, pool, np.array([0.5, 0.5, 0.0]), [200, 100, 300], rng())
        assert table(y, clients, 3) == [[20, 20, 0], [10, 10, 0], [30, 30, 0]]

    def test_too_many_clients_are_refused(self) -> None:
        y, pool = labelled([2, 500])
        with pytest.raises(InputError, match=r"an oracle for 5 clients cannot be built: .* has only 2 with"):
            partitions.oracle(y, pool, np.array([1.0, 0.0]), [9] * 5, rng())
