from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedpals import InputError
from fedpals.simulation import trackers
from fedpals.simulation.record import RoundLine
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings
from fedpals.simulation.sweep import sweep
from tests.runs import lines_of

RUN = Run.of(clients=4, model="logistic", rounds=2, method="fedavg")


def test_a_tracker_sees_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, float]] = []

    @contextmanager
    def listening(run: Run, folder: Path) -> Iterator[trackers.Log]:
        assert (run, folder) == (RUN, tmp_path)

        def log(line: RoundLine) -> None:
            seen.append(trackers.scalars(line))

        yield log

    monkeypatch.setitem(trackers.TRACKERS, "listening", listening)
    outcome = sweep([RUN], SweepSettings(tmp_path, trackers=("listening",)))
    lines = lines_of(outcome.records[0])
    assert [s["loss"] for s in seen] == [line["loss"] for line in lines]
    assert seen[1]["prior/test/macro_f1"] == lines[1]["prior"]["test"]["macro_f1"]


def test_an_unknown_tracker_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    outcome = sweep([RUN], SweepSettings(tmp_path, trackers=("paper",)))
    assert isinstance(outcome.failed[0], InputError)
    assert not list(tmp_path.iterdir())


def test_tensorboard_files_appear_in_the_run_s_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra 'tensorboard'")
    sweep([RUN], SweepSettings(tmp_path, trackers=("tensorboard",)))
    assert list((tmp_path / RUN.folder / "tensorboard").glob("events.*"))
