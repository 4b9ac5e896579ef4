"""Files that people read: whole or not at all, and safe to open."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpals.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place when the block ends well.

    A crash, a full disk or Ctrl-C inside the block leaves what stood at ``path`` before.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another folder") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
