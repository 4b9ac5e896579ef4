"""`fedpals run` and `fedpals demo` as a user types them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import indent

import pytest

from tests.cli.test_weights import EXECUTABLE, refused, run

QUICK = ("--task", "digits", "--model", "logistic", "--clients", "5", "--rounds", "2")


def test_two_methods_two_seeds_two_workers(tmp_path: Path) -> None:
    done = run(
        "run", *QUICK, "--method", "fedavg,fedpals", "--ess", "0.6", "--seeds", "2", "--workers", "2", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "FedPALS (ESS 0.6)" in " ".join(done.stdout.split())
    assert "±" in done.stdout
    folders = sorted(tmp_path.glob("runs/digits-C3/*/*"))
    assert len(folders) == 4
    for folder in folders:
        names = {path.name for path in folder.iterdir()}
        expected = {"config.toml", "metrics.jsonl", "weights.json", "result.json", "model.safetensors", "checkpoint"}
        assert expected <= names
    again = run("run", *QUICK, "--method", "fedavg,fedpals", "--ess", "0.6", "--seeds", "2", cwd=tmp_path)
    assert again.stdout == done.stdout


def test_workers_over_clients_of_one_run_change_nothing(tmp_path: Path) -> None:
    for workers in ("1", "2"):
        assert (
            run("run", *QUICK, "--method", "fedavg", "--workers", workers, "--out", workers, cwd=tmp_path).returncode
            == 0
        )
    one, two = (next(tmp_path.glob(f"{w}/*/*/*/result.json")).read_text() for w in ("1", "2"))
    assert json.loads(one) == json.loads(two)


def test_a_command_whose_workers_compute_does_not_load_torch_itself(tmp_path: Path) -> None:
    arguments = ["run", *QUICK, "--method", "fedavg", "--seeds", "2", "--workers", "2"]
    code = (
        "import sys\nfrom fedpals.__main__ import main\n"
        f"sys.argv = ['fedpals', *{arguments}]\n"
        "try:\n    main()\nfinally:\n    print('torch' in sys.modules, file=sys.stderr)\n"
    )
    script = tmp_path / "command.py"
    script.write_text(f"if __name__ == '__main__':\n{indent(code, '    ')}", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script.name], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False
    )
    assert "±" in done.stdout, done.stderr
    assert done.stderr.split()[-1] == "False"


def test_a_configuration_file_and_flags_that_take_precedence(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        'task = "digits"\nmethod = ["fedavg", "fedrs"]\nmodel = "logistic"\nrounds = 9\nseeds = 2\n'
    )
    assert run("run", "c.toml", "--rounds", "1", cwd=tmp_path).returncode == 0
    records = list(tmp_path.glob("runs/*/*/*/metrics.jsonl"))
    assert len(records) == 4
    assert all(len(path.read_text().splitlines()) == 1 for path in records)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "fedavgg"), "did you mean 'fedavg'"),
        (("--method", "fedavg,fedrs", "--ess", "0.5"), "ess is not an option of any of the methods"),
        (("--rounds", "0"), "rounds is 0"),
        (("--labels-per-client", "11"), "labels_per_client is 11"),
        (("--task", "digitz"), "digits"),
        (("--model", "nothing"), "nothing"),
        (("--device", "tpu9"), "tpu9"),
        (("--tracker", "paper"), "tracker 'paper' is not known"),
        (("missing.toml",), "missing.toml: no such file"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    assert words in refused("run", *arguments, cwd=tmp_path)


def test_unknown_keys_in_a_file_suggest_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("learning_rat = 0.1\n")
    assert "did you mean 'learning_rate'" in refused("run", "c.toml", cwd=tmp_path)
    (tmp_path / "d.toml").write_text("= 3")
    assert "d.toml: not a TOML file" in refused("run", "d.toml", cwd=tmp_path)


def test_one_failed_run_does_not_stop_the_others(tmp_path: Path) -> None:
    done = run("run", *QUICK, "--method", "fedavg,fedprox", "--proximal-weight", "1e30", cwd=tmp_path)
    assert done.returncode == 1
    told = " ".join(done.stdout.split())
    assert "failed: digits-C3 fedprox seed 0" in told
    assert "smaller learning_rate" in told
    assert "FedAvg" in told


def test_a_run_that_diverges_is_named_and_keeps_what_it_had(tmp_path: Path) -> None:
    done = run("run", *QUICK, "--method", "scaffold", "--server-step", "3e38", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    told = " ".join(done.stdout.split())
    assert "diverged: digits-C3 scaffold seed 0 after round 1; its results are those of the best round before" in told
    assert "smaller learning_rate than 0.1" in told


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_interrupted_sweep_ends_in_order_and_continues(workers: str, tmp_path: Path) -> None:
    command = [
        "run",
        "--task",
        "digits",
        "--rounds",
        "60",
        "--epochs",
        "3",
        "--method",
        "fedavg",
        "--seeds",
        "2",
        "--workers",
        workers,
    ]
    process = subprocess.Popen(
        [EXECUTABLE, *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*/*/*/checkpoint/*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, output + errors
    assert "Traceback" not in errors
    assert "The same command continues them" in " ".join(output.split())
    done = run(*command, cwd=tmp_path)
    assert done.returncode == 0
    for path in tmp_path.glob("runs/*/*/*/metrics.jsonl"):
        assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == list(range(1, 61))
