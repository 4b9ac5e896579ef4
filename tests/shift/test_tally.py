from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, log_loss

from fedpals.errors import InputError
from fedpals.shift import Tally, pooled


def some(seed: int, n: int = 40, K: int = 5) -> Tally:
    rng = np.random.default_rng(seed)
    return Tally.of(rng.integers(K, size=n), 3 * rng.standard_normal((n, K)))


def same(a: Tally, b: Tally) -> bool:
    return (
        np.allclose(a.loss, b.loss, rtol=1e-12)
        and np.allclose(a.squared_loss, b.squared_loss, rtol=1e-12)
        and bool((a.confusion == b.confusion).all())
    )


def test_against_an_independent_implementation() -> None:
    rng = np.random.default_rng(1)
    y, logits = rng.integers(4, size=200), 2 * rng.standard_normal((200, 4))
    tally = Tally.of(y, logits)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert tally.loss.sum() == pytest.approx(log_loss(y, p, labels=range(4), normalize=False))
    assert (tally.confusion == confusion_matrix(y, logits.argmax(axis=1))).all()
    assert tally.squared_loss[2] == pytest.approx(np.square(np.log(p[y == 2, 2])).sum())


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 1000))
def test_the_tally_of_two_sets_is_the_sum_of_theirs(n: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, logits = rng.integers(3, size=n + m), rng.standard_normal((n + m, 3))
    assert same(pooled([Tally.of(y[:n], logits[:n]), Tally.of(y[n:], logits[n:])]), Tally.of(y, logits))


@given(st.integers(0, 1000), st.integers(0, 30))
def test_json_and_back(seed: int, n: int) -> None:
    tally = some(seed, n)
    assert same(Tally.from_json(json.loads(json.dumps(tally.to_json(), allow_nan=False))), tally)


def test_an_infinite_loss_survives_json() -> None:
    tally = Tally.of([0, 1, 1], [[0.0, -np.inf], [0.0, -np.inf], [0.0, 0.0]])
    assert tally.loss.tolist() == [0.0, np.inf]
    again = Tally.from_json(json.loads(json.dumps(tally.to_json(), allow_nan=False)))
    assert again.loss.tolist() == again.squared_loss.tolist() == [0.0, np.inf]


def test_a_model_that_yields_no_number_has_an_infinite_loss() -> None:
    assert Tally.of([0, 1], [[np.nan, np.nan], [0.0, 50.0]]).loss.tolist() == [np.inf, 0.0]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"confusion": np.ones((2, 3), dtype=int)}, r"\(2, 3\).*K×K"),
        ({"confusion": np.eye(2)}, "float64.*whole numbers"),
        ({"confusion": np.array([[1, 0], [-2, 3]])}, "label 1 predicted as 0: -2"),
        ({"loss": np.ones(3)}, r"loss has shape \(3,\)"),
        ({"loss": np.array([np.nan, 1.0])}, "loss: label 0: nan"),
        ({"loss": np.array([1.0, -1.0])}, "loss: label 1: -1"),
        ({"confusion": np.array([[1, 1], [0, 0]])}, "label 1: 1 over 0 samples"),
        ({"squared_loss": np.array([0.4, 1.0])}, "squared_loss: label 0: 0.4.*at least 0.5"),
    ],
)
def test_what_no_samples_can_have_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    fields = {"loss": np.ones(2), "squared_loss": np.ones(2), "confusion": np.array([[1, 1], [0, 3]])}
    with pytest.raises(InputError, match=named):
        Tally(**{**fields, **change})


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({}, "labels"),
        ({"labels": 2, "loss": [0, 0], "squared_loss": [0, 0], "confusion": [[0, 2, 1]]}, "outside 0…1"),
        ({"labels": 2, "loss": [0, 0], "squared_loss": [0, 0], "confusion": [[0, 1, 0.5]]}, "whole numbers"),
        ({"labels": 2, "loss": ["a", 0], "squared_loss": [0, 0], "confusion": []}, "could not convert"),
        ({"labels": 2, "loss": [0], "squared_loss": [0, 0], "confusion": []}, r"loss has shape \(1,\)"),
    ],
)
def test_files_that_hold_no_tally_are_refused(data: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Tally.from_json(data)


def test_labels_and_logits_must_fit() -> None:
    with pytest.raises(InputError, match=r"\(2, 3\) for \(3,\)"):
        Tally.of([0, 1, 2], np.zeros((2, 3)))
    with pytest.raises(InputError, match="0…1"):
        Tally.of([0, 2], np.zeros((2, 2)))


def test_tallies_must_be_over_the_same_labels_and_there_must_be_some() -> None:
    with pytest.raises(InputError, match="5 and of 4 labels"):
        pooled([some(0), some(0, K=4)])
    with pytest.raises(InputError, match="at least one client"):
        pooled([])
