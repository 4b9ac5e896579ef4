"""Every input format gives the same weights; counts that float64 cannot hold are refused with client and label."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import fedpals
from fedpals import InputError, LabelCounts

COUNTS = np.array([[200, 100, 0], [10, 60, 30], [5, 5, 40]])
TARGET = [0.2, 0.3, 0.5]


@pytest.mark.parametrize("kind", ["uint8", "int8", "bool", "int16", "float32", "int64"])
@pytest.mark.parametrize("form", [sparse.coo_array, sparse.coo_matrix])
def test_entries_for_the_same_place_are_added_without_overflow(kind: str, form: Any) -> None:
    place = np.zeros(300, dtype=np.int64), np.arange(300) % 2
    counts = form((np.ones(300, dtype=kind), place), shape=(2, 2))
    counts = sparse.vstack([counts, sparse.coo_array(np.array([[0, 0], [7, 1]], dtype=kind))])
    assert LabelCounts.of(counts).sizes.tolist() == [300, 0, 0, 2 if kind == "bool" else 8]


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("kind", ["uint8", "int64", "float32"])
def test_every_sparse_format_gives_the_same_weights(form: str, kind: str) -> None:
    table: Any = sparse.coo_array(COUNTS.astype(kind))
    given = table.asformat(form)
    expected = fedpals.solve(COUNTS, TARGET, lam=3.0).alpha
    assert fedpals.solve(given, TARGET, lam=3.0).alpha == pytest.approx(expected, abs=1e-15)
    assert given.toarray().tolist() == COUNTS.tolist()


@pytest.mark.parametrize("kind", [*"bBhHiIlLqQefdg?", "O", ">i8", ">f4"])
def test_every_type_of_numbers_gives_the_same_weights(kind: str) -> None:
    ones = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 1]])
    counts = ones if kind == "?" else ones * [[100, 7, 27], [3, 60, 0], [9, 2, 125]]
    expected = fedpals.solve(counts.tolist(), TARGET, lam=3.0).alpha
    given = counts.astype(kind)
    wide = np.repeat(given, 2, axis=1)[:, ::2]
    frozen = given.copy()
    frozen.flags.writeable = False
    for form in (given, np.asfortranarray(given), given[::-1][::-1], wide, frozen):
        assert fedpals.solve(form, TARGET, lam=3.0).alpha == pytest.approx(expected, abs=1e-15)
        assert form.tolist() == given.tolist()


def test_what_converts_to_an_array_is_read_as_one() -> None:
    class Table:
        """A table as pandas has them."""

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return COUNTS.astype(object)

    expected = fedpals.solve(COUNTS, TARGET, lam=3.0).alpha
    assert fedpals.solve(Table(), TARGET, lam=3.0).alpha == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("value", "make"),
    [
        *product([2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 1e300, 1.7e308], [list, np.array, sparse.csr_array]),
        (10**30, list),
    ],
)
def test_a_count_that_is_not_exact_in_float64_is_refused(value: float, make: Any) -> None:
    message = f"client 'north', label 'cat': {float(value):g} is too large to be counted exactly; a client may"
    with pytest.raises(InputError, match=re.escape(message)):
        LabelCounts.of(make([[1, 2], [3, value]]), clients=["south", "north"], labels=["dog", "cat"])


@pytest.mark.parametrize("make", [np.array, sparse.csr_array])
def test_a_client_whose_size_is_not_exact_in_float64_is_refused(make: Any) -> None:
    assert LabelCounts.of(make([[2**52, 2**52 - 1], [1, 0]])).sizes.tolist() == [2.0**53 - 1, 1.0]
    with pytest.raises(InputError, match=r"client 'row 1', all labels: 9\.0072e\+15 is too large"):
        LabelCounts.of(make([[1, 0], [2**52, 2**52]]))


def test_entries_of_a_sparse_table_whose_sum_is_not_exact_are_refused() -> None:
    place = np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.int64)
    with pytest.raises(InputError, match=r"label 'column 1': .* is too large"):
        LabelCounts.of(sparse.coo_array((np.array([2**53 - 1, 2]), place), shape=(1, 2)))


def test_python_numbers_beyond_every_type_are_refused() -> None:
    with pytest.raises(InputError, match="client 'row 0', label 'column 1': inf is not a finite number"):
        LabelCounts.of([[1, 10**400]])
    with pytest.raises(InputError, match="label 'column 0': nan is not a finite number"):
        LabelCounts.of(np.array([[float("nan"), 3]], dtype=object))


def test_numbers_of_other_kinds_are_refused() -> None:
    with pytest.raises(InputError, match="must be numbers, not complex128"):
        LabelCounts.of(sparse.coo_array(np.array([[1 + 1j]])))
    with pytest.raises(InputError, match="must be numbers, not object"):
        LabelCounts.of(np.array([[1, "2"]], dtype=object))
    with pytest.raises(InputError, match="masked entries"):
        LabelCounts.of(np.ma.masked_array([[1, 2]], mask=[[True, False]]))


def test_a_subset_reads_only_the_names_it_needs() -> None:
    class Names(tuple[str, ...]):
        def __iter__(self) -> Any:
            raise AssertionError("all names were read")

    counts = LabelCounts(np.ones((3, 2)), np.full(3, 2.0), Names(("a", "b", "c")))
    assert counts.subset([2, 0]).clients == ("c", "a")
    assert counts.subset(np.array([True, False, True])).clients == ("a", "c")


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([[1, 2, 3], 4], "row 1 is 4, not a row of counts"),
        ([1, [2, 3]], "row 0 is 1, not a row of counts"),
        ([[1, 2, 3], "abc"], "row 1 is 'abc', not a row of counts"),
        ([[1, 2, 3], [4]], "row 1 has 1 labels but row 0 has 3"),
        ([[1, [2, 3]], [4, 5]], "must be a table of numbers"),
    ],
)
def test_lists_that_are_no_table_are_refused(counts: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"counts.*{message}"):
        LabelCounts.of(counts)
