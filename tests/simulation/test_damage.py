"""Files of a run that are cut, empty, foreign or do not agree: computed again with the same bits, and said so."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpals.engine import checkpoint
from fedpals.errors import FedpalsError, InputError
from fedpals.simulation import record as records
from fedpals.simulation.event import Event
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings
from fedpals.simulation.simulator import simulate
from fedpals.simulation.sweep import sweep

SMALL: dict[str, Any] = {"task": "digits", "model": "logistic", "clients": 4, "samples_per_client": 30, "held_out": 0.3}
RUN = Run.of(**SMALL, rounds=4, ess=0.5)
OTHER = Run.of(**SMALL, rounds=4, seed=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two finished runs, to be copied."""
    folder = tmp_path_factory.mktemp("runs")
    for run in (RUN, OTHER):
        simulate(run, folder)
    return folder


def contents(record: Record) -> dict[str, Any]:
    files: dict[str, Any] = record.pack()
    lines = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
    return {**files, "metrics.jsonl": [{**line, "seconds": 0} for line in lines]}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00nonsense")


def shorter(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))


def longer(path: Path) -> None:
    path.write_text(path.read_text() * 2)


def missing_round(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:1] + lines[2:] + lines[-1:]))


def foreign(path: Path) -> None:
    other = Path(str(path).replace(str(RUN.folder), str(OTHER.folder)))
    path.write_bytes(other.read_bytes())


def without_facts(path: Path) -> None:
    tensors, _ = checkpoint.load(path)
    checkpoint.save(path, tensors, {"round": 4})


RESULT, METRICS, STATE = "result.json", "metrics.jsonl", "checkpoint/state.safetensors"


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        (RESULT, cut, "is computed again: .*result.json: the record is damaged"),
        (RESULT, empty, "is computed again: .*result.json: the record is damaged"),
        (RESULT, binary, "is computed again: .*result.json: the record is damaged"),
        (METRICS, cut, "is computed again: .*metrics.jsonl: the record is damaged"),
        (METRICS, shorter, "is computed again: .*metrics.jsonl: 2 lines, which are not those of 4 rounds"),
        (METRICS, longer, "is computed again: .*metrics.jsonl: 8 lines, which are not those of 4 rounds"),
        (METRICS, missing_round, "is computed again: .*metrics.jsonl: 4 lines, which are not those of 4 rounds"),
        ("weights.json", cut, "is computed again: .*weights.json: the record is damaged"),
        ("config.toml", cut, "is computed again: .*config.toml: the configuration of a run without its end"),
        ("config.toml", foreign, "is computed again: .*config.toml: the configuration of another run"),
        ("tallies.json", empty, "is computed again: .*tallies.json: the record is damaged"),
    ],
)
def test_a_finished_run_with_a_damaged_file_is_computed_again_and_says_so(
    name: str, spoil: Callable[[Path], None], said: str, resume: bool, finished: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(finished, runs)
    spoil(runs / RUN.folder / name)
    notes: list[str] = []

    def watch(event: Event) -> None:
        notes.extend([event.text] if event.text else [])

    outcome = sweep([RUN, OTHER], SweepSettings(runs, resume=resume), watch)
    assert not outcome.failed
    assert re.search(said, notes[0])
    assert contents(outcome.records[0]) == contents(Record(RUN, finished))


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        (STATE, cut, "starts over: .*state.safetensors: not a checkpoint of this program"),
        (STATE, empty, "starts over: .*state.safetensors: not a checkpoint of this program"),
        (STATE, foreign, "starts over: .*state.safetensors: the checkpoint is that of another run"),
        (STATE, without_facts, "starts over: .*state.safetensors: not a checkpoint of such a run"),
        (METRICS, shorter, "starts over: .*metrics.jsonl: 2 lines, which are not those of the 4 rounds of the check"),
        (METRICS, missing_round, "starts over: .*metrics.jsonl: 4 lines, which are not those of the 4 rounds"),
        (METRICS, cut, "starts over: .*metrics.jsonl"),
        (METRICS, binary, "starts over: .*metrics.jsonl: the record is damaged"),
        (METRICS, Path.unlink, "starts over: .*metrics.jsonl: the record is damaged"),
        (METRICS, longer, None),
        ("config.toml", Path.unlink, None),
    ],
)
def test_an_unfinished_run_is_taken_up_at_the_last_state_that_record_and_checkpoint_have(
    name: str, spoil: Callable[[Path], None], said: str | None, finished: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(finished, runs)
    (runs / RUN.folder / RESULT).unlink()
    spoil(runs / RUN.folder / name)
    notes: list[str] = []
    record = simulate(RUN, runs, note=notes.append)
    assert len(notes) == (said is not None)
    assert said is None or re.search(said, notes[0])
    assert contents(record) == contents(Record(RUN, finished))


def test_a_run_that_was_told_to_start_over_does_not_go_back_to_its_old_checkpoint(
    finished: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(finished, runs)
    (runs / RUN.folder / RESULT).unlink()
    answers = iter([False, True])
    record = simulate(RUN, runs, resume=False, checkpoint_every=3, stop=lambda: next(answers))
    assert not record.checkpoint.is_file()
    assert contents(simulate(RUN, runs)) == contents(Record(RUN, finished))


@pytest.mark.parametrize("name", [RESULT, "config.toml"])
def test_a_folder_that_is_opened_names_what_is_damaged(name: str, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished / RUN.folder, folder)
    cut(folder / name)
    with pytest.raises(InputError, match=rf"{folder / name}: "):
        Record.at(folder)


def test_a_full_disk_fails_its_run_and_the_others_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the first run writes its second round, and has room again for the other."""
    monkeypatch.setattr(records, "_SYNC_SECONDS", 0)
    fsync, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 6:  # configuration, server's view, metrics, round 1, checkpoint, round 2
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    outcome = sweep([RUN, OTHER], SweepSettings(tmp_path))
    assert list(outcome.failed) == [0]
    assert re.fullmatch(
        r".*metrics\.jsonl: cannot be written \(No space left on device\); free some space, or choose another folder",
        str(outcome.failed[0]),
    )
    assert outcome.records[1].finished
    assert not sweep([RUN, OTHER], SweepSettings(tmp_path)).failed


OWN = """
import torch

class Net(torch.nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = torch.nn.Linear(64, classes)

    def forward(self, x):
        if len(x) > 1:
            raise LookupError("no such\\nplace")
        return self.layer(x.flatten(1))

def broken(shape, classes):
    return {}["nothing"]
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_raises_is_named_with_its_error_and_the_others_go_on(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_net.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    raising, broken = ({**SMALL, "model": f"own_net:{name}"} for name in ("Net", "broken"))
    runs = [Run.of(**raising, rounds=1), Run.of(**broken, rounds=1), Run.of(**SMALL, rounds=1)]
    outcome = sweep(runs[: 3 if workers == 1 else 1], SweepSettings(tmp_path / "runs", workers))
    assert type(outcome.failed[0]) is FedpalsError
    assert str(outcome.failed[0]) == "model own_net:Net raised LookupError: no such place (own_net.py, line 11); fix it"
    if workers == 1:
        assert "model own_net:broken raised KeyError: 'nothing'" in str(outcome.failed[1])
        assert outcome.records[2].finished
