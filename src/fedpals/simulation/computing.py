"""One run among many: how it is computed, and the events that its progress is shown by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from fedpals.errors import FedpalsError, InputError
from fedpals.simulation.pools import ProcessPool
from fedpals.simulation.record import RoundLine
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


@dataclass(frozen=True)
class Event:
    """Something happened to a run: for progress displays."""

    kind: Literal["features", "round", "finished", "failed", "stopped"]
    run: int
    """Position in the sweep."""
    line: RoundLine | None = None
    """The record's line of a round."""
    progress: tuple[int, int] | None = None
    """Of features: how many images are done, and their total."""
    error: FedpalsError | None = None


def compute(
    position: int, run: Run, settings: SweepSettings, *, notify: Callable[[Event], None], stop: Callable[[], bool]
) -> Event:
    """Compute one run; turn how it ended into an event."""
    if stop():
        return Event("stopped", position)  # before the data are read, which takes longer than to ask
    callbacks: list[Callback] = [lambda line: notify(Event("round", position, line))]
    rest = partial(
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

                    record = rest(make_pool=shared, callbacks=callbacks)
            else:
                record = rest(callbacks=callbacks)
    except InputError as error:
        return Event("failed", position, error=error)
    except FedpalsError as error:
        return Event("failed", position, error=FedpalsError(str(error)))  # any of them, in a form that travels
    return Event("finished" if record.finished else "stopped", position)
