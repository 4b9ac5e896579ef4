"""Every case, by what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.torture import configuration, data, run_folders, spreadsheets, surroundings
from tests.torture.harness import Case


def all_cases(folder: Path) -> Iterator[Case]:
    """Yield all cases; ``folder`` is for what some of them share."""
    yield from spreadsheets.cases()
    yield from data.cases()
    yield from configuration.cases()
    yield from surroundings.cases()
    yield from run_folders.cases(folder)
