"""How one run among many is computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fedpals.engine.lock import locked
from fedpals.simulation.event import Event
from fedpals.simulation.failure import failure
from fedpals.simulation.pools import ProcessPool
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings
from fedpals.simulation.simulator import Callback, simulate
from fedpals.simulation.trackers import tracking
from fedpals.simulation.worker import Worker


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
