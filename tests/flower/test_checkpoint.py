"""The checkpoint of a deployment: one writer, one reader, one step back, and tried before any training."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from safetensors.torch import save_file
from torch import nn

from fedpals.engine import checkpoint
from fedpals.engine.server import DivergedError
from fedpals.errors import InputError
from fedpals.flower import FedAvg
from fedpals.flower.session import FlowerState
from fedpals.rng import generator
from tests.flower.grids import Spoil
from tests.flower.scene import QUIET, TARGET, StoppedError, four, start

FLOATS = ArrayRecord({"weight": Array(np.zeros(4, np.float32))})


def fedavg(path: Path, **settings: Any) -> FedAvg:
    return FedAvg(TARGET, checkpoint=path, **{**QUIET, **settings})


def test_two_servers_do_not_share_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"

    def second(number: int, _: ArrayRecord) -> None:
        if number == 1:
            with pytest.raises(InputError, match=r"state.safetensors: another server writes this checkpoint"):
                fedavg(path).start(four(), start(), num_rounds=3)
            fedavg(tmp_path / "other.safetensors").start(four(), start(), num_rounds=1)

    fedavg(path).start(four(), start(), num_rounds=2, evaluate_fn=second)
    assert FlowerState.load(path).round == 2
    assert not [file for file in tmp_path.iterdir() if "lock" in file.name]


def test_another_process_does_not_share_it_either(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    hold = "import sys; from pathlib import Path; from fedpals.engine.checkpoint import sole_writer\n"
    hold += "with sole_writer(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", hold, str(path)], **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="another server"):
            fedavg(path).start(four(), start(), num_rounds=1)
        process.kill()
    fedavg(path).start(four(), start(), num_rounds=1)


def test_a_server_that_failed_gives_the_checkpoint_up(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"

    def stop(number: int, _: ArrayRecord) -> None:
        if number == 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        fedavg(path).start(four(), start(), num_rounds=2, evaluate_fn=stop)
    fedavg(path).start(four(), start(), num_rounds=2)
    assert FlowerState.load(path).round == 2


def test_a_link_leads_to_one_file_with_one_lock_and_one_previous_state(tmp_path: Path) -> None:
    path, link = tmp_path / "disk" / "state.safetensors", tmp_path / "link.safetensors"
    path.parent.mkdir()
    link.symlink_to(path)

    def second(number: int, _: ArrayRecord) -> None:
        if number == 1:
            with pytest.raises(InputError, match="another server writes this checkpoint"):
                fedavg(link).start(four(), start(), num_rounds=1)

    fedavg(path).start(four(), start(), num_rounds=2, evaluate_fn=second)
    fedavg(link).start(four(), start(), num_rounds=3)
    assert link.is_symlink()
    assert [FlowerState.load(file).round for file in (checkpoint.previous(path), path)] == [2, 3]
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == [link.name]


def test_nobody_else_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    mask = os.umask(0o022)
    try:
        fedavg(path).start(four(), start(), num_rounds=2)
    finally:
        os.umask(mask)
    for one in (path, checkpoint.previous(path)):
        assert stat.S_IMODE(one.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["file/state.safetensors", "folder"])
def test_one_that_cannot_be_written_is_refused_before_any_training(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    grid = four()
    with pytest.raises(InputError, match=f"{name}.*choose another folder|{name}: is a folder"):
        fedavg(tmp_path / name).start(grid, start(), num_rounds=1)
    assert not grid.sent


def test_the_previous_state_is_kept_beside_the_last(tmp_path: Path) -> None:
    path = tmp_path / "run.v1.safetensors"
    fedavg(path).start(four(), start(), num_rounds=1)
    assert not checkpoint.previous(path).exists()
    fedavg(path).start(four(), start(), num_rounds=4)
    assert checkpoint.previous(path).name == "run.v1-previous.safetensors"
    assert (FlowerState.load(checkpoint.previous(path)).round, FlowerState.load(path).round) == (3, 4)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.v1-previous.safetensors", "run.v1.safetensors"]


def test_without_links_it_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "state.safetensors"
    fedavg(path).start(four(), start(), num_rounds=2)
    assert FlowerState.load(checkpoint.previous(path)).round == 1


def spoiled(value: float) -> Spoil:
    """Updates of a liar, and of whoever continues from them: finite first, then overflowing."""

    def lie(reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            reply.content["arrays"] = ArrayRecord({"weight": Array(np.full(4, value, np.float32))})
        return reply

    return lie


def test_a_poisoned_run_says_how_to_go_back_and_then_does(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    grid = four()

    def poison(number: int, _: ArrayRecord) -> None:
        if number == 2:
            grid.spoil = {grid.node(0): spoiled(1e30)}
        if number == 3:  # from parameters of 1e30 on, nobody computes anything finite
            grid.spoil = dict.fromkeys(grid.contexts, spoiled(np.nan))

    with pytest.raises(DivergedError, match="round 4: no client returned a usable update") as error:
        fedavg(path, outliers="keep").start(grid, FLOATS, num_rounds=5, evaluate_fn=poison)
    command = f"mv {checkpoint.previous(path)} {path}"
    assert command in str(error.value)
    assert np.abs(FlowerState.load(path).vector.numpy()).max() > 1e28
    subprocess.run(command.split(), check=True)
    grid.spoil = {}
    result = fedavg(path, outliers="keep").start(grid, FLOATS, num_rounds=5)
    expected = FedAvg(TARGET, outliers="keep", **QUIET).start(four(), FLOATS, num_rounds=5)
    assert np.array_equal(result.arrays["weight"].numpy(), expected.arrays["weight"].numpy())


def test_a_flipped_bit_anywhere_is_an_error_that_names_the_state_before(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    fedavg(path).start(four(), FLOATS, num_rounds=2)
    good, rng = path.read_bytes(), generator(0, "flipped")
    for position in rng.integers(8 * len(good), size=100).tolist():
        spoilt = bytearray(good)
        spoilt[position // 8] ^= 1 << position % 8
        path.write_bytes(spoilt)
        with pytest.raises(InputError, match=rf"{path}: .*; go back to the .* mv {checkpoint.previous(path)} {path}"):
            FlowerState.load(path)
    path.write_bytes(good)
    assert FlowerState.load(path).round == 2


def test_without_a_state_before_a_damaged_one_is_to_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    fedavg(path).start(four(), FLOATS, num_rounds=1)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match=f"{path}: is damaged, .*; delete it, and train again"):
        fedavg(path).start(four(), FLOATS, num_rounds=2)


def test_one_without_a_checksum_is_that_of_an_earlier_version(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_file({"vector": torch.zeros(4)}, path, {"facts": '{"round": 1}'})
    with pytest.raises(InputError, match=f"{path}: has no checksum, .* earlier .*; delete it"):
        fedavg(path).start(four(), FLOATS, num_rounds=2)


def test_every_kind_of_tensor_has_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "kinds.safetensors"
    kinds = (torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float64)
    tensors = {str(kind): torch.ones(3, 2).T.to(kind) for kind in kinds}
    tensors |= {"one": torch.tensor(1.5), "none": torch.zeros(0, 3), "part": nn.Parameter(torch.ones(2))}
    checkpoint.save(path, tensors, {"one": (1, float("nan")), "by number": {3: "é"}})
    read, facts = checkpoint.load(path)
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    assert list(facts) == ["one", "by number"]


Change = Callable[[dict[str, torch.Tensor], dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _, facts: facts.update(round="2"), "its round is '2'"),
        (lambda _, facts: facts.update(round=-2), "its round is -2"),
        (lambda _, facts: facts.update(round=1.5), "its round is 1.5"),
        (lambda tensors, _: tensors.update(vector=tensors["vector"][:3]), "its model has 3 parameters instead of 4"),
        (lambda tensors, _: tensors.update(vector=tensors["vector"].reshape(1, -1)), "not one vector of finite"),
        (lambda tensors, _: tensors.update(vector=tensors["vector"] * np.nan), "not one vector of finite"),
        (lambda tensors, _: tensors.update(average=tensors["vector"][:3].clone()), r"its average has the shape \(3,\)"),
        (lambda tensors, _: tensors.pop("spent"), "does not have what its clients have spent"),
        (lambda _, facts: facts.pop("noise_key"), "or the noise's key"),
        (lambda tensors, _: tensors.update(spent=tensors["spent"][:3]), "3 of its 4 clients have spent"),
        (lambda tensors, _: tensors.update(spent=tensors["spent"].repeat(2)), "8 of its 4 clients have spent"),
        (lambda tensors, _: tensors.update(spent=tensors["spent"] * np.nan), "not one number of at least 0 for each"),
        (lambda tensors, _: tensors.update(spent=-tensors["spent"]), "not one number of at least 0 for each"),
    ],
)
def test_parts_that_do_not_belong_together_are_an_error(change: Change, reason: str, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    path = tmp_path / "state.safetensors"
    private: dict[str, Any] = {"clip_update": 1.0, "noise_multiplier": 1.0}
    fedavg(path, **private).start(four(), FLOATS, num_rounds=1)
    tensors, facts = checkpoint.load(path)
    change(tensors, facts)
    checkpoint.save(path, tensors, facts)
    with pytest.raises(InputError, match=rf"{path}: not a checkpoint of such a run \(.*{reason}.*\); delete it"):
        fedavg(path, **private).start(four(), FLOATS, num_rounds=2)
