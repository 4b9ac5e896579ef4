"""Stored results are found again: every run in results/ has the digest that its configuration has today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpals.simulation.run import Run

RESULTS = Path(__file__).parents[2] / "results"
FILES = sorted(RESULTS.glob("*/*.jsonl"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_stored_run_is_found_by_its_digest(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines
    for line in lines:
        run = Run.of(line["run"])
        assert run.digest == line["digest"]
        assert run.keys() == line["run"]
