"""One run among many: how it is computed, and the events that its progress is shown by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from fedpals.engine.lock import locked
from fedpals.errors import FedpalsError
from fedpals.simulation.failure import failure
from fedpals.simulation.pools import ProcessPool
from fedpals.simulation.record import Record, RoundLine
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import Callback, simulate
from fedpals.simulation.trackers import tracking
from fedpals.simulation.worker import Worker


@dataclass(frozen=True)
class SweepSettings:
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
    """Where metrics go besides the record: names of `fedpals.simulation.trackers`."""
    ray: str | None = None
    """Address of a Ray cluster to compute on, instead of this machine's processes."""
    deadline: float | None = None
    """Time of `time.monotonic` after which rounds under way end and no run is begun; everything can be resumed."""


@dataclass(frozen=True)
class Event:
    """Something happened to a run: for progress displays."""

    kind: Literal["features", "round", "note", "busy", "finished", "failed", "stopped"]
    """"busy": another command is computing it; "note": something to know, in ``text``."""
    run: int
    """Position in the sweep."""
    line: RoundLine | None = None
    """The record's line of a round."""
    progress: tuple[int, int] | None = None
    """Of features: how many images are done, and their total."""
    text: str | None = None
    error: FedpalsError | None = None


def compute(
    position: int, run: Run, settings: SweepSettings, *, notify: Callable[[Event], None], stop: Callable[[], bool]
) -> Event:
    """Compute one run, unless another process is at it; turn how it ended into an event."""
    if stop():
        return Event("stopped", position)  # before the data are read, which takes longer than to ask
    record = Record(run, settings.out)
    try:
        with locked(record.path) as free:
            if not free:
                return Event("busy", position)
            if not record.intact:  # another process may have finished it just now
                _simulate(position, run, settings, notify, stop)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the other runs go on
        return Event("failed", position, error=failure(error, run))
    return Event("finished" if record.finished else "stopped", position)


def _simulate(
    position: int, run: Run, settings: SweepSettings, notify: Callable[[Event], None], stop: Callable[[], bool]
) -> None:
    callbacks: list[Callback] = [lambda line: notify(Event("round", position, line))]
    rest = partial(
        simulate,
        run,
        settings.out,
        data_folder=settings.data_folder,
        device=settings.device,
        resume=settings.resume,
        checkpoint_every=settings.checkpoint_every,
        note=lambda text: notify(Event("note", position, text=text)),
        stop=stop,
    )
    with tracking(settings.trackers, run, settings.out) as trackers:
        callbacks += trackers
        if settings.workers > 1:
            with ProcessPool(run, settings.workers, settings.data_folder, settings.device) as pool:

                def shared(_: Worker) -> ProcessPool:
                    return pool

                rest(make_pool=shared, callbacks=callbacks)
        else:
            rest(callbacks=callbacks)
