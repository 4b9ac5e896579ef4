"""Tables and targets of pandas: names decide where there are any, and are never dropped without a word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedpals
from fedpals import Federation, InputError, LabelCounts
from fedpals.labels import as_target, match

pd: Any = pytest.importorskip("pandas")

COUNTS = np.array([[3, 1, 0], [0, 4, 2], [5, 0, 7]])
NAMED = pd.Series({"c": 0.3, "a": 0.2, "b": 0.5})


@pytest.mark.parametrize(
    "counts", [LabelCounts.of(COUNTS, labels=["a", "b", "c"]), pd.DataFrame(COUNTS, columns=["a", "b", "c"])]
)
@pytest.mark.parametrize("target", [NAMED, dict(NAMED), [0.2, 0.5, 0.3], pd.Series([0.2, 0.5, 0.3])])
def test_a_series_with_names_is_matched_by_them_as_a_mapping_is(counts: Any, target: Any) -> None:
    weights = fedpals.solve(counts, target, lam=1.0)
    assert weights.target.tolist() == [0.2, 0.5, 0.3]
    assert weights.counts.labels == ("a", "b", "c")


def test_a_label_that_only_the_series_has_becomes_a_column_of_zeros() -> None:
    counts, T = match(LabelCounts.of(COUNTS, labels=["a", "b", "c"]), pd.Series({"new": 0.5, "c": 0.5, "a": 0, "b": 0}))
    assert (counts.labels, T.tolist()) == (("a", "b", "c", "new"), [0, 0, 0.5, 0.5])
    with pytest.raises(InputError, match="does not name the label 'b'"):
        match(LabelCounts.of(COUNTS, labels=["a", "b", "c"]), NAMED[["a", "c"]])


def test_numbers_are_names_too_unless_they_only_count() -> None:
    target = pd.Series({7: 0.3, 3: 0.2, 5: 0.5})
    assert fedpals.solve(pd.DataFrame(COUNTS, columns=[3, 5, 7]), target, lam=1.0).target.tolist() == [0.2, 0.5, 0.3]
    counts = LabelCounts.of(pd.DataFrame(COUNTS))
    assert counts.labels is None
    assert match(counts, pd.Series([0.2, 0.5, 0.3]))[1].tolist() == [0.2, 0.5, 0.3]
    turned = pd.DataFrame(COUNTS, columns=[2, 0, 1])
    assert fedpals.solve(turned, pd.Series([0.2, 0.5, 0.3]), lam=1.0).target.tolist() == [0.3, 0.2, 0.5]
    truth = pd.DataFrame(COUNTS[:, :2], columns=[False, True])
    assert fedpals.solve(truth, pd.Series({True: 0.9, False: 0.1}), lam=1.0).target.tolist() == [0.1, 0.9]


@pytest.mark.parametrize("target", [NAMED, pd.Series([0.2, 0.5, 0.3], index=[2, 0, 1])])
def test_a_series_with_names_needs_named_counts(target: Any) -> None:
    with pytest.raises(InputError, match=r"by label name, but counts has no label names: .*, in the order of counts"):
        fedpals.solve(COUNTS, target, lam=1.0)
    with pytest.raises(InputError, match=r"names, which are not known here; give target\.to_numpy\(\)"):
        as_target(target, LabelCounts.of(COUNTS))


def test_names_that_occur_twice_are_refused() -> None:
    with pytest.raises(InputError, match="target names the label 'a' twice"):
        fedpals.solve(
            pd.DataFrame(COUNTS, columns=["a", "b", "c"]), pd.Series([0.2, 0.5, 0.3], index=list("aba")), lam=1.0
        )
    with pytest.raises(InputError, match="label names: 'a' occurs twice"):
        LabelCounts.of(pd.DataFrame(COUNTS, columns=["a", "b", "a"]))


def test_names_that_are_given_take_the_place_of_those_of_the_table() -> None:
    assert LabelCounts.of(pd.DataFrame(COUNTS, columns=["a", "b", "c"]), labels=["x", "y", "z"]).labels == (
        "x",
        "y",
        "z",
    )


def test_a_federation_reads_a_series_by_name() -> None:
    x, y = [[0.1], [0.9], [0.2], [0.8]], ["healthy", "sick", "healthy", "sick"]
    target = pd.Series({"sick": 0.7, "healthy": 0.3})
    assert Federation.of(x, y, client=["A", "A", "B", "B"], target=target).target.tolist() == [0.3, 0.7]
