from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="figures need the extra 'plots'")

from fedpals.report.lines import comparison_figure
from fedpals.report.table import Spread, summarise
from fedpals.shift.evaluation import Correction
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from tests.runs import lines_of, result_of


def test_mean_and_sample_standard_deviation() -> None:
    spread = Spread.of([0.5, 0.7, 0.9])
    assert [spread.mean, spread.std] == pytest.approx([0.7, 0.2])
    assert spread.seeds == 3
    assert str(spread) == "70.0 ± 20.0"
    assert Spread.of([0.5]).std == 0.0


def test_the_figure_and_the_table_show_the_records(tmp_path: Path) -> None:
    settings = {"clients": 4, "model": "logistic", "rounds": 3}
    records = [
        simulate(Run.of(**settings, method=method, seed=seed), tmp_path)
        for method in ("fedavg", "fedrs")
        for seed in (0, 1)
    ]
    rows = summarise(records)
    assert [row.title for row in rows] == ["FedAvg", "FedRS"]
    accuracies = [result_of(record)["selected"]["raw"]["test"]["accuracy"] for record in records[:2]]
    assert rows[0].accuracy[Correction.RAW].mean == pytest.approx(sum(accuracies) / 2)
    curves, bars = comparison_figure(records).axes
    last = [lines_of(record)[-1]["raw"]["test"]["accuracy"] for record in records[:2]]
    line = curves.lines[0].get_ydata()
    assert float(list(line)[-1]) == pytest.approx(100 * sum(last) / 2)  # type: ignore[arg-type]
    assert [label.get_text() for label in bars.get_yticklabels()] == ["FedAvg", "FedRS"]
