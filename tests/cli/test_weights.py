"""The command line as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "retail"
STORES, NEW_STORE = str(EXAMPLE / "stores.csv"), str(EXAMPLE / "new-store.csv")
EXECUTABLE = str(Path(sys.executable).with_name("fedpals"))


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [EXECUTABLE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


def refused(*arguments: str, cwd: Path | None = None) -> str:
    done = run(*arguments, cwd=cwd)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def test_the_worked_example() -> None:
    done = run("weights", STORES, "--target", NEW_STORE)
    assert done.returncode == 0
    for word in (
        "Mall North",
        "8,000",
        "FedAvg",
        "FedPALS",
        "covered",
        "ESS",
        "50.0%",
        "λ",
        "certificate",
        "proven",
        "█",
    ):
        assert word in done.stdout
    assert "effect of 16,775 of 33,550 samples" in " ".join(done.stdout.split())


def test_the_trade_off() -> None:
    done = run("weights", STORES, "--target", NEW_STORE, "--grid", "4")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines() if "%" in line] == [
        "31.9%", "45.5%", "59.2%", "72.8%", "86.4%", "100.0%",
    ]  # fmt: skip


def test_a_cap_on_the_weights() -> None:
    told = json.loads(run("weights", STORES, "--target", NEW_STORE, "--max-weight", "0.3", "--json").stdout)
    assert told["max_weight"] == max(told["solutions"][0]["alpha"]) == 0.3
    assert told["solutions"][0]["ess"] == pytest.approx(0.5)
    assert not told["covered"]
    shown = " ".join(
        run("weights", STORES, "--target", NEW_STORE, "--max-weight", "0.2", "--ess", "0.99").stdout.split()
    )
    assert "even the best mix with weights of at most 0.2 is wrong for 15 % of samples" in shown
    assert "92.3% = 30,969 samples (the largest possible with weights of at most 0.2)" in shown
    assert "at least 0.16666666666666666" in refused("weights", STORES, "--target", NEW_STORE, "--max-weight", "0.1")


def test_json_is_everything_and_nothing_else() -> None:
    done = run("weights", STORES, "--target", NEW_STORE, "--grid", "2", "--json")
    told = json.loads(done.stdout)
    assert told["clients"][0] == "Airport"
    assert told["labels"] == ["food", "clothing", "electronics"]
    assert told["covered"] is True
    assert len(told["solutions"]) == 4
    assert told["solutions"][-1]["lam"] == "inf"
    for solution in told["solutions"]:
        assert sum(solution["alpha"]) == pytest.approx(1)
        assert solution["certificate"]["error"] < 1e-9
    wrong = told["fedavg"]["wrong_mix"], told["solutions"][-1]["wrong_mix"]
    assert wrong == pytest.approx((0.3017, 0.3017), abs=1e-4)
    assert (told["coverage"].split(":")[0], told["shortage"], told["projection"]["wrong_mix"]) == ("covered", None, 0)


def test_json_has_the_sentences_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("food,0.2\nclothing,0.2\nelectronics,0.2\ntoys,0.4\n")
    told = json.loads(run("weights", STORES, "--target", "t.csv", "--json", cwd=tmp_path).stdout)
    shown = " ".join(run("weights", STORES, "--target", "t.csv", cwd=tmp_path).stdout.split())
    for sentence in (told["coverage"], told["shortage"], told["solutions"][0]["advice"]):
        assert sentence in shown
    wrong = [f"{100 * told[where]['wrong_mix']:.0f} %" for where in ("projection", "fedavg")]
    assert f"is wrong for {wrong[0]} of samples; no client has 'toys'" in told["coverage"]
    assert f"instead of {wrong[1]}" in told["solutions"][0]["advice"]


def test_a_target_of_counts_is_normalised_and_said_so(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("label,count\nfood,25\nclothing,30\nelectronics,45\n")
    counted = run("weights", STORES, "--target", "t.csv", cwd=tmp_path)
    assert "t.csv holds counts, 100 in all; they were normalised" in " ".join(counted.stdout.split())
    given = run("weights", STORES, "--target", NEW_STORE)
    assert given.stdout in counted.stdout


def test_an_ess_below_the_reachable_is_said_so() -> None:
    done = run("weights", STORES, "--target", NEW_STORE, "--ess", "0.05")
    assert "31.9%" in done.stdout
    assert "more than you asked for" in " ".join(done.stdout.split())


def test_a_label_that_no_client_has_is_reported_not_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("food,0.2\nclothing,0.2\nelectronics,0.2\ntoys,0.4\n")
    done = run("weights", STORES, "--target", "t.csv", cwd=tmp_path)
    assert done.returncode == 0
    assert "not covered" in done.stdout
    assert "no client has 'toys'" in " ".join(done.stdout.split())


def test_a_label_missing_from_the_target(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("food,0.5\nclothing,0.5\n")
    error = refused("weights", STORES, "--target", "t.csv", cwd=tmp_path)
    assert "t.csv" in error
    assert "'electronics'" in error
    assert "--missing-is-zero" in error
    assert run("weights", STORES, "--target", "t.csv", "--missing-is-zero", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "label;share\nfood;25 %\nclothing;30%\nelectronics;45 %\n",
        "\ufefffood\t0,25\nclothing\t0,30\nelectronics\t0,45\n",
        "food,clothing,electronics\n0.25,0.30,0.45\n",
        "store,food,clothing,electronics\nnew,25,30,45\n",
        "food,25.0\nclothing,30.0\nelectronics,45.0\n",
    ],
)
def test_targets_as_people_have_them(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    done = run("weights", STORES, "--target", "t.csv", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["target"] == pytest.approx([0.25, 0.30, 0.45])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("food,0.2\nclothing,0.3\nelectronics,0\n", "the probabilities sum to 0.5, which rounding does not explain"),
        ("food,0.5\nclothing,0.5\nelectronics,0.5\n", "sum to 1.5"),
        ("food,2O\nclothing,30\nelectronics,45\n", "line 1, label 'food': '2O' is not a probability or a count"),
        ("food,20%\nclothing,30%\nelectronics,40%\n", "the percentages sum to 90"),
        ("food,20%\nclothing,30\nelectronics,50%\n", "'30' has no percent sign, others have"),
        (
            "food,0.5\nclothin,0.2\nelectronics,0.3\n",
            "names the label 'clothin', which no client has; did you mean 'clothing'",
        ),
        ("food,1e400\nclothing,1\nelectronics,1\n", "'1e400' is not a probability or a count"),
        ("food,0e99999999999\nclothing,0.5\nelectronics,0.5\n", ""),
    ],
)
def test_wrong_targets_are_never_taken_for_right_ones(tmp_path: Path, target: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(target)
    if not message:
        assert run("weights", STORES, "--target", "t.csv", cwd=tmp_path).returncode == 0
        return
    error = refused("weights", STORES, "--target", "t.csv", cwd=tmp_path)
    assert message in error
    assert "set it to 0" not in error


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ("client,food,clothing,electronics\nA,1,,3\n", "line 2, label 'clothing': '' is not a number; write 0"),
        ("client;food;clothing;electronics\nA;1,0;2;x\n", "label 'electronics': 'x' is not a number; write digits"),
        ("client,food,clothing,electronics\n\n\nA,1,10%,3\n", "line 4, label 'clothing': '10%' is not a number"),
        ("client,food,clothing,electronics\nA,1,0x10,3\n", "'0x10' is not a number; write digits only"),
        ('client,food,clothing,electronics\nA,1,"1,000",3\n', "'1,000' may mean 1000 or 1; write the one that"),
        ("store,food,clothing,electronics,total\n1,1,2,3,6\n2,2,2,2,6\n", "'total' holds the sums of the others"),
        ("store,food,clothing,electronics\nA,1,2,3\nB,2,2,2\nTotal,3,4,5\n", "the row 'Total' holds the sums"),
    ],
)
def test_bad_cells_are_named_with_their_remedy(tmp_path: Path, counts: str, message: str) -> None:
    (tmp_path / "c.csv").write_text(counts)
    assert message in refused("weights", "c.csv", "--target", NEW_STORE, cwd=tmp_path)


def test_blank_cells_are_zero_where_said_and_ids_are_names(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("store,food,clothing,electronics\n17,5,,3\n18,1,9,\n")
    done = run("weights", "c.csv", "--target", NEW_STORE, "--blank-is-zero", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["clients"] == ["17", "18"]


def test_weights_as_a_table_for_spreadsheets(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("client,food,clothing,electronics\n=1+1,5,1,3\nB,1,9,4\n")
    run("weights", "c.csv", "--target", NEW_STORE, "--csv", "w.csv", cwd=tmp_path)
    header, first, _ = (tmp_path / "w.csv").read_text().splitlines()
    assert header == "client,n,FedAvg,FedPALS"
    assert first.startswith("'=1+1,9,0.39")


def test_a_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need the extra 'plots'")
    done = run("weights", STORES, "--target", NEW_STORE, "--plot", "deep/w.png", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "deep" / "w.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ess", "0.5", "--lam", "1"), "give only one of them"),
        (("--ess", "1.5"), "ess is 1.5"),
        (("--lam", "-1"), "lam is -1"),
        (("--grid", "0"), "--grid"),
        (("--plot", "w.gif"), "figures are written as"),
        (("--ess", "half"), "--ess"),
        (("--unknown",), "No such option"),
    ],
)
def test_bad_options(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    assert words in refused("weights", STORES, "--target", NEW_STORE, *arguments, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bad_files(tmp_path: Path) -> None:
    assert "none.csv: no such file" in refused("weights", "none.csv", "--target", NEW_STORE, cwd=tmp_path)
    assert "none.csv: no such file" in refused("weights", STORES, "--target", "none.csv", cwd=tmp_path)
    (tmp_path / "t.csv").write_text("food,0.2\nclothing,0.2\nelectronics,0.2\n")
    assert "sum to 0.6" in refused("weights", STORES, "--target", "t.csv", cwd=tmp_path)
    (tmp_path / "c.csv").write_text("client,food,clothing,electronics\nA,1,nan,2\n")
    assert "client 'A', label 'clothing': nan" in refused("weights", "c.csv", "--target", NEW_STORE, cwd=tmp_path)


def test_help_has_examples_and_version_answers() -> None:
    assert "Examples" in run("weights", "--help").stdout
    assert run("--version").stdout.startswith("fedpals 0.")
