"""A study in a notebook: its progress and its pictures are shown below the cells."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = (
    """
import numpy as np
import pandas as pd
import fedpals as fp

rng = np.random.default_rng(0)
x = pd.DataFrame(rng.normal(size=(150, 3)), columns=["age", "dose", "weight"])
y = pd.Series(np.where(x["age"] + 0.3 * rng.normal(size=150) > 0, "sick", "healthy"))
federation = fp.Federation.of(x, y, client=np.repeat(["A", "B", "C"], 50), target={"healthy": 0.3, "sick": 0.7})
study = fp.train(federation, methods=["fedavg", "fedpals"], rounds=3, seeds=2, out="runs")
""",
    "study.table()",
    "study.plot();",
    "pd.DataFrame(study.history()).shape",
    "study.best().predict(x)[:2].tolist()",
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_study_in_a_notebook(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    progress, table, picture, history, predicted = (
        "".join(str(output.get("data", output.get("text", ""))) for output in cell.outputs) for cell in notebook.cells
    )
    assert "4/4" in progress
    assert "<table>" in table
    assert "image/png" in picture
    assert "(36, " in history
    assert "sick" in predicted or "healthy" in predicted
