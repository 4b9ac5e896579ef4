"""Compute many runs; finished ones are never repeated.

Parallel over runs where there are several; a single run spreads its clients instead. One failed run does not stop the
others. A run that another command is computing is waited for, after the others. Ctrl-C, SIGTERM and SIGHUP let the
rounds under way end, so that everything can be resumed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from typing import Any

from fedpals.errors import FedpalsError
from fedpals.simulation.event import Event
from fedpals.simulation.executors import Executor, executor
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings
from fedpals.simulation.signals import Stop, stop_on_signals

_POLL_SECONDS = 0.2
"""After which progress, signals and runs of other commands are looked at."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a sweep."""

    records: tuple[Record, ...]
    """Of all runs, in their order; `Record.finished` says which have a result."""
    failed: Mapping[int, FedpalsError]
    """Why runs failed, by position."""
    stopped: signal.Signals | None = None
    """The signal that stopped it, if any."""
    out_of_time: bool = False
    """Whether the deadline stopped it."""


def sweep(runs: Sequence[Run], settings: SweepSettings, notify: Callable[[Event], None] = lambda _: None) -> Outcome:
    """Compute all runs that have no result yet."""
    records = tuple(Record(run, settings.out) for run in runs)
    pending = [i for i, record in enumerate(records) if not record.intact]
    for i in set(range(len(runs))) - set(pending):
        notify(Event("finished", i))
    failed: dict[int, FedpalsError] = {}
    awaited: set[int] = set()

    def watch(event: Event) -> None:
        if event.error is not None:
            failed[event.run] = event.error
        if event.kind != "busy" or event.run not in awaited:  # which is said once
            notify(event)
        if event.kind == "busy":
            awaited.add(event.run)

    with stop_on_signals(settings.deadline) as stop:
        if not settings.ray:
            _compute_features({i: runs[i] for i in pending}, settings, notify, stop)
        if pending and (settings.ray or (settings.workers > 1 and len(pending) > 1)):
            with executor(settings, {i: runs[i] for i in pending}) as elsewhere:
                _follow(elsewhere, pending, watch, stop)
        else:
            # Imported here, because torch takes a second to load, and worker processes load it themselves.
            from fedpals.simulation.computing import compute

            _compute_in_turn(pending, lambda i: compute(i, runs[i], settings, notify=watch, stop=stop), watch, stop)
    return Outcome(records, failed, stop.signal, stop.out_of_time)


class _Interrupted(Exception):  # noqa: N818 -- never leaves this module
    """A signal while features are computed; those that are done are kept."""


def _compute_features(
    runs: dict[int, Run], settings: SweepSettings, notify: Callable[[Event], None], stop: Stop
) -> None:
    """Compute the features that runs have in common before any of them starts: every worker would, at the same time."""
    first: dict[tuple[Any, ...], int] = {}
    for i, run in runs.items():
        network = run.network
        if network.backbone:
            first.setdefault((run.data.task, network.backbone, network.image_size), i)
    if not first:
        return
    from fedpals.simulation.worker import network_inputs

    for i in first.values():

        def show(done: int, total: int, i: int = i) -> None:
            notify(Event("features", i, progress=(done, total)))
            if stop():
                raise _Interrupted

        try:
            dataset = runs[i].data.dataset(settings.data_folder)
            network_inputs(runs[i].network, dataset, settings.data_folder, show)
        except FedpalsError:
            continue  # the runs that need them say so
        except _Interrupted:
            return


def _compute_in_turn(
    pending: Sequence[int], compute_run: Callable[[int], Event], notify: Callable[[Event], None], stop: Stop
) -> None:
    """Compute runs here, one after the other; those of other commands again and again, until they are finished."""
    while pending:
        busy = []
        for i in pending:
            if stop():
                return
            event = compute_run(i)
            notify(event)
            if event.kind == "busy":
                busy.append(i)
        if len(busy) == len(pending):
            time.sleep(_POLL_SECONDS)
        pending = busy


def _follow(elsewhere: Executor, pending: Sequence[int], notify: Callable[[Event], None], stop: Stop) -> None:
    """Compute runs elsewhere; tell of each when it happens."""
    running, busy = {elsewhere.submit(i): i for i in pending}, list[int]()
    while running or busy:
        ended, _ = wait(running, _POLL_SECONDS, FIRST_COMPLETED)
        if not running:
            time.sleep(_POLL_SECONDS)
        if stop():
            elsewhere.stop()
            busy = []
        under_way = set(running.values())
        for event in elsewhere.news():
            if event.run in under_way:  # news may be slower than the run's end
                notify(event)
        again, busy = busy, []
        for future in ended:
            event = _end(elsewhere, i := running.pop(future), future)
            notify(event)
            if event.kind == "busy":
                busy.append(i)
        running |= {elsewhere.submit(i): i for i in again}


def _end(elsewhere: Executor, position: int, future: Future[Any]) -> Event:
    """Return how a run ended, also where it took its process down."""
    try:
        return elsewhere.end(position, future)
    except CancelledError:
        return Event("stopped", position)
    except FedpalsError as error:
        return Event("failed", position, error=error)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the other runs go on
        reason = str(error).strip().splitlines()[-1:]
        return Event("failed", position, error=FedpalsError(": ".join([type(error).__name__, *reason])))
