"""The architecture as a test: imports point down only, and what needs no torch loads none.

`pytest tests/test_layers.py -s -k map` prints the map.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import FrameType

import pytest

import fedpals
from fedpals.simulation.pools import SerialPool
from fedpals.simulation.record import Record
from fedpals.simulation.rounds import Simulation
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker
from tests.runs import SMALL

SOURCE = Path(fedpals.__file__).parent

LAYERS = {
    "__main__ > cli > study": "what users call, from a shell and from Python; knows everything, and nobody knows it",
    "report": "tables, figures and pages, from records and results alone; trains nothing",
    "experiments": "the paper's experiments: TOML to runs to results; knows what a run is, not how clients train",
    "simulation | flower | nvflare": "the engines: how clients are reached and what is recorded; none knows another",
    "engine": "what engines share: the client step, the server's round, evaluation, last layer, checkpoints",
    "methods | models > data": "client rules and weightings; networks and features; sources, partitions, federations",
    "shift": "what follows from label shift: corrections, heads, estimates of risk and of T, the test of it",
    "weights > labels > config > files > rng | errors": "the mathematics, label counts, and the ground all stands on",
}
"""From the top down, what each may know. In a layer, A > B: A may know B; A | B: neither knows the other."""

ORDER = list(chain.from_iterable(layer.split(" > ") for layer in LAYERS))


def level(package: str) -> int:
    return next(i for i, names in enumerate(ORDER) if package in names.split(" | "))


def arrows() -> set[tuple[str, str]]:
    """Who imports whom, among the packages and modules at the top of the source tree."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        owner = path.relative_to(SOURCE).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
                if node.module == "fedpals":
                    names = [f"fedpals.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            found |= {(owner, name.split(".")[1]) for name in names if name.startswith("fedpals.")}
    return {(owner, imported) for owner, imported in found if owner not in {"__init__", imported}}


def test_map() -> None:
    assert len(LAYERS) <= 8
    tops = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert tops - {"__init__"} == {name for names in ORDER for name in names.split(" | ")}
    width = max(map(len, LAYERS))
    sys.stdout.write("\n" + "\n".join(f"{layer:<{width}}  {meaning}" for layer, meaning in LAYERS.items()) + "\n")


@pytest.mark.parametrize(("owner", "imported"), sorted(arrows()))
def test_imports_point_down(owner: str, imported: str) -> None:
    assert level(owner) < level(imported), f"{owner} must not import {imported}"


def test_a_round_touches_the_engine_and_what_lies_below(tmp_path: Path) -> None:
    """As docs/architecture.md says: simulation, engine, methods, weights, shift and the ground; nothing else."""
    simulation, record = started(tmp_path)
    simulation.advance()  # prepares samples, which later rounds keep
    called: set[str] = set()

    def watch(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            called.add(path.relative_to(SOURCE).with_suffix("").parts[0])

    sys.setprofile(watch)
    try:
        record.append(simulation.advance())
        simulation.state.save(record.checkpoint)
    finally:
        sys.setprofile(None)
    assert called <= {"simulation", "engine", "methods", "weights", "shift", "labels", "files", "rng"}
    assert called >= {"simulation", "engine", "methods", "shift"}


def started(folder: Path) -> tuple[Simulation, Record]:
    run = Run.of({**SMALL, "held_out": 0.2, "participation": 1.0})
    record, worker = Record(run, folder), Worker(run)
    record.begin()
    return Simulation(worker, SerialPool(worker)), record


LIGHT = [
    "fedpals",
    "fedpals.methods",
    "fedpals.cli",
    "fedpals.simulation.run",
    "fedpals.simulation.record",
    "fedpals.experiments.results",
    "fedpals.report.page",
]


@pytest.mark.parametrize("module", LIGHT)
def test_what_needs_no_torch_loads_none(module: str) -> None:
    code = f"import sys, {module}; print(*({{'torch', 'flwr', 'nvflare', 'matplotlib', 'sklearn'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


BEFORE_TRAINING = """
import gc, sys
from fedpals.cli import main
from fedpals.simulation.rounds import Simulation

def advance(simulation):
    print("loaded:", *sys.modules)
    print("collecting:", gc.isenabled(), gc.get_freeze_count() > 0)
    raise SystemExit

Simulation.advance = advance
main()
"""
SLOW = {
    *(f"scipy.{part}" for part in ("sparse", "linalg", "special", "optimize", "stats", "spatial", "fft")),
    *(
        "numpy.f2py",
        "numpy.testing",
        "numba",
        "sklearn",
        "matplotlib",
        "flwr",
        "nvflare",
        "ray",
        "sympy",
        "torch._dynamo",
    ),
}
"""What takes long to load, and is loaded where it is used."""


def test_a_run_reaches_its_first_round_without_what_is_slow_to_load(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEFORE_TRAINING, "run", "--task", "digits", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    (loaded,) = (line.split()[1:] for line in done.stdout.splitlines() if line.startswith("loaded:"))
    assert "torch" in loaded
    assert SLOW & set(loaded) == set()
    assert "collecting: True True" in done.stdout, "what torch loads is exempt from garbage collection, the rest is not"


def test_modules_are_short_enough_to_read() -> None:
    lines = {path.relative_to(SOURCE).as_posix(): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > 400} == {}
