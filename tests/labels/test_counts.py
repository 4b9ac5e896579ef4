from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from fedpals import InputError, LabelCounts
from fedpals.labels import as_target, match

GOOD = [[3, 1, 0], [0, 4, 4]]


@pytest.mark.parametrize(
    "make", [list, np.array, lambda c: np.array(c, dtype=float), sparse.csr_array, sparse.coo_matrix]
)
def test_any_kind_of_table_gives_the_same_marginals(make: Any) -> None:
    counts = LabelCounts.of(make(GOOD))
    S = counts.marginals if isinstance(counts.marginals, np.ndarray) else counts.marginals.toarray()
    assert S.tolist() == [[0.75, 0.25, 0.0], [0.0, 0.5, 0.5]]
    assert counts.sizes.tolist() == [4.0, 8.0]
    assert counts.total == 12.0


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.int32, np.int8])
def test_validation_reaches_the_last_of_many_blocks(kind: type[np.generic]) -> None:
    table = np.ones((100_000, 10), dtype=kind)
    table[99_999, 7] = -1
    with pytest.raises(InputError, match=r"client 'row 99999', label 'column 7': -1 is negative"):
        LabelCounts.of(table)


@pytest.mark.parametrize("value", [-1, np.iinfo(np.int64).min])
def test_the_first_of_several_negative_counts_is_named(value: int) -> None:
    table = np.full((3, 2), 10**15)
    table[1, 1] = table[2, 0] = value
    with pytest.raises(InputError, match=re.escape(f"client 'row 1', label 'column 1': {value:g} is negative")):
        LabelCounts.of(table)
    with pytest.raises(InputError, match="client 'row 0', label 'column 0'"):
        LabelCounts.of(table[::-1, :1])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (-3, "-3 is negative"),
        (0.5, "0.5 is fractional"),
        (np.nan, "nan is not a finite"),
        (np.inf, "inf is not a finite"),
    ],
)
@pytest.mark.parametrize("make", [np.array, sparse.csr_array])
def test_a_bad_count_is_named_by_row_label_and_value(value: float, reason: str, make: Any) -> None:
    table = make([[1.0, 2.0], [3.0, value]])
    with pytest.raises(InputError, match=f"client 'north', label 'cat': {reason}"):
        LabelCounts.of(table, clients=["south", "north"], labels=["dog", "cat"])


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([[1, 2], [3]], "row 1 has 1 labels but row 0 has 2"),
        ([1, 2, 3], "not 1-D"),
        (np.zeros((0, 3)), "at least one client"),
        (np.zeros((3, 0)), "at least one client and one label"),
        ([[0, 0], [0, 0]], "all 2 clients are empty"),
        ([["a", "b"]], "must be numbers"),
    ],
)
def test_malformed_tables(counts: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LabelCounts.of(counts)


def test_names_must_fit() -> None:
    with pytest.raises(InputError, match="1 client names for 2 rows"):
        LabelCounts.of(GOOD, clients=["a"])
    with pytest.raises(InputError, match="'x' occurs twice"):
        LabelCounts.of(GOOD, labels=["x", "x", "y"])


def test_a_client_without_samples_has_a_marginal_of_zeros() -> None:
    counts = LabelCounts.of([[0, 0], [1, 1]])
    assert np.asarray(counts.marginals).tolist() == [[0, 0], [0.5, 0.5]]


def test_subset_keeps_the_participants_in_their_order() -> None:
    counts = LabelCounts.of([[1, 0], [2, 2], [0, 5]], clients=["a", "b", "c"])
    assert counts.subset([2, 0]).clients == ("c", "a")
    assert counts.subset([2, 0]).sizes.tolist() == [5, 1]
    assert counts.subset(np.array([False, True, True])).sizes.tolist() == [4, 5]
    with pytest.raises(InputError, match="none of the 0 participants"):
        counts.subset([])
    with pytest.raises(InputError, match="row numbers or a mask"):
        counts.subset([0.5])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([0.5, 0.5], r"shape \(2,\) but the clients have 3 labels"),
        ([0.5, 0.6, -0.1], "label 'column 2': -0.1 is not a probability"),
        ([0.5, float("nan"), 0.5], "label 'column 1': nan is not a probability"),
        ([0.5, float("inf"), 0.5], "inf is not a probability"),
        ([0.5, 0.3, 0.1], "sums to 0.9, not 1"),
        ([1e308, 1e308, 0.0], r"column 0.: 1e\+308 is not a probability"),
        (["a", "b", "c"], "must be 3 probabilities"),
        (np.ma.masked_array([0.2, 0.5, 0.3], mask=[True, False, False]), "target has masked entries; fill them"),
        (np.array([0.2 + 0.1j, 0.5, 0.3]), "must be 3 probabilities, one per label, not complex128"),
        ([10**400, 1, 1], "must be 3 probabilities, one per label; one of the numbers is too large"),
    ],
)
def test_bad_targets(target: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_target(target, LabelCounts.of(GOOD))


def test_rounding_of_the_target_is_divided_out() -> None:
    assert as_target([0.3333333, 0.3333333, 0.3333333], LabelCounts.of(GOOD)).sum() == pytest.approx(1, abs=1e-15)


def test_labels_are_matched_by_name() -> None:
    counts = LabelCounts.of(GOOD, labels=["a", "b", "c"])
    _, T = match(counts, {"c": 0.5, "a": 0.2, "b": 0.3})
    assert T.tolist() == [0.2, 0.3, 0.5]


def test_a_label_the_target_does_not_name_is_an_error_unless_it_means_zero() -> None:
    counts = LabelCounts.of(GOOD, labels=["a", "b", "c"])
    with pytest.raises(InputError, match=r"does not name the label 'b' .*\(nor 1 more\)"):
        match(counts, {"a": 1.0})
    _, T = match(counts, {"a": 1.0}, missing_is_zero=True)
    assert T.tolist() == [1, 0, 0]


@pytest.mark.parametrize("make", [np.array, sparse.csr_array])
def test_a_label_that_no_client_has_becomes_a_column_of_zeros(make: Any) -> None:
    counts, T = match(LabelCounts.of(make([[1, 1]]), labels=["a", "b"]), {"a": 0.25, "b": 0.25, "new": 0.5})
    assert counts.labels == ("a", "b", "new")
    assert counts.shape == (1, 3)
    assert T.tolist() == [0.25, 0.25, 0.5]


def test_a_named_target_needs_named_counts() -> None:
    with pytest.raises(InputError, match="counts has no label names"):
        match(LabelCounts.of(GOOD), {"a": 1.0})


@pytest.mark.parametrize("label", [5, None, ("a", "b")])
def test_a_mapping_from_what_is_no_name_is_refused(label: Any) -> None:
    counts = LabelCounts.of(GOOD, labels=["a", "b", "c"])
    with pytest.raises(InputError, match=r"names the label .*, which is not text; write names such as 'a'"):
        match(counts, {"a": 0.2, "b": 0.3, "c": 0.5, label: 0.0})


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_equal_proportions_are_equal_marginals_to_the_last_bit(form: Any) -> None:
    counts = np.array([[1, 2, 0], [49, 98, 0], [0, 0, 49], [0, 0, 0]])
    held = LabelCounts.of(form(counts))
    S = held.marginals.toarray() if sparse.issparse(held.marginals) else held.marginals
    assert S.tolist() == [[1 / 3, 2 / 3, 0], [1 / 3, 2 / 3, 0], [0, 0, 1], [0, 0, 0]]
    table = held.table.toarray() if sparse.issparse(held.table) else held.table
    assert table.tolist() == counts.tolist()
