"""The README says what is: its table is rebuilt from the stored results, its example from the command."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpals.experiments.results import Results
from fedpals.report.finished import FinishedExperiment
from fedpals.shift.evaluation import Evaluation

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COLUMNS = [
    ("FedAvg", Evaluation.RAW),
    ("FedPALS", Evaluation.RAW),
    ("FedAvg", Evaluation.PRIOR),
    ("FedPALS", Evaluation.PRIOR),
    ("Oracle", Evaluation.RAW),
]


def table1() -> str:
    """The rows of the README's table, from results/table1."""
    results = Results(ROOT / "results" / "table1")
    finished = FinishedExperiment("table1", results.experiment, tuple(results.runs()))
    methods = {method.name: method for method in finished.methods}
    lines = []
    for row in finished.rows:
        spreads = [finished.spread(row, methods[name], evaluation) for name, evaluation in COLUMNS]
        cells = ["" if spread is None else f"{100 * spread.mean:.1f}" for spread in spreads]
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


HOSPITALS = (ROOT / "examples" / "hospitals" / "README.md").read_text(encoding="utf-8")


def hospitals() -> str:
    """The rows of the hospitals' table: accuracy in % / log-loss, from results/hospitals."""
    results = Results(ROOT / "results" / "hospitals")
    finished = FinishedExperiment("hospitals", results.experiment, tuple(results.runs()))
    columns = [
        (name, evaluation)
        for evaluation in (Evaluation.RAW_BY_ESTIMATE, Evaluation.PRIOR_BY_ESTIMATE)
        for name in ("FedAvg", "FedPALS, λ → 0", "FedPALS, ESS 50 %")
    ]
    lines = []
    for row in finished.rows:
        cells = []
        for name, evaluation in columns:
            tests = [s.selected[evaluation].test for s in finished.runs if (s.row, s.method) == (row.name, name)]
            accuracy = sum(t.accuracy for t in tests if t) / len(tests)
            loss = sum(t.log_loss or 0.0 for t in tests if t) / len(tests)
            cells.append(f"{100 * accuracy:.1f} / {loss:.2f}")
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


@pytest.mark.parametrize(("text", "rows"), [(README, table1), (HOSPITALS, hospitals)], ids=["table1", "hospitals"])
def test_tables_are_those_of_the_stored_results(text: str, rows: Callable[[], str]) -> None:
    written = re.search(r"<!-- \w+: rebuilt .*? -->\n.*\n.*\n((?:\|.*\n)+)<!-- end -->", text)
    assert written is not None
    assert written[1].strip() == rows()


def test_the_example_prints_what_stands_there() -> None:
    block = re.search(r"```\n\$ (fedpals weights .*)\n((?:.*\n)+?)```", README)
    assert block is not None
    command = [str(Path(sys.executable).with_name("fedpals")), *block[1].split()[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == block[2].split()


def test_it_is_read_in_two_minutes() -> None:
    prose = re.sub(r"```.*?```|\$\$.*?\$\$", "", README, flags=re.DOTALL)
    assert len(re.findall(r"\w+", prose)) < 750
