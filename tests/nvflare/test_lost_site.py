"""The process of a site is killed in the middle of a job: what the log says, how long it takes, what is left."""

from __future__ import annotations

import time
from pathlib import Path

from tests.nvflare.doomed_job import DOOMED, TIMEOUT
from tests.nvflare.processes import logs, run_script, running

SCRIPT = str(Path(__file__).with_name("doomed_job.py"))


def test_the_others_go_on_without_a_site_whose_process_is_killed(folder: Path) -> None:
    began = time.monotonic()
    printed = run_script(folder, SCRIPT, str(folder), "sim")
    assert time.monotonic() - began < 200
    assert f"round 2: {DOOMED}: no reply within {TIMEOUT} s" in printed
    weights = [line.split("α: ")[1] for line in printed.splitlines() if "squared distance" in line]
    assert [DOOMED in line for line in weights] == [True, False, False]
    assert printed.count("no reply within") == 1, "the second round alone waits"
    assert len(list(folder.rglob("FL_global_model.pt"))) == 1
    assert running(folder, patience=20) == []


def test_in_poc_mode_flare_ends_a_job_whose_process_is_killed_at_a_site(poc_folder: Path) -> None:
    """As long as the site's own FLARE client lives: it reports the failure, and FLARE's server ends the job."""
    began = time.monotonic()
    printed = run_script(poc_folder, SCRIPT, str(poc_folder), "poc")
    assert time.monotonic() - began < 200
    assert "status: FINISHED:EXECUTION_EXCEPTION" in printed
    logged = logs(poc_folder)
    assert f"due to reported failure from {DOOMED}" in logged
    assert "the job was ended after round 1" in logged
    assert list(poc_folder.rglob("FL_global_model.pt")), "the model of round 1 is saved"
    assert running(poc_folder, patience=30) == []
