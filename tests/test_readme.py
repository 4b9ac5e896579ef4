"""The README says what is: its table is rebuilt from the stored results, its example from the command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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


def test_the_table_is_that_of_the_stored_results() -> None:
    written = re.search(r"<!-- table1: .*? -->\n.*\n.*\n((?:\|.*\n)+)<!-- end -->", README)
    assert written is not None
    assert written[1].strip() == table1()


def test_the_example_prints_what_stands_there() -> None:
    block = re.search(r"```\n\$ (fedpals weights .*)\n((?:.*\n)+?)```", README)
    assert block is not None
    command = [str(Path(sys.executable).with_name("fedpals")), *block[1].split()[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == block[2].split()


def test_it_is_read_in_two_minutes() -> None:
    prose = re.sub(r"```.*?```|\$\$.*?\$\$", "", README, flags=re.DOTALL)
    assert len(re.findall(r"\w+", prose)) < 750
