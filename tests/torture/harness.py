"""One attempt: files in an empty folder, a command as a user types it, and what came of it.

Commands run in forks of a process that has imported everything, so that hundreds of them take seconds.
"""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import fedpals

TIMEOUT = 120
"""Seconds after which an attempt counts as hanging."""
_MEMORY = 6 << 30
"""Bytes of address space; who wants more would bring down a user's machine."""


class Verdict(StrEnum):
    """What became of an attempt."""

    PERFECT = "perfect"
    """The expected code, and every expected word in what was printed."""
    TRACEBACK = "traceback"
    SILENT = "silent"
    """Success, where the input is wrong."""
    SENTENCE = "wrong sentence"
    """Refused, but not in the expected words."""
    LITTER = "files left"
    """Refused, but something was written."""
    HANGS = "hangs"


@dataclass(frozen=True)
class Case:
    """What is sent, and what must come back."""

    name: str
    arguments: tuple[str, ...]
    words: tuple[str, ...]
    """Every one of them must be printed."""
    files: Mapping[str, bytes | str] = field(default_factory=dict)
    code: int = 2
    folder: Path | None = None
    """A folder whose content is there beforehand."""
    prepare: Callable[[], None] | None = None
    """What else to do in the folder before the command starts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"
    """Of the terminal."""
    most_bytes: int | None = None
    """Bytes a file may have; more is refused by the system, as on a full disk."""
    may_write: bool = False
    """Whether a refusal may leave something behind, as of runs that were begun."""


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    case: Case
    verdict: Verdict
    code: int
    output: str


def import_everything() -> None:
    """Import what commands import, once, so that forks have it."""
    for module in pkgutil.walk_packages(fedpals.__path__, "fedpals."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def attempt(case: Case) -> Outcome:
    """Run one case in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name) / "here"
        shutil.copytree(case.folder, folder) if case.folder else folder.mkdir()
        for path, content in case.files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        code, printed, litter = _in_a_fork(case, folder)
    return Outcome(case, _verdict(case, code, printed, litter=litter), code, printed)


def _in_a_fork(case: Case, folder: Path) -> tuple[int, str, bool]:
    """Return exit code, what was printed, and whether files were left."""
    listing = folder.with_name("before")
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(case, folder, writing, listing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        printed = pipe.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    assert listing.exists(), printed
    before = set(listing.read_text(encoding="utf-8", errors="surrogateescape").split("\0"))
    return os.waitstatus_to_exitcode(status), printed, bool(_listing(folder) - before)


def _child(case: Case, folder: Path, output: int, listing: Path) -> None:
    code = 1
    try:
        os.chdir(folder)
        for stream_number in (1, 2):
            os.dup2(output, stream_number)
        for stream in (sys.stdout, sys.stderr):
            assert isinstance(stream, io.TextIOWrapper)
            stream.reconfigure(encoding=case.encoding)
        os.environ.update(case.environment)
        if case.prepare:
            case.prepare()
        listing.write_text("\0".join(_listing(folder)), encoding="utf-8", errors="surrogateescape")
        signal.alarm(TIMEOUT)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        if case.most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (case.most_bytes, case.most_bytes))
        sys.argv = ["fedpals", *case.arguments]
        from fedpals.cli import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 -- whatever a user would see
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _verdict(case: Case, code: int, printed: str, *, litter: bool) -> Verdict:
    if "Traceback (most recent call last)" in printed:
        return Verdict.TRACEBACK
    if code == -signal.SIGALRM:
        return Verdict.HANGS
    if case.code != 0 and code == 0:
        return Verdict.SILENT
    text = " ".join(printed.split())
    if code != case.code or any(word not in text for word in case.words):
        return Verdict.SENTENCE
    return Verdict.LITTER if code == 2 and litter and not case.may_write else Verdict.PERFECT
