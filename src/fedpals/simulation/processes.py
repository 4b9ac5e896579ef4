"""Worker processes: started alike everywhere, with whatever a user wrote in a script or notebook.

They end with the process that started them, whatever ends it: each watches a pipe that the system closes then.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import Pipe, get_context, resource_tracker
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeAlias

from fedpals.errors import FedpalsError
from fedpals.simulation.signals import signals_held

Work: TypeAlias = Callable[[Any, Callable[[Any], None], Callable[[], bool]], Any]
"""What a worker does with a task; it can tell of its progress, and ask whether to stop."""

_PROGRESS, _READY, _DONE, _FAILED = "progress", "ready", "done", "failed"
"""Kinds of messages of a worker."""


class Processes:
    """Processes that do one task at a time each.

    One that is killed fails its own task; the next task starts another.

    Parameters
    ----------
    number
        How many, at most; they are started when they are needed.
    make_work
        Makes, in every process, what does the tasks.
    arguments
        Of ``make_work``; they travel once to each process, not once with every task.
    """

    def __init__(self, number: int, make_work: Callable[..., Work], *arguments: Any) -> None:
        self.progress: SimpleQueue[Any] = SimpleQueue()
        """What workers report while they work."""
        self._packed = pack((make_work, arguments))
        self._threads = ThreadPoolExecutor(number)
        self._all: set[_Process] = set()
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = self._closed = False

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        with self._lock:
            self._closed = True
            for process in self._all:
                process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._all:
            process.close()

    def submit(self, task: Any) -> Future[Any]:
        """Do a task as soon as a process is free; `FedpalsError` where that ends before the task does."""
        return self._threads.submit(self._do, task)

    def stop(self) -> None:
        """Tell tasks under way to stop, and cancel the others, also those whose process is still starting."""
        with self._lock:
            self._stopped = True
            for process in self._all:
                process.stop()

    def _do(self, task: Any) -> Any:
        process = None
        try:
            process = self._next()
            return process.do(task, self.progress.put)
        except _EndedError as error:
            if self._stopped or self._closed:
                raise CancelledError from None
            raise FedpalsError(f"{error}; the same command continues the run") from None
        finally:
            if process is not None:
                self._idle.put(process)

    def _next(self) -> _Process:
        """Return a process that is free, or a new one."""
        with self._lock:  # one at a time: `without_main` changes what all threads see
            if self._stopped or self._closed:
                raise CancelledError
            while not self._idle.empty():
                process = self._idle.get()
                if process.is_alive:
                    return process
                self._all.remove(process)
                process.close()
            process = _Process(self._packed)
            self._all.add(process)
            return process


class _EndedError(Exception):
    """The process ended before its task did."""


class _Process:
    """A worker process, as its parent sees it."""

    def __init__(self, packed: bytes) -> None:
        self._connection, theirs = Pipe()
        self._process = get_context("spawn").Process(target=_main, args=(theirs, packed))
        self._ready = False
        self._sending = threading.Lock()
        resource_tracker.ensure_running()  # or it lets signals in again when the process is started
        try:
            with without_main(), signals_held():
                self._process.start()
        except OSError as error:  # killed while it was started, or no memory for another
            raise _EndedError(f"its process could not be started ({error})") from None
        finally:
            theirs.close()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def do(self, task: Any, tell: Callable[[Any], None]) -> Any:
        """Let it do a task; pass on what it tells."""
        try:
            self._send(task)
            while True:
                kind, value = pickle.loads(self._connection.recv_bytes())  # our own process's bytes
                if kind == _PROGRESS:
                    tell(value)
                elif kind == _READY:
                    self._ready = True
                elif kind == _DONE:
                    return value
                else:
                    raise value
        except (EOFError, OSError):
            self._process.join()
            raise _EndedError(_reason(self._process.exitcode)) from None

    def stop(self) -> None:
        """Ask the task to stop; end the process if it is still starting."""
        if not self._ready:
            self.kill()
            return
        try:
            self._send(None)
        except OSError:
            return  # it has ended

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def close(self) -> None:
        """End it, and forget it."""
        self.kill()
        self._process.join()
        self._connection.close()

    def _send(self, task: Any) -> None:
        with self._sending:
            self._connection.send_bytes(pickle.dumps(task))


def _reason(code: int | None) -> str:
    """Say how a process ended.

    >>> _reason(-9)
    'its process was ended by SIGKILL, as the system does where memory runs out'
    """
    if code == -getattr(signal, "SIGKILL", 9):
        return "its process was ended by SIGKILL, as the system does where memory runs out"
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with code {code}"


def _main(connection: Connection, packed: bytes) -> None:
    """Do tasks in a worker process until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where signals cannot be held back
    tasks: SimpleQueue[Any] = SimpleQueue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(connection, tasks, stop), daemon=True).start()

    def send(kind: str, value: Any = None) -> None:
        connection.send_bytes(pickle.dumps((kind, value)))

    make_work, arguments = unpack(packed)
    work: Work = make_work(*arguments)
    send(_READY)
    while True:
        task = tasks.get()
        try:
            result = work(task, lambda value: send(_PROGRESS, value), stop.is_set)
        except FedpalsError as error:
            send(_FAILED, error)
        else:
            send(_DONE, result)


def _listen(connection: Connection, tasks: SimpleQueue[Any], stop: threading.Event) -> None:
    """Take tasks and the order to stop; end the process when the parent is gone."""
    while True:
        try:
            task = pickle.loads(connection.recv_bytes())  # our own parent's bytes
        except (EOFError, OSError):
            os._exit(0)
        if task is None:
            stop.set()
        else:
            tasks.put(task)


def pack(value: Any) -> bytes:
    """Return a value as bytes for another process; classes and functions of a script or notebook travel along."""
    import cloudpickle

    return bytes(cloudpickle.dumps(value))


def unpack(packed: bytes) -> Any:
    """Return the value that `pack` made bytes of."""
    return pickle.loads(packed)  # our own bytes, from our own parent process


@contextmanager
def without_main() -> Iterator[None]:
    """Start processes inside: they do not run the user's script again, as Python's would.

    What they need of it comes packed, so that a script needs no ``if __name__ == "__main__"``.
    """
    main = sys.modules["__main__"]
    kept = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    try:
        main.__spec__ = None
        if "__file__" in kept:
            del main.__file__
        yield
    finally:
        for name, value in kept.items():
            setattr(main, name, value)
