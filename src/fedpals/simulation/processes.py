"""Worker processes: started alike everywhere, with whatever a user wrote in a script or notebook."""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent process, which ends the round in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
