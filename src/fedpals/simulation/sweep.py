"""Compute many runs; finished ones are never repeated.

Parallel over runs where there are several; a single run spreads its clients instead. One failed run
does not stop the others. Ctrl-C lets the rounds under way end, so that everything can be resumed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedpals.errors import FedpalsError
from fedpals.simulation.computing import Event, SweepSettings, compute
from fedpals.simulation.executors import Computed, Executor, executor
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.worker import network_inputs

_POLL_SECONDS = 0.2
"""After which progress and Ctrl-C are looked at."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a sweep."""

    records: tuple[Record, ...]
    """Of all runs, in their order; `Record.finished` says which have a result."""
    failed: Mapping[int, FedpalsError]
    """Why runs failed, by position."""
    stopped: bool


def sweep(runs: Sequence[Run], settings: SweepSettings, notify: Callable[[Event], None] = lambda _: None) -> Outcome:
    """Compute all runs that have no result yet."""
    records = tuple(Record(run, settings.out) for run in runs)
    pending = [i for i, record in enumerate(records) if not record.finished]
    for i in set(range(len(runs))) - set(pending):
        notify(Event("finished", i))
    failed: dict[int, FedpalsError] = {}

    def watch(event: Event) -> None:
        if event.error is not None:
            failed[event.run] = event.error
        notify(event)

    with _stop_on_interrupt() as stop:
        if not settings.ray:
            _compute_features({i: runs[i] for i in pending}, settings, notify, stop)
        if pending and (settings.ray or (settings.workers > 1 and len(pending) > 1)):
            with executor(settings, {i: runs[i] for i in pending}) as elsewhere:
                _follow(elsewhere, {i: records[i] for i in pending}, watch, stop)
        else:
            for i in pending:
                if not stop.is_set():
                    watch(compute(i, runs[i], settings, notify=watch, stop=stop.is_set))
    return Outcome(records, failed, stop.is_set())


class _Interrupted(Exception):  # noqa: N818 -- never leaves this module
    """Ctrl-C while features are computed; those that are done are kept."""


def _compute_features(
    runs: dict[int, Run], settings: SweepSettings, notify: Callable[[Event], None], stop: threading.Event
) -> None:
    """Compute the features that runs have in common before any of them starts: every worker would, at the same time."""
    first: dict[tuple[Any, ...], int] = {}
    for i, run in runs.items():
        network = run.network
        if network.backbone:
            first.setdefault((run.data.task, network.backbone, network.image_size), i)
    for i in first.values():

        def show(done: int, total: int, i: int = i) -> None:
            notify(Event("features", i, progress=(done, total)))
            if stop.is_set():
                raise _Interrupted

        try:
            dataset = runs[i].data.dataset(settings.data_folder)
            network_inputs(runs[i].network, dataset, settings.data_folder, show)
        except FedpalsError:
            continue  # the runs that need them say so
        except _Interrupted:
            return


def _follow(
    elsewhere: Executor, records: Mapping[int, Record], notify: Callable[[Event], None], stop: threading.Event
) -> None:
    """Compute runs elsewhere; tell of each when it happens, and keep what comes back."""
    running = {elsewhere.submit(i): i for i in records}
    while running:
        ended, _ = wait(running, _POLL_SECONDS, FIRST_COMPLETED)
        if stop.is_set():
            elsewhere.stop()
        under_way = set(running.values())
        for event in elsewhere.news():
            if event.run in under_way:  # news may be slower than the run's end
                notify(event)
        for future in ended:
            i = running.pop(future)
            notify(_event(i, future, records[i]))


def _event(position: int, future: Future[Computed], record: Record) -> Event:
    """Keep a run's files and say how it ended, also where it took its process down."""
    if error := future.exception():
        reason = str(error).strip().splitlines()[-1:]
        return Event("failed", position, error=FedpalsError(": ".join([type(error).__name__, *reason])))
    computed = future.result()
    record.unpack(computed.files)
    return computed.event


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets; a second Ctrl-C interrupts at once."""
    stop = threading.Event()

    def handler(number: int, frame: Any) -> None:
        if stop.is_set():
            signal.default_int_handler(number, frame)
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
