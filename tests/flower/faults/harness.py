"""A fault, and the ways in which it can end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a fault ended."""

    OK = "ok"
    REFUSED = "refused and named"
    WARNED = "warned and named"
    ENDED = "ended with a sentence"
    SILENT = "silent wrong result"
    ORPHANS = "orphans"
    WAIT = "unbounded wait"
    RAW = "raw error"
    UNTRIED = "not tried"
    """The run ended by itself before the fault could happen, as on a machine that is too busy for its time limits."""


@dataclass(frozen=True)
class Outcome:
    """How a fault ended, and the sentence or fact that shows it."""

    verdict: Verdict
    evidence: str


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong; ``attempt`` makes it happen and judges what follows."""

    name: str
    wanted: tuple[Verdict, ...]
    attempt: Callable[[], Outcome]

    def try_once(self) -> tuple[Outcome, float]:
        """Return the outcome and the seconds that it took."""
        begin = time.monotonic()
        try:
            outcome = self.attempt()
        except Exception as error:  # noqa: BLE001 -- one fault that cannot be judged must not hide the others
            outcome = Outcome(Verdict.RAW, repr(error))
        return outcome, time.monotonic() - begin
