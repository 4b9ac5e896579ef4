"""Two commands at once, eight times, on the same folder: everything is computed once, and intact.

A program of its own, which forks: python -m tests.simulation.twice FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedpals.experiments.experiment import Experiment
from fedpals.experiments.reproduce import reproduce
from fedpals.experiments.results import Results
from fedpals.simulation.event import Event
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings
from fedpals.simulation.sweep import sweep
from tests.experiments.conftest import TINY, definition

TIMES = 8
ROUNDS = 20
EXPERIMENT = TINY.replace('[[row]]\nname = "C = 3"\nseeds = 1\nrun = { labels_per_client = 3 }\n', "")
RUNS = [
    Run.of(task="digits", model="logistic", clients=4, samples_per_client=30, rounds=ROUNDS, seed=i) for i in range(3)
]


def both(work: Callable[[], None]) -> None:
    """Do the same in two processes at once; both must end well."""
    processes = []
    for _ in range(2):
        process = os.fork()
        if process == 0:
            try:
                work()
                os._exit(0)
            except BaseException:  # noqa: BLE001 -- shown, whatever it is
                traceback.print_exc()
                os._exit(1)
        processes.append(process)
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    assert codes == [0, 0], codes


def compute_runs(folder: Path) -> None:
    """Compute all runs; write down of which this process computed a round, and for which it waited."""
    events: list[Event] = []
    outcome = sweep(RUNS, SweepSettings(folder / "runs"), events.append)
    assert not outcome.failed, outcome.failed
    assert all(record.finished for record in outcome.records)
    seen = {kind: sorted({event.run for event in events if event.kind == kind}) for kind in ("round", "busy")}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(seen))


def check_runs(folder: Path) -> bool:
    """Check that all is intact; return whether one command waited for the other."""
    for run in RUNS:
        lines = (folder / "runs" / run.folder / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == list(range(1, ROUNDS + 1))
    one, other = (json.loads(path.read_text()) for path in folder.glob("*.json"))
    assert sorted(one["round"] + other["round"]) == [0, 1, 2], "a run was computed twice"
    assert not list(folder.rglob(".*"))
    return bool(one["busy"] or other["busy"])


@contextmanager
def quiet(_: str, runs: Sequence[Run]) -> Iterator[Callable[[Event], None]]:
    del runs
    yield lambda _: None


def compute_experiment(folder: Path) -> None:
    path = folder / "experiments" / "tiny.toml"
    results = Results(folder / "results" / "tiny")
    results.begin(path, "desk", "fedpals reproduce tiny")
    outcome = reproduce(Experiment.read(path), "desk", results, SweepSettings(folder / "runs"), quiet)
    assert not outcome.failed, outcome.failed


def summaries(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Every line of the results, but for the time that it took."""
    files = {name: folder / "results" / "tiny" / name for name in ("tuning.jsonl", "runs.jsonl")}
    lines = {name: map(json.loads, path.read_text().splitlines()) for name, path in files.items()}
    return {name: [{**line, "seconds": 0} for line in several] for name, several in lines.items()}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    definition(folder / "alone", EXPERIMENT)
    compute_experiment(folder / "alone")
    expected = summaries(folder / "alone")
    waited = 0
    for i in range(TIMES):
        runs, experiment = folder / f"runs {i}", folder / f"experiment {i}"
        runs.mkdir()
        both(lambda runs=runs: compute_runs(runs))  # type: ignore[misc]
        waited += check_runs(runs)
        definition(experiment, EXPERIMENT)
        both(lambda experiment=experiment: compute_experiment(experiment))  # type: ignore[misc]
        assert summaries(experiment) == expected
        assert not list(experiment.rglob(".*"))
    sys.stdout.write(f"{waited} of {TIMES} waited\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
