"""Files that people read: whole or not at all, and safe to open."""

from __future__ import annotations

import errno
import os
import platform
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpals.errors import InputError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place when the block ends well.

    A crash, a full disk or Ctrl-C inside the block leaves what stood at ``path`` before. The contents reach the disk
    before the name does, so that a power failure leaves one or the other, too. What a killed process left beside
    ``path`` is removed. A ``private`` file can be read by its owner alone.
    """
    prefix = f".{path.stem[:40]}-{platform.node()[:40]}-"
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path} is a device or a pipe, which would be replaced; give the name of a file")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path.parent, prefix)
        handle, name = tempfile.mkstemp(prefix=f"{prefix}{os.getpid()}-", suffix=path.suffix, dir=path.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        with writing(path):
            yield temporary
            temporary.chmod(0o600 if private else 0o666 & ~_umask())
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says of a file that cannot be written into an `InputError` that names it."""
    try:
        yield
    except OSError as error:
        remedy = "free some space, or choose another folder" if error.errno in _FULL else "choose another folder"
        if path.is_dir():
            remedy = "it is a folder: give the name of a file"
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); {remedy}") from None


def try_folder(folder: Path) -> None:
    """Make a folder unless it is there, and write there; inside `writing`, which names the file that is meant."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _remove_leftovers(folder: Path, prefix: str) -> None:
    """Remove temporary files that processes of this machine left when they were killed."""
    for path in folder.iterdir():
        process = re.match(r"(\d+)-", path.name.removeprefix(prefix)) if path.name.startswith(prefix) else None
        if process is not None and not _is_alive(int(process[1])):
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # where the question itself would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def spreadsheet_safe(text: str) -> str:
    """Return text that a spreadsheet shows and does not compute.

    >>> spreadsheet_safe("=1+1"), spreadsheet_safe("Mall North")
    ("'=1+1", 'Mall North')
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
