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
        assert table.samples is None


def test_target_counts_are_normalised(tmp_path: Path) -> None:
    table = read_target(write(tmp_path / "t.csv", "label,n\na,30\nb,10\n"))
    assert table.shares == {"a": 0.75, "b": 0.25}
    assert table.samples == 40


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


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("store,a,b\nx,1,2\ny,3,4\nTotal,4,6\n", "Total"),
        ("store,a,b\nGrand total:,4,6\nx,1,2\ny,3,4\n", "Grand total:"),
        ("store,a,b\nx,1,2\nSumme,1,2\n", "Summe"),
        ("store,a,b\nx,1,2\ny,3,4\n,4,6\n", ""),
        ("store,a,b\nx,1,2\ny,3,4\nz,5,0\nMisc,9,6\n", "Misc"),
        ("a,b\n9,6\n1,2\n3,4\n5,0\n", "1"),
    ],
)
def test_a_row_of_sums_is_no_client(tmp_path: Path, text: str, row: str) -> None:
    message = f"c.csv: the row {row!r} holds the sums of the others and is no client; remove it"
    with pytest.raises(InputError, match=re.escape(message)):
        read_counts(write(tmp_path / "c.csv", text))


@pytest.mark.parametrize(
    "text",
    [
        "store,a,b\nx,1,2\ny,1,2\n",  # two equal clients
        "store,a,b\nx,1,2\nv,0,0\nw,0,0\nu,0,0\ny,1,2\n",  # and empty ones
        "store,a,b\nx,1,2\ny,3,4\nz,4,6\n",  # a sum by chance
        "store,a,b\nx,1,2\nbig,9,6\ny,3,4\nz,5,0\n",  # not where totals stand
        "store,a\nx,1\ny,2\nz,3\nbig,6\n",  # a single label
        "store,a,b\nTotal,1,2\n",  # a company of that name
        "store,a,b\nx,1,2\ny,3,4\nTotal,4,5\n",
    ],
)
def test_other_rows_are_clients(tmp_path: Path, text: str) -> None:
    assert read_counts(write(tmp_path / "c.csv", text)).shape[0] == text.count("\n") - 1


def test_a_total_column_has_many_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the column 'Gesamt' holds the sums"):
        read_counts(write(tmp_path / "c.csv", "store;a;b;Gesamt\nx;1;2;3\ny;3;4;7\n"))


@pytest.mark.parametrize(
    "text",
    [
        "a,30\nb,10\nTotal,40\n",
        "a,b,total\n30,10,40\n",
        "a;75 %\nb;25 %\nSumme;100 %\n",
        "a,0.75\nb,0.25\nTotal,1\n",
        "a,33.3\nb,33.3\nc,33.3\nTotal,100\n",
    ],
)
def test_a_total_is_no_label_of_a_target(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"t.csv: the entry '\w+' holds the sum of the others and is no label; remove"):
        read_target(write(tmp_path / "t.csv", text))


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("a,0.5\nall,0.5\n", None),
        ("a,5\nall,5\n", None),
        ("a,50\nb,20\nc,30\n", None),  # half of the samples
        ("a,0.25\nb,0.25\nall,0.5\n", None),  # they sum to 1 as they are
        ("a,10\nb,10\nall,20\n", ["a", "b", "all"]),  # the clients have this label
    ],
)
def test_half_of_the_samples_may_have_one_label(tmp_path: Path, text: str, labels: list[str] | None) -> None:
    assert 0.5 in read_target(write(tmp_path / "t.csv", text), labels).probabilities.values()


def test_numbers_that_are_no_target_are_told_every_form(tmp_path: Path) -> None:
    message = "the numbers sum to 90: probabilities would sum to 1, percentages to 100, and counts would be whole"
    with pytest.raises(InputError, match=message):
        read_target(write(tmp_path / "t.csv", "a,20.5\nb,69.5\n"))
    note = read_target(write(tmp_path / "t.csv", "a,20\nb,70\n")).note
    assert note is not None
    assert note.endswith("t.csv holds counts, 90 in all; they were normalised to probabilities.")
