"""Kills a run before every file operation, resumes it, and compares the bits with those of an unbroken run.

A program of its own, which forks: python -m tests.simulation.crashing FOLDER
"""

from __future__ import annotations

import builtins
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch

from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings
from fedpals.simulation.sweep import sweep

RUN = Run.of(task="digits", model="logistic", clients=4, samples_per_client=30, rounds=2, held_out=0.3)
KILLED = 9
OPERATIONS = ("open", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "fsync", "chmod", "truncate")


class Killer:
    """Counts file operations, and ends the process before the one with a given number."""

    def __init__(self, number: int | None = None) -> None:
        self.number, self.count = number, 0

    def __call__(self) -> bool:
        """Count an operation; say whether it is the one."""
        self.count += 1
        return self.count == self.number

    def patch(self) -> None:
        for name in OPERATIONS:
            setattr(os, name, self.before(getattr(os, name)))
        builtins.open = io.open = self.opening(io.open)

    def before(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **keywords: Any) -> Any:
            if self():
                os._exit(KILLED)
            return operation(*arguments, **keywords)

        return guarded

    def opening(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            if not set(mode) & set("wax+"):
                return operation(file, mode, *arguments, **keywords)
            if self():
                os._exit(KILLED)
            return Halved(operation(file, mode, *arguments, **keywords), self)

        return guarded


class Halved:
    """A file of which half is written when the process is killed."""

    def __init__(self, file: Any, killer: Killer) -> None:
        self._file, self._killer = file, killer

    def write(self, content: Any) -> int:
        if self._killer():
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            os._exit(KILLED)
        return int(self._file.write(content))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def compute(folder: Path) -> Record:
    outcome = sweep([RUN], SweepSettings(folder))
    assert not outcome.failed, outcome.failed
    return outcome.records[0]


def killed_at(number: int, folder: Path) -> bool:
    """Compute the run in another process, which is killed; False where it came to its end."""
    process = os.fork()
    if process == 0:
        Killer(number).patch()
        compute(folder)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code in {0, KILLED}
    return code == KILLED


def contents(record: Record) -> dict[str, Any]:
    """Every file of the run's folder; of the metrics all but the time that they took."""
    files: dict[str, Any] = record.pack()
    lines = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
    files["metrics.jsonl"] = [{**line, "seconds": 0} for line in lines]
    # Killed after its result is written, a run leaves an empty lock behind, which nobody needs or minds.
    left = sorted(path.name for path in record.path.rglob(".*") if path.name != ".lock")
    return {**files, "left over": left}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    expected = contents(compute(folder / "unbroken"))
    assert len(expected) >= 9
    number = 1
    while killed_at(number, folder / str(number)):
        found = contents(compute(folder / str(number)))
        assert found.keys() == expected.keys(), (number, found.keys() ^ expected.keys())
        different = [name for name in expected if found[name] != expected[name]]
        assert not different, f"killed before operation {number}: {different} differ"
        number += 1
    sys.stdout.write(f"{number - 1} operations\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
