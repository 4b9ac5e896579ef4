"""`fedpals reproduce` as a user types it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fedpals.experiments.experiment import DEFINITIONS, choose_points, read_experiment, reported_runs, tuning_runs
from tests.cli.test_weights import EXECUTABLE, refused, run
from tests.experiments.conftest import TINY, definition

OURS = ("reproduce", "tiny", "--experiments", "experiments")


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_list_names_every_experiment_with_its_scales(tmp_path: Path) -> None:
    process = run("reproduce", "--list", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert not list(tmp_path.iterdir())
    first = {line.split()[0] for line in process.stdout.splitlines() if line[:1].strip()}
    assert {path.stem for path in DEFINITIONS.glob("*.toml")} <= first
    experiment = read_experiment("pacs-noise", DEFINITIONS)
    runs, tuning = (
        len(reported_runs(experiment, "desk", choose_points(experiment, {}))),
        len(tuning_runs(experiment, "desk")),
    )
    (line,) = (line for line in process.stdout.splitlines() if line.startswith("pacs-noise"))
    assert line.split()[-3:] == ["desk", str(runs), str(tuning)]


def test_an_experiment_from_its_file_to_its_table(tmp_path: Path) -> None:
    definition(tmp_path, TINY.replace("[[row]]", "[[row]]\nreported = { FedAvg = [67.1, 22.0] }", 1))
    process = run(*OURS, "--workers", "1", cwd=tmp_path)
    assert process.returncode == 0, process.stdout + process.stderr
    output = words(process.stdout)
    for expected in (
        "tuning: 12 to compute",
        "runs: 6 to compute",
        "C = 2, as trained",
        "C = 2, +prior",
        "in the paper",
    ):
        assert expected in output
    assert re.search(r"FedAvg [\d.]+ ± [\d.]+ 67\.1 ± 22\.0", output)
    assert re.search(r"FedPALS [\d.]+ ± [\d.]+ [+-][\d.]+ ± [\d.]+ (better|equal|worse)", output)
    assert max(map(len, process.stdout.splitlines())) <= 120
    assert "Results: results/tiny; see them with: fedpals report results/tiny" in process.stdout
    folder = tmp_path / "results" / "tiny"
    assert {path.name for path in folder.iterdir()} == {
        "experiment.toml", "runs.jsonl", "tuning.jsonl", "provenance.json",
    }  # fmt: skip
    facts = json.loads((folder / "provenance.json").read_text())
    assert facts["command"] == "fedpals reproduce tiny --scale desk"
    assert {"processor", "instructions", "threads", "kernel", "torch"} <= set(facts)
    assert "--results for scale paper" in refused(*OURS, "--scale", "paper", cwd=tmp_path)
    assert json.loads((folder / "provenance.json").read_text())["scale"] == "desk"


def test_a_budget_in_hours_stops_and_the_status_says_what_is_left(tmp_path: Path) -> None:
    definition(tmp_path, TINY)

    def left() -> list[list[str]]:
        process = run(*OURS, "--status", cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        return [line.split() for line in process.stdout.splitlines()[1:]]

    assert left() == [["tiny", "desk", "tuning", "0", "0", "12", "?"], ["tiny", "desk", "reported", "0", "0", "6", "?"]]
    stopped = run(*OURS, "--workers", "1", "--hours", "0", cwd=tmp_path)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert "Stopped after 0 hours; 12 runs of this phase are left." in stopped.stdout
    assert left()[0][3:6] == ["0", "0", "12"]
    assert run(*OURS, "--workers", "1", "--hours", "1", cwd=tmp_path).returncode == 0
    assert [line[3:] for line in left()] == [["12", "0", "0", "0.0"], ["6", "0", "0", "0.0"]]
    for hours in ("-1", "nan", "inf"):
        assert "--hours" in refused(*OURS, "--hours", hours, cwd=tmp_path)


def test_without_a_scale_that_of_the_results_goes_on(tmp_path: Path) -> None:
    definition(tmp_path, TINY)
    facts = tmp_path / "results" / "tiny" / "provenance.json"
    for options in (("--scale", "paper"), ()):
        process = run(*OURS, *options, "--hours", "0", cwd=tmp_path)
        assert process.returncode == 0, process.stdout + process.stderr
        assert json.loads(facts.read_text())["command"] == "fedpals reproduce tiny --scale paper"
    assert run(*OURS, "--status", cwd=tmp_path).stdout.splitlines()[1].split()[:2] == ["tiny", "paper"]


def test_single_cells_are_computed_and_verified(tmp_path: Path) -> None:
    definition(tmp_path, TINY)
    cell = ("--row", "C = 2", "--method", "FedPALS", "--seed", "0", "--workers", "1")
    assert "compute it first, without --verify" in refused(*OURS, *cell, "--verify", cwd=tmp_path)
    process = run(*OURS, *cell, cwd=tmp_path)
    assert process.returncode == 0, process.stdout + process.stderr
    folder = tmp_path / "results" / "tiny"
    stored = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert [(s["row"], s["method"], s["run"]["seed"]) for s in stored] == [("C = 2", "FedPALS", 0)]
    tuning = [json.loads(line) for line in (folder / "tuning.jsonl").read_text().splitlines()]
    assert {(s["row"], s["method"]) for s in tuning} == {("C = 2", "FedPALS")}
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    process = run(*OURS, *cell, "--verify", cwd=tmp_path)
    assert process.returncode == 0, process.stdout + process.stderr
    output = words(process.stdout)
    assert "C = 2, FedPALS, " in output
    assert re.search(r"raw, seed 0 [\d.]+ [\d.]+ \+0\.00 same", output)
    assert "all bits must be the same" in output
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    # A number that was changed is noticed.
    stored[0]["selected"]["raw"]["test"]["accuracy"] += 0.01
    (folder / "runs.jsonl").write_text(json.dumps(stored[0]) + "\n")
    process = run(*OURS, *cell, "--verify", cwd=tmp_path)
    assert process.returncode == 1
    assert "-1.00 differs" in words(process.stdout)
    # Results of another processor may differ by a little.
    facts = json.loads((folder / "provenance.json").read_text())
    (folder / "provenance.json").write_text(json.dumps({**facts, "processor": "another"}))
    process = run(*OURS, *cell, "--verify", cwd=tmp_path)
    assert process.returncode == 0
    assert "-1.00 close" in words(process.stdout)
    # The names are those of what is stored, also where the definition has changed since.
    definition(tmp_path, TINY.replace('name = "FedPALS"', 'name = "Another"'))
    assert run(*OURS, *cell, "--verify", cwd=tmp_path).returncode == 0


def test_a_failing_run_ends_with_code_1_and_every_reason_is_told_once(tmp_path: Path) -> None:
    text = TINY.replace("[0.05, 0.2]", "[0.2]").replace("[0.4, 0.8]", "[0.4]")
    text += '[[method]]\nname = "broken"\nrun = { method = "fedprox", proximal_weight = 1e30, epochs = 4 }\n'
    text += '[[row]]\nname = "gone"\nrun = { task = "gone.npz" }\nmethods = ["FedAvg", "FedPALS"]\n'
    definition(tmp_path, text)
    process = run(*OURS, "--workers", "2", cwd=tmp_path)
    assert process.returncode == 1, process.stdout + process.stderr
    output = words(process.stdout)
    assert "failed: C = 2, broken, seed 0" in output
    assert "smaller learning_rate" in output
    assert "failed: gone, FedAvg, seed 0 and 3 more: " in output
    assert output.count("gone.npz") == 1
    assert len((tmp_path / "results" / "tiny" / "runs.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("reproduce", "tinny", "--experiments", "experiments"), "did you mean 'tiny'?"),
        ((*OURS, "--scale", "huge"), "scale is 'huge'; this experiment has desk, paper"),
        ((*OURS, "--row", "C = 22"), "--row is 'C = 22', which this experiment does not have; did you mean 'C = 2'?"),
        ((*OURS, "--method", "FedPAL"), "did you mean 'FedPALS'?"),
        ((*OURS, "--method", "xyz", "--verify"), "does not have; it has FedAvg, FedPALS"),
        (("reproduce", "tiny", "--experiments", "nowhere"), "nowhere: no experiments (*.toml) there"),
    ],
)
def test_bad_input_writes_nothing(arguments: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    definition(tmp_path, TINY)
    assert expected in refused(*arguments, cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["experiments"]


@pytest.mark.parametrize("command", [("run", "--task", "digits"), OURS])
def test_an_address_that_is_none(command: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'fedpals[ray]'")
    definition(tmp_path, TINY)
    process = run(*command, "--ray", "nonsense", cwd=tmp_path)
    assert process.returncode == 2
    assert "cannot connect to a Ray cluster at nonsense (" in words(process.stderr)
    assert "Traceback" not in process.stderr
    assert not (tmp_path / "runs").exists()


def test_an_interrupted_experiment_says_how_to_continue(tmp_path: Path) -> None:
    slow = TINY.replace("rounds = 2", "rounds = 150").replace("[0.05, 0.2]", "[0.2]").replace("[0.4, 0.8]", "[0.4]")
    definition(tmp_path, slow)
    process = subprocess.Popen(
        [EXECUTABLE, *OURS, "--workers", "1"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*/*/*/checkpoint/*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, output + errors
    assert "The same command continues." in words(output)
    assert "Traceback" not in errors
