"""What only changes how long a solve takes: optional packages, threads, and what is tried first."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import fedpals
from fedpals.weights import instance, sparse_gram, threads
from tests.weights.test_solver import random_counts


@pytest.fixture(autouse=True)
def _forget_optional_packages() -> Any:
    yield
    sparse_gram._compiled.cache_clear()
    threads._controller.cache_clear()


def table(rows: int = 300, columns: int = 12) -> Any:
    return sparse.csr_array(random_counts(rows, columns)[0].astype(np.float64))


@pytest.mark.parametrize("rows", [None, np.array([5, 3, 77, 3])])
def test_the_compiled_gram_matrix_is_scipy_s(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    C = table()
    factors = np.random.default_rng(0).normal(size=300 if rows is None else rows.size)
    by_scipy = sparse_gram.sparse_gram(C, factors, rows)
    monkeypatch.setattr(sparse_gram, "_MIN_ENTRIES", 0)
    assert sparse_gram.sparse_gram(C, factors, rows) == pytest.approx(by_scipy, rel=1e-12)


def test_without_numba_scipy_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(sparse_gram, "_MIN_ENTRIES", 0)
    sparse_gram._compiled.cache_clear()
    C = table()
    assert sparse_gram.sparse_gram(C, np.ones(300)) == pytest.approx((C.T @ C).toarray())


def test_one_thread_only_where_it_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("threadpoolctl")
    for shape in ((), (9, 10), (10**6, 1000)):
        assert isinstance(threads.one_blas_thread(shape), nullcontext)
    with threads.one_blas_thread((10_000, 100)):
        assert {pool["num_threads"] for pool in threads._controller().info() if pool["user_api"] == "blas"} == {1}
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    threads._controller.cache_clear()
    assert isinstance(threads.one_blas_thread((10_000, 100)), nullcontext)


def test_many_labels_are_tried_without_a_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(60, rng.dirichlet(np.full(20, 0.3), 2000))
    target = rng.dirichlet(np.ones(20))
    projected = fedpals.solve(counts, target, lam=0)
    monkeypatch.setattr(instance, "_MANY_LABELS", 10)
    monkeypatch.setattr(instance, "project", lambda *_: pytest.fail("projected"))
    matched = fedpals.solve(counts, target, lam=0)
    assert matched.covered
    assert matched.projection.squared_distance == 0
    assert matched.alpha == pytest.approx(projected.alpha, abs=1e-9)


def test_many_labels_of_a_target_that_is_not_covered() -> None:
    rng = np.random.default_rng(1)
    counts = rng.multinomial(60, rng.dirichlet(np.full(160, 0.3), 500))
    counts[:, 3] = 0
    weights = fedpals.solve(counts, rng.dirichlet(np.ones(160)), lam=0)
    assert not weights.covered
    assert weights.marginal[3] == 0
