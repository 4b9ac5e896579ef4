from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fedpals import InputError
from fedpals.labels.tables import read_counts, read_target


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "client,a,b\nx,1,2\ny,3,4\n",
        ",a,b\nx,1,2\ny,3,4",
        "store;a;b\nx;1;2\ny;3;4",
        "\ufeffclient\ta\tb\n\nx\t1\t2\ny\t3\t4\n",
    ],
)
def test_clients_with_names_in_common_dialects(tmp_path: Path, text: str) -> None:
    counts = read_counts(write(tmp_path / "c.csv", text))
    assert counts.clients == ("x", "y")
    assert counts.labels == ("a", "b")
    assert counts.sizes.tolist() == [3, 7]


def test_clients_without_names_are_numbered(tmp_path: Path) -> None:
    assert read_counts(write(tmp_path / "c.csv", "a,b\n1,2\n3,4\n")).clients == ("1", "2")


def test_clients_whose_names_are_numbers_need_the_header_client(tmp_path: Path) -> None:
    counts = read_counts(write(tmp_path / "c.csv", "client,a,b\n17,1,2\n18,3,4\n"))
    assert counts.clients == ("17", "18")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.csv: the file is empty"),
        ("client,a\n", "no clients below the header"),
        ("client\nx\n", "the header names no label"),
        ("client,a,b\nx,1\n", "line 2: 2 cells, but the header has 3"),
        ("client,a,b\nx,1,2\ny,1,\n", "line 3, label 'b': '' is not a number; write 0"),
        ("client,a,b\nx,1,-2\n", "client 'x', label 'b': -2 is negative"),
        ("client,a,b\nx,1,nan\n", "client 'x', label 'b': nan is not a finite"),
        ("client,a,b\nx,1,2.5\n", "client 'x', label 'b': 2.5 is fractional"),
        ("client,a,a\nx,1,2\n", "'a' occurs twice"),
        ("client,a\nx,1\nx,2\n", "'x' occurs twice"),
        ("client,a\nx,0\n", "all 1 clients are empty"),
    ],
)
def test_bad_clients_are_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "c.csv", text)
    with pytest.raises(InputError, match=message) as caught:
        read_counts(path)
    assert str(path) in str(caught.value)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_counts(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="cannot be read as text"):
        read_counts(tmp_path / "b.csv")


def test_target_probabilities_with_and_without_header(tmp_path: Path) -> None:
    for text in ("label,probability\na,0.25\nb,0.75\n", "a,0.25\nb,0.75\n"):
        table = read_target(write(tmp_path / "t.csv", text))
        assert table.shares == {"a": 0.25, "b": 0.75}
        assert not table.counted


def test_target_counts_are_normalised(tmp_path: Path) -> None:
    table = read_target(write(tmp_path / "t.csv", "label,n\na,30\nb,10\n"))
    assert table.shares == {"a": 0.75, "b": 0.25}
    assert table.counted


def test_printed_digits_explain_a_sum_that_misses_one(tmp_path: Path) -> None:
    table = read_target(write(tmp_path / "t.csv", "a,0.33\nb,0.33\nc,0.33\n"))
    assert abs(sum(table.shares.values()) - 1) <= table.tolerance
    with pytest.raises(InputError, match=r"sum to 0\.98, which rounding does not explain"):
        read_target(write(tmp_path / "t.csv", "a,0.330\nb,0.330\nc,0.320\n"))
    assert read_target(write(tmp_path / "t.csv", "a,3.3e-1\nb,6.7e-1\n")).shares["a"] == pytest.approx(0.33)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label,p\na,0.5\na,0.5\n", "line 3: label 'a' occurs twice"),
        ("label,p\na,x\n", "line 2, label 'a': 'x' is not a probability or a count"),
        ("label,p\na,-1\n", "line 2, label 'a': '-1' is not"),
        ("label,p\na,nan\n", "line 2, label 'a': 'nan' is not"),
        ("a,0\nb,0\n", "the target is empty"),
        ("a,0.5,0.5\n", "line 1: 3 cells; the target has two columns"),
    ],
)
def test_bad_targets_are_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_target(write(tmp_path / "t.csv", text))


def test_a_large_table_reads_as_numpy_would(tmp_path: Path) -> None:
    values = np.arange(3000).reshape(300, 10)
    lines = [",".join(["client", *map(str, range(10))])] + [
        f"c{i}," + ",".join(map(str, r)) for i, r in enumerate(values)
    ]
    counts = read_counts(write(tmp_path / "c.csv", "\n".join(lines)))
    assert counts.sizes.tolist() == values.sum(axis=1).tolist()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("5.000", "'5.000' may mean 5000 or 5; write the one that you mean, without a separator for thousands"),
        ("5,000", "'5,000' may mean 5000 or 5"),
        ("5.200", "'5.200' may mean 5200 or 5.2"),
        ("1.250.000", "'1.250.000' is not a number; write 1250000, without a separator for thousands"),
        ("5 000", "write 5000, without"),
        ("5\u202f000", "write 5000, without"),
        ("5'000", "write 5000, without"),
        ("1.250,0", "write 1250, without"),
        ("1,250.0", "write 1250, without"),
        ("1.250,5", "write a whole number, without"),
    ],
)
def test_counts_with_separators_for_thousands_are_never_read_as_small_numbers(
    tmp_path: Path, cell: str, message: str
) -> None:
    path = write(tmp_path / "c.csv", f"store;a;b\nx;1;2\ny;3;{cell}\n")
    with pytest.raises(InputError, match=re.escape("c.csv, line 3, label 'b': ") + ".*" + re.escape(message)):
        read_counts(path)
    with pytest.raises(InputError, match=re.escape(message)):
        read_target(write(tmp_path / "t.csv", f"a;800\nb;{cell}\n"))


def test_a_column_of_grouped_numbers_is_no_column_of_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 2, label 'a': '5 000' is not a number"):
        read_counts(write(tmp_path / "c.csv", "a;b\n5 000;2\n3;4\n"))
    with pytest.raises(InputError, match="line 2, label 'a': '5 000' is not a number"):
        read_target(write(tmp_path / "t.csv", "a;b;c\n5 000;2;3\n"), ["a", "b", "c"])


def test_whole_counts_may_have_decimals_that_are_zero(tmp_path: Path) -> None:
    counts = read_counts(write(tmp_path / "c.csv", "store;a;b\nx;5,0;0.000\ny;3.0000;4\n"))
    assert counts.sizes.tolist() == [5, 7]


@pytest.mark.parametrize(
    "text",
    ["a;0,125\nb;0.875\n", "a;12,500 %\nb;87,500 %\n", "a;12.500\nb;87.500\n", "a,0.125\nb,0.875\n"],
)
def test_shares_may_have_three_decimals(tmp_path: Path, text: str) -> None:
    assert read_target(write(tmp_path / "t.csv", text)).probabilities == pytest.approx({"a": 0.125, "b": 0.875})


def test_a_certain_label_may_have_three_decimals(tmp_path: Path) -> None:
    assert read_target(write(tmp_path / "t.csv", "a,1.000\nb,0.000\n")).shares == {"a": 1.0, "b": 0.0}
