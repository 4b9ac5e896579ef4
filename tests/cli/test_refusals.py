"""What `run`, `tune`, `reproduce` and `predict` refuse: one sentence with the file, the value and the remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import fedpals as fp
from fedpals.cli import app
from fedpals.engine.target_model import TargetModel
from fedpals.errors import InputError
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from tests.experiments.conftest import TINY, definition

SMALL = {"task": "digits", "clients": 4, "samples_per_client": 30, "rounds": 1, "held_out": 0.3}


def sentence(*arguments: str) -> str:
    """The error that a command ends with."""
    with pytest.raises(InputError) as caught:
        app(arguments, standalone_mode=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("seed = 1.5", "c.toml: seed is 1.5; it must be a valid integer"),
        ('seed = "abc"', "c.toml: seed is 'abc'; it must be a valid integer"),
        ("seed = true", "c.toml: seed is true; give a number or a name"),
        ("seeds = 0", "c.toml: seeds is 0; give how many there are to be, as 3"),
        ('seeds = "3"', "c.toml: seeds is '3'; give how many there are to be, as 3"),
        ("seeds = [0, 1]", "c.toml: seeds is [0, 1]; give how many there are to be, as 3"),
        ("seeds = true", "c.toml: seeds is True; give how many there are to be, as 3"),
        ("clients = 99999999999999999999", "c.toml: clients is 99999999999999999999; give a number of at most 18 digi"),
        ("rounds = 99999999999999999999", "c.toml: rounds is 99999999999999999999; give a number of at most 18 digits"),
    ],
)
@pytest.mark.parametrize("command", ["run", "tune"])
def test_values_of_a_file(
    command: str, line: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(line + "\n")
    assert expected in sentence(command, "c.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


def test_a_flag_is_not_blamed_on_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text("rounds = 3\n")
    assert sentence("run", "c.toml", "--rounds", "0").startswith("rounds is 0")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--task", "digits", "--seeds", "60"),
        ("tune", "--task", "digits"),
        ("reproduce", "tiny", "--experiments", "experiments"),
    ],
)
@pytest.mark.parametrize("device", ["gpu", "meta"])
def test_a_device_that_is_not_there_is_one_error_at_once(
    command: tuple[str, ...], device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    definition(tmp_path, TINY)
    told = sentence(*command, "--device", device)
    assert told.startswith(f"device '{device}' cannot be used (")
    assert told.endswith("; use cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["experiments"]


@pytest.mark.parametrize("arguments", [("tiny",), ("--list",), ()])
def test_a_folder_without_experiments(arguments: tuple[str, ...], tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nope")
    told = sentence("reproduce", *arguments, "--experiments", nowhere)
    assert told == f"{nowhere}: no experiments (*.toml) there; give their folder with --experiments"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("[0.05, 0.2]", "[]", "tiny.toml: grid.learning_rate is []; give at least 1"),
        ("{ ess = [0.4, 0.8] }", "{ ess = [] }", "tiny.toml: method.1.grid.ess is []; give at least 1"),
        ("{ ess = [0.4, 0.8] }", "[]", "tiny.toml: method.1.grid is []; it must be a valid dictionary"),
    ],
)
def test_an_empty_grid(old: str, new: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    definition(tmp_path, TINY.replace(old, new))
    assert expected in sentence("reproduce", "tiny", "--experiments", "experiments")


@pytest.fixture
def foreign_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a finished run whose network is a function of a module; importing that leaves a trace."""
    package = tmp_path / "theirs"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a')\n")
    (package / "net.py").write_text(
        "import torch\n\ndef build(shape, classes):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    record = simulate(Run.of(**SMALL, model="theirs.net:build"), tmp_path / "runs")
    for name in ("theirs", "theirs.net"):
        monkeypatch.delitem(__import__("sys").modules, name)
    (tmp_path / "ran").unlink()
    return Path(shutil.move(record.path, tmp_path / "run"))


@pytest.mark.filterwarnings("ignore:unclosed file")
def test_code_that_a_folder_names_is_run_only_for_those_who_trust_it(foreign_run: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (3, 1, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "x.npz", x=x)
    inputs = str(tmp_path / "x.npz")
    model = foreign_run / "model.safetensors"
    expected = "its network is theirs.net:build, and to open it runs that code; if you know where both come from, give"
    for arguments in (("predict", str(foreign_run), inputs), ("predict", str(model), inputs)):
        assert expected in sentence(*arguments)
    assert expected in sentence("estimate-target", str(foreign_run), inputs)
    with pytest.raises(InputError, match=r"give --trust \(trust=True in Python\)"):
        fp.load(model)
    Record.at(foreign_run)
    assert not (tmp_path / "ran").exists(), "code of the folder's module was run"
    app(["predict", str(foreign_run), inputs, "--trust"], standalone_mode=False)
    assert (tmp_path / "ran").exists()
    assert TargetModel.load(model, trust=True).predict(x).shape == (3,)
    app(["estimate-target", str(foreign_run), inputs, "--trust"], standalone_mode=False)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("1 / 0", r"model mine:build: mine raised ZeroDivisionError: division by zero; fix it"),
        ("def build(shape, classes: 3 3", r"model mine:build: mine raised SyntaxError: .*; fix it"),
    ],
)
def test_a_module_that_cannot_be_run(
    source: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
    with pytest.raises(InputError, match=expected):
        simulate(Run.of(**SMALL, model="mine:build"), tmp_path)
