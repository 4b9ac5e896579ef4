"""The content of a user's files as a few digits: changed data are another run, never an old number."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from fedpals.data.official import search_path
from fedpals.errors import InputError
from fedpals.files import replacing

_DIGITS = 16
_LARGE = 1 << 28
"""Bytes from which on the digits are kept on disk, so that they are read only once."""


def content_digest(path: Path) -> str:
    """Return sixteen hexadecimal digits of the content of a file, or of all files below a folder.

    Files whose names, sizes and times are the same are not read again.
    """
    try:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        stats = [(f.relative_to(path).as_posix(), s.st_size, s.st_mtime_ns) for f in files if (s := f.stat())]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    fingerprint = hashlib.sha256(json.dumps([str(path.absolute()), stats]).encode()).hexdigest()
    return _digest(path, fingerprint, sum(size for _, size, _ in stats) >= _LARGE)


@lru_cache(maxsize=64)
def _digest(path: Path, fingerprint: str, large: bool) -> str:  # noqa: FBT001 -- part of the cache's key
    kept = search_path()[0] / "content" / fingerprint
    if large and kept.is_file():
        return kept.read_text(encoding="ascii")
    total = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        with file.open("rb") as stream:
            own = hashlib.file_digest(stream, "sha256").digest()
        total.update(file.relative_to(path).as_posix().encode() + b"\0" + own)
    digest = total.hexdigest()[:_DIGITS]
    if large:
        with replacing(kept) as temporary:
            temporary.write_text(digest, encoding="ascii")
    return digest
