"""What READMEs publish is what the stored results say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.published.blocks import BLOCK, FILES, ROOT, rebuilt
from tests.published.tables import RESULTS

PAGE = (ROOT / "results" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_are_those_of_the_stored_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert BLOCK.search(text)
    assert text.count("<!-- end -->") == len(BLOCK.findall(text))
    assert rebuilt(text) == text, "run make results"


def test_a_number_that_was_changed_by_hand_is_noticed() -> None:
    text = FILES[0].read_text(encoding="utf-8")
    start = text.index("<!-- end -->") - 20
    changed = text[:start] + re.sub(r"\d", "0", text[start:], count=1)
    assert changed != text
    assert rebuilt(changed) == text


def test_every_experiment_has_a_section_that_begins_with_its_verdict() -> None:
    sections = dict(re.findall(r"^## (.*)\n\n(.*)$", PAGE, re.MULTILINE))
    for folder in RESULTS.iterdir():
        if (folder / "experiment.toml").is_file():
            assert sections[folder.name].startswith("**"), folder.name


def test_outside_the_tables_no_measured_number_is_repeated() -> None:
    assert re.findall(r"\b\d\d\.\d\b", BLOCK.sub("", PAGE)) == []
