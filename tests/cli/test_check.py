"""`fedpals check` as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedpals.errors import InputError
from fedpals.shift import Tally
from fedpals.simulation.record import Record
from tests.cli.test_weights import refused, run

QUICK = ("--task", "digits", "--model", "logistic", "--clients", "7", "--labels-per-client", "4", "--rounds", "6")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check")
    process = run("run", *QUICK, "--held-out", "0.3", cwd=folder)
    assert process.returncode == 0, process.stderr
    return next(folder.glob("runs/*/*/*"))


def with_tallies(finished: Path, folder: Path, confusions: np.ndarray) -> Path:
    """Copy the run, with other tallies: (M, K, K) confusions."""
    shutil.copytree(finished, folder)
    zeros = np.zeros(10)
    tallies = [Tally(zeros, zeros, confusion).to_json() for confusion in confusions]
    (folder / "tallies.json").write_text(json.dumps(tallies))
    return folder


def test_what_a_run_with_held_out_samples_says(finished: Path) -> None:
    process = run("check", str(finished))
    assert process.returncode == 0, process.stderr
    output = " ".join(process.stdout.split())
    tallies = [Tally.from_json(t) for t in json.loads((finished / "tallies.json").read_text())]
    samples = sum(int(t.samples.sum()) for t in tallies)
    assert f"digits-C4, FedPALS (ESS auto), seed 0: 6 clients, {samples} held-out samples" in output
    assert "green" in output or "amber" in output, "the partition is label shift by construction"
    assert "would be detected with 80 % probability" in output


def test_a_client_that_errs_differently_is_named(finished: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    alike = 0.9 * np.eye(10) + 0.01
    confusions = np.stack([rng.multinomial(np.full(10, 40), alike) for _ in range(6)])
    swapped = alike[:, [1, 0, *range(2, 10)]]
    confusions[4] = rng.multinomial(np.full(10, 40), swapped)
    folder = with_tallies(finished, tmp_path / "moved elsewhere", confusions)
    output = " ".join(run("check", str(folder)).stdout.split())
    assert "● red" in output
    assert "leave out client 4" in output
    assert "points" in output
    as_json = json.loads(run("check", str(folder), "--json").stdout)
    assert as_json["light"] == "red"
    assert as_json["broken_clients"][0] == "4"
    assert {"0", "1"} <= set(as_json["broken_labels"])
    assert {(b["client"], b["label"]) for b in as_json["breaks"]} >= {("4", "0"), ("4", "1")}
    assert as_json["leave_out"] == ["4"]
    assert as_json["advice"] in output


def test_clients_that_have_names_are_named(finished: Path, tmp_path: Path) -> None:
    confusions = np.tile(30 * np.eye(10, dtype=np.int64), (6, 1, 1))
    confusions[4] = confusions[4][[1, 0, *range(2, 10)]]
    folder = with_tallies(finished, tmp_path / "named", confusions)
    view = json.loads((folder / "weights.json").read_text())
    names = ["Nice", "Oslo", "Pisa", "Riga", "Turin", "Ulm"]
    (folder / "weights.json").write_text(json.dumps({**view, "clients": names}))
    output = " ".join(run("check", str(folder)).stdout.split())
    assert "leave out client Turin" in output
    assert json.loads(run("check", str(folder), "--json").stdout)["leave_out"] == ["Turin"]


def test_a_client_that_carries_the_weight_is_not_to_be_left_out(finished: Path, tmp_path: Path) -> None:
    confusions = np.tile(30 * np.eye(10, dtype=np.int64), (6, 1, 1))
    confusions[4] = confusions[4][[1, 0, *range(2, 10)]]
    folder = with_tallies(finished, tmp_path / "heavy", confusions)
    *rounds, last = (folder / "metrics.jsonl").read_text().splitlines()
    line = json.loads(last)
    line["weights"]["alpha"] = [0.6 if client == 4 else 0.08 for client in line["weights"]["participants"]]
    (folder / "metrics.jsonl").write_text("\n".join([*rounds, json.dumps(line), ""]))
    output = " ".join(run("check", str(folder)).stdout.split())
    assert "leave out" not in output
    assert "client 4 differs from the others, and carries 60 % of the weight of FedPALS" in output
    assert json.loads(run("check", str(folder), "--json").stdout)["advice"] in output


def test_a_folder_of_runs_has_a_line_per_run_and_says_which_to_trust(tmp_path: Path) -> None:
    settings = (*QUICK, "--method", "fedavg,fedpals", "--seeds", "2")
    for held_out in ((), ("--held-out", "0.3")):
        process = run("run", *settings, *held_out, *(() if held_out else ("--ess", "0.5")), cwd=tmp_path)
        assert process.returncode == 0, process.stderr
    process = run("check", str(tmp_path / "runs"))
    assert process.returncode == 0, process.stderr
    output = " ".join(process.stdout.split())
    expected = json.loads(run("check", str(tmp_path / "runs"), "--json").stdout)
    assert [(one["method"], one["seed"]) for one in expected["runs"]] == [
        ("FedAvg", 0), ("FedAvg", 1), ("FedPALS (ESS auto)", 0), ("FedPALS (ESS auto)", 1),
    ]  # fmt: skip
    for one in expected["runs"]:
        line = f"{one['method']} {one['seed']} ● {one['light']} {one['p']:.2g} {one['effect']:.2f}"
        assert f"{line} {100 * one['balanced_accuracy']:.1f}" in output
    last = expected["runs"][-1]
    assert json.loads(run("check", last["folder"], "--json").stdout).items() <= last.items()
    assert "Trust the runs whose model tells the labels apart" in output
    assert "Left out: 4 runs whose clients held nothing out." in output


def test_runs_that_held_nothing_out_are_refused_together(tmp_path: Path) -> None:
    process = run("run", *QUICK, "--ess", "0.5", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "the clients of none of the 1 runs held anything out" in refused("check", str(tmp_path))


def test_where_nothing_can_be_tested_it_says_so(finished: Path, tmp_path: Path) -> None:
    confusions = np.zeros((6, 10, 10), dtype=np.int64)
    confusions[range(6), range(6), range(6)] = 5
    folder = with_tallies(finished, tmp_path / "apart", confusions)
    assert "Label shift cannot be tested" in " ".join(run("check", str(folder)).stdout.split())
    assert json.loads(run("check", str(folder), "--json").stdout)["detectable"] is None


def test_bad_input(finished: Path, tmp_path: Path) -> None:
    error = refused("check", str(tmp_path))
    assert f"{tmp_path}: no finished run there or below; give the folder of a run" in error
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "tallies.json").write_text('[{"labels": 10}]')
    with pytest.raises(InputError, match=r"tallies\.json: the record is damaged"):
        Record.at(copy).tallies()
    (copy / "tallies.json").unlink()
    assert "held nothing out to tell about the model; run it with --held-out 0.1" in refused("check", str(copy))
    (copy / "result.json").unlink()
    with pytest.raises(InputError, match="not finished; the command that started it continues it"):
        Record.at(copy)
    (copy / "config.toml").write_text("rounds = 0")
    with pytest.raises(InputError, match=r"not the configuration of a run .*rounds is 0"):
        Record.at(copy)
