"""Apps to publish, by Flower's own rules: the example, and what `fedpals flower new` creates, which also trains."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_description, _validate_files
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files
from safetensors.torch import load_file

from fedpals.config import read_toml
from fedpals.errors import InputError
from fedpals.flower.new_app import create_app
from tests.flower.grids import FakeGrid

# Flower's own rules use a name of pathspec that is going away.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"


@pytest.fixture
def created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new app whose package can be imported."""
    folder = tmp_path / "My-Hospitals"
    create_app(folder, "alice")
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "my_hospitals"]:
        del sys.modules[name]


def check_publishable(folder: Path) -> None:
    paths = _collect_file_paths(folder)
    _validate_files(paths)
    _validate_description(read_toml(folder / "pyproject.toml")["project"]["description"])
    assert {"README.md", "LICENSE", "pyproject.toml"} <= {path.name for path in paths}
    _, metadata = build_fab_from_files(collect_files(folder))
    assert (metadata.fab_format_version, metadata.flwr_version_min) == (1, "1.41")


def test_the_example_can_be_published() -> None:
    check_publishable(EXAMPLE)


def test_a_new_app_is_built_by_flower(created: Path, tmp_path: Path) -> None:
    check_publishable(created)
    flwr = str(Path(sys.executable).with_name("flwr"))
    process = subprocess.run(
        [flwr, "build", "--app", str(created)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "missing" not in process.stdout
    assert len(list(tmp_path.glob("alice.My-Hospitals.1-0-0.*.fab"))) == 1


def run(folder: Path, nodes: list[dict[str, Any]], **settings: Any) -> FakeGrid:
    """Run a new app's server with nodes in this process."""
    config = read_toml(folder / "pyproject.toml")["tool"]["flwr"]["app"]["config"]
    config |= {"rounds": 2, "wait": 0.1, **{key.replace("_", "-"): value for key, value in settings.items()}}
    grid = FakeGrid(import_module("my_hospitals.client_app").app, [])
    for number, node in enumerate(nodes):
        grid.contexts[7 + number] = Context(1, 7 + number, node, RecordDict(), config)
    import_module("my_hospitals.server_app").main(grid, Context(1, 1, {}, RecordDict(), config))
    return grid


EXAMPLE_NODES = [{"partition-id": i, "num-partitions": 2} for i in range(2)]


def test_a_new_app_trains_two_rounds(created: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "model.safetensors"
    grid = run(created, EXAMPLE_NODES, out=str(out))
    assert len(grid.kinds("train")) == 4
    assert any("is the best by the nodes' estimates" in record.getMessage() for record in log.records)
    task = import_module("my_hospitals.task")
    network = task.network()
    network.load_state_dict(load_file(out))
    x, y = (torch.cat(parts) for parts in zip(*map(task.samples, EXAMPLE_NODES), strict=True))
    frequent = y < 5  # in the target
    assert (network(x[frequent]).argmax(1) == y[frequent]).float().mean() > 0.5


@pytest.mark.parametrize(("ess", "asked"), [("auto", 4), (0.5, 0), (1, 0), ("0.5", 0)])
def test_a_new_app_takes_a_word_or_a_number(ess: str | float, asked: int, created: Path) -> None:
    assert read_toml(created / "pyproject.toml")["tool"]["flwr"]["app"]["config"]["ess"] == "auto"
    grid = run(created, EXAMPLE_NODES, ess=ess)
    assert len(grid.kinds("query.comparison")) == asked
    assert len(grid.kinds("train")) >= 2


def test_a_new_app_says_what_it_needs(created: Path) -> None:
    with pytest.raises(InputError, match=r"no client holds samples out.*give a number, as ess=0\.5"):
        run(created, EXAMPLE_NODES, held_out=0.0)
    with pytest.raises(InputError, match="ess is 'fast'"):
        run(created, EXAMPLE_NODES, ess="fast")


def test_a_new_app_takes_a_node_s_own_file_and_the_server_s_target(created: Path, tmp_path: Path) -> None:
    nodes: list[dict[str, Any]] = []
    for number in range(2):
        path = tmp_path / f"{number}.npz"
        x = np.random.default_rng(number).normal(size=(40, 64))
        np.savez(path, x=x, y=np.arange(40) % 5 + 5 * number)
        nodes.append({"data": str(path)})
    target = tmp_path / "target.csv"
    target.write_text("label,share\n" + "".join(f"{label},0.2\n" for label in range(5)))
    grid = run(created, nodes, target=str(target), held_out=0.0, ess=0.3)
    assert len(grid.kinds("train")) >= 2
    target.write_text("label,share\ncat,1\n")
    with pytest.raises(ValueError, match="'cat' is no label"):
        run(created, nodes, target=str(target))


def test_a_node_without_data_says_so(created: Path, log: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Exception, match="node"):
        run(created, [{}, {}])
    assert "this node has no data" in log.text


@pytest.mark.parametrize("name", ["1st", "a_b", "a b", "ä", "x" * 33, "json", "class", "torch", "fedpals"])
def test_names_that_cannot_be_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name"):
        create_app(tmp_path / name, "me")
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_or_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="exists already"):
        create_app(tmp_path / "mine", "me")
    with pytest.raises(InputError, match="--publisher"):
        create_app(tmp_path / "other", "me/you")
    monkeypatch.setattr("fedpals.flower.new_app._write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(InputError, match="free some space"):
        create_app(tmp_path / "other", "me")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_command_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedpals", "flower", "new", str(tmp_path / "shops"), "--publisher", "bob"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert f"fedpals flower up {tmp_path / 'shops'}" in process.stdout
    assert read_toml(tmp_path / "shops" / "pyproject.toml")["tool"]["flwr"]["app"]["publisher"] == "bob"
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
