"""Runs that are computed beside this process: told of when they end, however the others fare."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from fedpals.data import Dataset
from fedpals.simulation.event import Event
from fedpals.simulation.run import Network, Run
from fedpals.simulation.settings import SweepSettings
from fedpals.simulation.sweep import sweep

RUNS = [Run.of(task="digits", model="logistic", clients=4, samples_per_client=30, rounds=2, seed=i) for i in range(4)]

RESULT = '{"rounds": 0, "selected": {}, "projection_distance": 0, "covered": true, "clients": 4, "samples": 120}'


class Controlled:
    """An executor whose runs end when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.futures: dict[int, Future[Event]] = {}
        self.waiting: list[Event] = []
        self.stopped = False

    def submit(self, position: int) -> Future[Event]:
        self.futures[position] = Future()
        if position == len(RUNS) - 1:
            self.finish(position)
        return self.futures[position]

    def finish(self, position: int) -> None:
        self.futures[position].set_result(Event("finished", position))

    def end(self, position: int, future: Future[Event]) -> Event:
        event = future.result()
        if event.kind == "finished":
            (self.folder / RUNS[position].folder).mkdir(parents=True)
            (self.folder / RUNS[position].folder / "result.json").write_text(RESULT)
        return event

    def news(self) -> list[Event]:
        news, self.waiting = self.waiting, []
        return news

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def controlled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Controlled:
    executor = Controlled(tmp_path)

    @contextmanager
    def opened(settings: SweepSettings, runs: Mapping[int, Run]) -> Iterator[Controlled]:
        assert (settings.workers, runs) == (2, dict(enumerate(RUNS)))
        yield executor

    monkeypatch.setattr(import_module("fedpals.simulation.sweep"), "executor", opened)
    return executor


def test_a_run_is_told_of_when_it_ends_not_when_those_before_it_do(controlled: Controlled, tmp_path: Path) -> None:
    settings = SweepSettings(tmp_path, workers=2)
    order = []

    def watch(event: Event) -> None:
        order.append(event.run)
        assert (tmp_path / RUNS[event.run].folder / "result.json").is_file(), "told of before its record is there"
        if event.run > 0:
            controlled.finish(event.run - 1)  # only now: whoever waits for run 0 first waits for ever

    outcome = sweep(RUNS, settings, watch)
    assert order == [3, 2, 1, 0]
    assert not outcome.failed
    assert not outcome.stopped


def test_a_run_that_takes_its_process_down_is_listed_and_the_others_go_on(
    controlled: Controlled, tmp_path: Path
) -> None:
    def watch(event: Event) -> None:
        if event.run == 3:
            controlled.futures[1].set_exception(RuntimeError("many\nlines\nand the reason\n"))
        if event.run == 1:
            controlled.waiting += [Event("round", 1), Event("round", 0)]
            controlled.finish(0)
            controlled.finish(2)
        seen.append((event.kind, event.run))

    seen: list[tuple[str, int]] = []
    outcome = sweep(RUNS, SweepSettings(tmp_path, workers=2), watch)
    assert {i: str(error) for i, error in outcome.failed.items()} == {1: "RuntimeError: and the reason"}
    assert [record.finished for record in outcome.records] == [True, False, True, True]
    assert ("round", 0) in seen
    assert ("round", 1) not in seen, "news of a run that has ended"


def test_an_interruption_is_passed_on(controlled: Controlled, tmp_path: Path) -> None:
    def watch(event: Event) -> None:
        if event.kind == "finished":
            signal.raise_signal(signal.SIGINT)
            for i in range(3):
                controlled.futures[i].set_result(Event("stopped", i))

    before = signal.getsignal(signal.SIGINT)
    outcome = sweep(RUNS, SweepSettings(tmp_path, workers=2), watch)
    assert outcome.stopped == signal.SIGINT
    assert controlled.stopped
    assert signal.getsignal(signal.SIGINT) is before
    assert [record.finished for record in outcome.records] == [False, False, False, True]


@pytest.mark.parametrize("interrupted", [False, True])
def test_features_that_runs_share_are_computed_once_before_they_start(
    interrupted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[tuple[str, int]] = []

    def read(network: Network, dataset: Dataset, _: None, progress: Callable[[int, int], None]) -> Dataset:
        said.append(("read", network.image_size or 0))
        for done in (1, 2):
            if interrupted:
                signal.raise_signal(signal.SIGINT)
            progress(done, 2)
        return dataset

    def compute(position: int, *_: object, **__: object) -> Event:
        said.append(("computed", position))
        return Event("finished", position)

    monkeypatch.setattr("fedpals.simulation.worker.network_inputs", read)
    monkeypatch.setattr("fedpals.simulation.computing.compute", compute)
    common = {"task": "digits", "backbone": "mobilenet_v2", "model": "logistic"}
    runs = [Run.of(**common, image_size=size, seed=seed) for size in (32, 64) for seed in (0, 1)]
    told: list[Event] = []
    outcome = sweep([*runs, RUNS[0]], SweepSettings(tmp_path), told.append)
    shown = [event.progress for event in told if event.kind == "features"]
    assert bool(outcome.stopped) == interrupted
    if interrupted:
        assert (said, shown) == ([("read", 32)], [(1, 2)])
    else:
        assert said == [("read", 32), ("read", 64), *(("computed", i) for i in range(5))]
        assert shown == [(1, 2), (2, 2)] * 2
