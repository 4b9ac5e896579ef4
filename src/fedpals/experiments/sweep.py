"""Compute many runs with local worker processes; finished ones are never repeated.

Parallel over runs where there are several; a single run spreads its clients instead. One failed run
does not stop the others. Ctrl-C lets the rounds under way end, so that everything can be resumed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from fedpals.errors import FedpalsError, InputError
from fedpals.record import Record
from fedpals.run import Run
from fedpals.simulator import Callback, simulate
from fedpals.trackers import tracking
from fedpals.worker import ProcessPool, Worker, ignore_interrupts


@dataclass(frozen=True)
class Settings:
    """How to compute runs, none of which changes their results."""

    out: Path
    """Folder of runs."""
    workers: int = 1
    data_folder: Path | None = None
    device: str = "cpu"
    resume: bool = True
    """Continue unfinished runs; otherwise they start over."""
    checkpoint_every: int = 1
    trackers: tuple[str, ...] = ()
    """Where metrics go besides the record: names of `fedpals.trackers`."""


@dataclass(frozen=True)
class Event:
    """Something happened to a run: for progress displays."""

    kind: Literal["round", "finished", "failed", "stopped"]
    run: int
    """Position in the sweep."""
    line: Mapping[str, Any] = field(default_factory=dict)
    error: FedpalsError | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a sweep."""

    records: tuple[Record, ...]
    """Of all runs, in their order; `Record.finished` says which have a result."""
    failed: Mapping[int, FedpalsError]
    """Why runs failed, by position."""
    stopped: bool


def sweep(runs: Sequence[Run], settings: Settings, notify: Callable[[Event], None] = lambda _: None) -> Outcome:
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
        if settings.workers > 1 and len(pending) > 1:
            _in_processes(runs, pending, settings, watch, stop)
        else:
            for i in pending:
                if not stop.is_set():
                    watch(_compute(i, runs[i], settings, notify=watch, stop=stop.is_set))
    return Outcome(records, failed, stop.is_set())


def _compute(
    position: int, run: Run, settings: Settings, *, notify: Callable[[Event], None], stop: Callable[[], bool]
) -> Event:
    """Compute one run; turn how it ended into an event."""
    callbacks: list[Callback] = [lambda line: notify(Event("round", position, line))]
    compute = partial(
        simulate,
        run,
        settings.out,
        data_folder=settings.data_folder,
        device=settings.device,
        resume=settings.resume,
        checkpoint_every=settings.checkpoint_every,
        stop=stop,
    )
    try:
        with tracking(settings.trackers, run, settings.out) as trackers:
            callbacks += trackers
            if settings.workers > 1:
                with ProcessPool(run, settings.workers, settings.data_folder, settings.device) as pool:

                    def shared(_: Worker) -> ProcessPool:
                        return pool

                    record = compute(make_pool=shared, callbacks=callbacks)
            else:
                record = compute(callbacks=callbacks)
    except InputError as error:
        return Event("failed", position, error=error)
    except FedpalsError as error:
        return Event("failed", position, error=FedpalsError(str(error)))  # any of them, in a form that travels
    return Event("finished" if record.finished else "stopped", position)


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


def _in_processes(
    runs: Sequence[Run],
    pending: Sequence[int],
    settings: Settings,
    notify: Callable[[Event], None],
    stop: threading.Event,
) -> None:
    """Give each process one run at a time; their events come back through a queue."""
    context = get_context("spawn")
    events, stop_there = context.Queue(), context.Event()
    alone = Settings(**{**vars(settings), "workers": 1})
    with ProcessPoolExecutor(
        min(settings.workers, len(pending)), context, _start_process, (events, stop_there)
    ) as executor:
        futures: dict[int, Future[Event]] = {
            i: executor.submit(_compute_there, i, runs[i].model_dump_json(exclude_none=True), alone) for i in pending
        }
        done = threading.Event()
        listener = threading.Thread(target=_listen, args=(events, notify, done), daemon=True)
        listener.start()
        try:
            for i, future in futures.items():
                while not _ended(future):
                    if stop.is_set():
                        stop_there.set()
                if error := future.exception():
                    notify(Event("failed", i, error=FedpalsError(f"{type(error).__name__}: {error}")))
                else:
                    notify(future.result())
        finally:
            stop_there.set()
            done.set()
            listener.join()


def _ended(future: Future[Event]) -> bool:
    """Wait a moment for a run, so that Ctrl-C is noticed in between."""
    try:
        future.exception(timeout=0.2)
    except TimeoutError:
        return False
    return True


def _listen(events: Any, notify: Callable[[Event], None], done: threading.Event) -> None:
    while not (done.is_set() and events.empty()):
        try:
            notify(events.get(timeout=0.1))
        except OSError:
            return
        except Exception as error:
            if type(error).__name__ != "Empty":
                raise


_events: Any = None
_stop: Any = None


def _start_process(events: Any, stop: Any) -> None:
    global _events, _stop
    ignore_interrupts()
    _events, _stop = events, stop


def _compute_there(position: int, run: str, settings: Settings) -> Event:
    return _compute(position, Run.model_validate_json(run), settings, notify=_events.put, stop=_stop.is_set)
