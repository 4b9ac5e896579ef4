"""A lock on a folder, or on a file in it: two commands never write there at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedpals.errors import InputError
from fedpals.files import writing

try:
    import fcntl
except ImportError:  # Windows, which has no such locks: there, every folder counts as free
    fcntl = None  # type: ignore[assignment]

_NAME = ".lock"


@contextmanager
def locked(folder: Path, *, wait: bool = False, name: str = _NAME) -> Iterator[bool]:
    """Hold the lock of a folder, or the one called ``name`` in it, inside the block; yield whether it was free.

    The operating system keeps it, and gives it up when the process ends, however that happens. With ``wait`` the block
    begins when the lock is free. Folders that were made for the lock alone are removed again.
    """
    path = folder / name
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    handle = _take(path, wait=wait)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            path.unlink(missing_ok=True)
            os.close(handle)
            with suppress(OSError):  # not empty
                for one in made:
                    one.rmdir()


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder; a killed one holds none, whatever it left."""
    if not (folder / _NAME).exists():
        return False
    with locked(folder) as free:
        return not free


def _take(path: Path, *, wait: bool) -> int | None:
    """Return the handle of the locked file; None where another process has it."""
    tries = 100
    while True:
        with writing(path):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            except (FileNotFoundError, FileExistsError):
                tries -= 1
                if not tries:
                    raise
                continue  # the folder was removed just now, as empty
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file_at(handle, path):
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError as error:
            os.close(handle)
            raise InputError(
                f"{path.parent}: cannot be locked ({error.strerror}); choose a folder on another file system"
            ) from None
        os.close(handle)  # whoever had it has removed it, and the next has a file of its own


def _is_file_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
