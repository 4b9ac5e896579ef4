"""Signals that ask to stop: Ctrl-C, SIGTERM of a scheduler, SIGHUP of a closed terminal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

STOPPING = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@dataclass
class Stop:
    """Says whether to stop, and what asked for it."""

    deadline: float | None = None
    """Stop at this time of `time.monotonic`."""
    signal: signal.Signals | None = None
    """The first that arrived."""

    @property
    def out_of_time(self) -> bool:
        """Whether the deadline is over."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.signal is not None or self.out_of_time


@contextmanager
def stop_on_signals(deadline: float | None = None) -> Iterator[Stop]:
    """Yield what the first signal to stop sets, or the deadline; a second Ctrl-C interrupts at once.

    Under ``nohup`` SIGHUP stays ignored. Outside the main thread, where Python takes no signals, nothing is set.
    """
    stop = Stop(deadline)

    def handler(number: int, frame: Any) -> None:
        if stop.signal is not None and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        stop.signal = stop.signal or signal.Signals(number)

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    ignored = [s for s in STOPPING if s != signal.SIGINT and signal.getsignal(s) is signal.SIG_IGN]
    before = {s: signal.signal(s, handler) for s in STOPPING if s not in ignored}
    try:
        yield stop
    finally:
        for number, previous in before.items():
            signal.signal(number, previous or signal.SIG_DFL)  # None: set by another than Python


@contextmanager
def signals_held() -> Iterator[None]:
    """Let signals to stop wait until the block ends; processes that it starts never get them.

    Processes inherit what their parent holds back, so a worker is safe from Ctrl-C from its first instruction on.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
