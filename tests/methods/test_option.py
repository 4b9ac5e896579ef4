"""An option is declared in one place: the file of its rule or weighting."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedpals import InputError
from fedpals.data import Task
from fedpals.methods import METHODS, ClientRule, MethodEntry, build_method, option, option_keys
from fedpals.methods.option import declared_options
from fedpals.methods.pals import Pals
from fedpals.simulation.run import run_keys

SMALL = ("--task", "digits", "--model", "logistic", "--clients", "5", "--rounds", "1")

NEW = '''
from dataclasses import dataclass
from typing import ClassVar

from fedpals.methods import METHODS, ClientRule, MethodEntry, option


@dataclass(frozen=True)
class Shrunk(ClientRule):
    """Follows a fraction of the gradient."""

    name: ClassVar[str] = "shrunk"
    shrinkage: float = option(1.0, "Fraction of the gradient that Shrunk follows", symbol="σ", gt=0, le=1)

    def adjust_gradient(self, gradient, vector, start, correction):
        gradient.mul_(self.shrinkage)


METHODS["shrunk"] = MethodEntry("Shrunk", rule=Shrunk)

from fedpals.cli import main

main()
'''
"""A method that somebody adds: one class and one row. Then the command line, of which nothing else is changed."""


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new.py"
    path.write_text(NEW, encoding="utf-8")
    return path


def fedpals(new: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(new), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=new.parent, timeout=120, check=False)


def test_an_option_of_a_new_method_is_a_flag_with_help(new: Path) -> None:
    text = " ".join(fedpals(new, "run", "--help").stdout.replace("│", " ").split())
    assert "--shrinkage FLOAT" in text
    assert "Fraction of the gradient that Shrunk follows; 1 unless given." in text
    assert "oracle, shrunk, or joined" in text


def test_an_option_of_a_new_method_is_a_key_and_decides_the_result(new: Path) -> None:
    (new.parent / "config.toml").write_text('method = ["fedavg", "shrunk"]\nshrinkage = 0.25\n')
    done = fedpals(new, "run", "config.toml", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "Shrunk (σ 0.25)" in done.stdout
    plain, shrunk = (next(new.parent.glob(f"runs/digits-C3/{name}/0-*")) for name in ("fedavg", "shrunk-shrinkage0.25"))
    assert tomllib.loads((shrunk / "config.toml").read_text())["shrinkage"] == 0.25
    same = fedpals(new, "run", *SMALL, "--method", "shrunk")
    assert same.returncode == 0, same.stderr
    tested = [
        json.loads((folder / "metrics.jsonl").read_text())["raw"]["test"]
        for folder in (plain, next(new.parent.glob("runs/digits-C3/shrunk/0-*")), shrunk)
    ]
    assert tested[0] == tested[1] != tested[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "shrunk", "--shrinkage", "2"), "shrinkage is 2.0; it must be less than or equal to 1"),
        (("--shrinkage", "0.5"), "shrinkage is no option of the method 'fedpals', which takes lam, ess"),
        (("--shrinkag", "0.5"), "--shrinkage"),
    ],
)
def test_a_bad_option_of_a_new_method_is_refused_in_the_usual_words(
    new: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = fedpals(new, "run", *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_a_field_without_a_declaration_is_no_option() -> None:
    @dataclass(frozen=True)
    class Mine(ClientRule):
        known: int = option(3, "Something")
        internal: float = 0.5

    assert list(declared_options(Mine)) == ["known"]
    assert Mine() == Mine(known=3, internal=0.5)


def test_two_methods_cannot_declare_the_same_option(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Mine(ClientRule):
        ess: float = option(0.1, "Something else")

    monkeypatch.setattr("fedpals.methods.METHODS", {**METHODS, "mine": MethodEntry("Mine", rule=Mine)})
    with pytest.raises(TypeError, match="Mine declares the option 'ess', which is another method's"):
        option_keys()


def test_no_option_hides_another_key_of_a_run() -> None:
    others = {key.name for key in run_keys() if key.part != "options"}
    assert not option_keys().keys() & {"method", *Task.model_fields, *others}
    assert option_keys().keys() <= {key.name for key in run_keys()}


def test_bounds_hold_wherever_a_method_is_made() -> None:
    with pytest.raises(InputError, match="proximal_weight is -1; it must be greater than or equal to 0"):
        build_method("fedprox", {"proximal_weight": -1})


def test_fedpals_settles_what_it_is_not_told() -> None:
    assert (Pals(), Pals(lam=2.0).ess) == (Pals(ess=0.5), None)
    assert build_method("scaffold+fedpals").options == {"ess": 0.5}
    assert build_method("fedprox").options == {}
    with pytest.raises(InputError, match="give one of them"):
        Pals(lam=1.0, ess=0.5)
