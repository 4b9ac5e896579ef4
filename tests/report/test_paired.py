"""Paired differences over seeds, by hand."""

from __future__ import annotations

import pytest

from fedpals.report.paired import Paired
from fedpals.report.sheet import Sheet
from fedpals.report.table import Spread


def test_only_seeds_that_both_have_count() -> None:
    paired = Paired.of({0: 0.90, 1: 0.70, 2: 0.80, 7: 0.1}, {0: 0.80, 1: 0.66, 2: 0.76, 3: 0.0})
    assert paired is not None
    assert paired.seeds == 3
    assert paired.difference == pytest.approx(0.06)
    assert paired.error == pytest.approx(0.02)  # 0.10, 0.04, 0.04: standard deviation √0.0012, divided by √3
    assert paired.verdict() == "better"
    assert paired.verdict(lower_is_better=True) == "worse"
    assert str(paired) == "+6.0 ± 2.0 better"
    assert Paired.of({0: 0.5}, {1: 0.5}) is None


def test_one_seed_has_no_verdict_and_no_difference_at_all_is_equal() -> None:
    one = Paired.of({0: 0.5}, {0: 0.75})
    assert one is not None
    assert (str(one), one.verdict()) == ("-25.0", "")
    same = Paired.of({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6})
    assert same is not None
    assert same.verdict() == "equal"


def test_in_files_difference_and_error_stand_where_mean_and_std_do() -> None:
    sheet = Sheet.of(["row", "FedPALS"], [["C = 3", Spread(0.9, 0.01, 8)], ["difference", Paired(0.02, 0.005, 8)]])
    assert sheet.csv().splitlines()[-1] == "difference,2,0.5,8"
    assert r"+2.0 $\pm$ 0.5 better" in sheet.latex()
