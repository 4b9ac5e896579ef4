"""The example of four hospitals, run as the documentation says: in FLARE's simulator, and in POC mode."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fedpals.data import available
from fedpals.simulation.simulator import simulate
from fedpals.simulation.state import SimulationState
from tests.nvflare.processes import ROOT, run_script, running

pytestmark = pytest.mark.skipif(
    not any(line.where for line in available() if line.name == "heart"),
    reason="the patients are not here: fedpals data get heart",
)
EXAMPLE = ROOT / "examples" / "nvflare"
SAME = (
    "28 of 28 parameters have the bits of fedpals' own simulator; the largest difference is 0 units in the last place"
)


def test_in_flares_simulator_it_has_the_bits_of_ours(folder: Path) -> None:
    printed = run_script(folder, str(EXAMPLE / "job.py"), "--rounds", "2", "--compare")
    assert SAME in printed
    assert running(folder, patience=20) == []


def test_with_real_processes_and_certificates_it_has_them_too(poc_folder: Path) -> None:
    printed = run_script(poc_folder, str(EXAMPLE / "job.py"), "--rounds", "2", "--poc", "--compare")
    assert SAME in printed
    assert "FINISHED:COMPLETED" in printed
    assert running(poc_folder, patience=30) == []
    assert not (poc_folder / "poc").exists()


def test_it_writes_the_job_for_production(folder: Path) -> None:
    run_script(folder, str(EXAMPLE / "job.py"), "--export")
    assert (folder / "fl_job/fedpals/meta.json").is_file()


@pytest.mark.parametrize(("method", "options"), [("fedavg", {}), ("fedpals", {"ess": 0.5})])
def test_the_page_shows_what_it_prints(
    method: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With our simulator, which has the same bits and takes a second."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    client = import_module("client")
    monkeypatch.delitem(sys.modules, "client")
    worker = client.hospitals("Switzerland", 20, method=method, **options)
    worker.model.load(SimulationState.load(simulate(worker.run, tmp_path).checkpoint).vector)
    x, y = worker.samples(worker.federation.test)
    right = (worker.model.logits(x).argmax(1) == y).double().mean()
    line = f"{method}: {right:.1%} of the {len(y)} patients at Switzerland are classified correctly"
    assert line in (ROOT / "docs/nvflare.md").read_text(encoding="utf-8")
