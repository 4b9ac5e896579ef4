"""Experiments from their file to their results: tuned, resumed, and never computed twice."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpals.engine.server import DivergedError
from fedpals.experiments.experiment import TUNING_SEED, Experiment, tuning_runs
from fedpals.experiments.reproduce import Reproduced, chosen_points, reproduce
from fedpals.experiments.results import Results, Summary
from fedpals.shift.evaluation import Evaluation
from fedpals.simulation import computing
from fedpals.simulation.event import Event
from fedpals.simulation.record import SelectedRound
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings
from fedpals.simulation.simulator import simulate
from tests.experiments.conftest import TINY, definition


def quiet(_: str, runs: Sequence[Run]) -> Any:
    del runs

    @contextmanager
    def opened() -> Iterator[Callable[[Event], None]]:
        yield lambda _: None

    return opened()


def compute(text: str, folder: Path, display: Any = quiet, **settings: Any) -> tuple[Results, Reproduced]:
    path = definition(folder, text)
    results = Results(folder / "results" / "tiny")
    results.begin(path, "desk", "fedpals reproduce tiny")
    return results, reproduce(
        Experiment.read(path), "desk", results, SweepSettings(folder / "runs", **settings), display
    )


def stopping_after(runs: int) -> Any:
    """A display that interrupts when so many runs are finished."""
    finished = 0

    @contextmanager
    def opened(_: str, runs_: Sequence[Run]) -> Iterator[Callable[[Event], None]]:
        del runs_

        def show(event: Event) -> None:
            nonlocal finished
            finished += event.kind == "finished"
            if event.kind == "finished" and finished == runs:
                signal.raise_signal(signal.SIGINT)

        yield show

    return opened


def timeless(summaries: list[Summary]) -> list[dict[str, Any]]:
    return [summary.model_dump(exclude={"seconds"}) for summary in summaries]


def test_tuned_on_seeds_of_its_own_then_reported_at_what_validation_chose(tmp_path: Path) -> None:
    results, outcome = compute(TINY, tmp_path)
    assert (outcome.failed, outcome.left) == ((), 0)
    tuning, runs = results.tuning(), results.runs()
    assert (len(tuning), len(runs)) == (12, 6)
    assert {summary.seed for summary in tuning} == {TUNING_SEED}
    assert all(summary.federation is None for summary in tuning)
    assert all(selected.test is None for summary in tuning for selected in summary.selected.values())
    assert all(selected.test is not None for summary in runs for selected in summary.selected.values())
    assert all(summary.federation is not None for summary in runs)
    experiment = results.experiment
    for (row, method), points in chosen_points(experiment, results.tuning()).items():
        point = points[Evaluation.RAW]
        scores = {
            json.dumps(s.point): s.selected[Evaluation.RAW].score for s in tuning if (s.row, s.method) == (row, method)
        }
        assert scores[json.dumps(point)] == max(scores.values())
        mine = [s for s in runs if (s.row, s.method) == (row, method)]
        assert mine
        assert all(s.point == point and s.run["learning_rate"] == point["learning_rate"] for s in mine)


def test_a_method_may_be_chosen_without_target_samples(tmp_path: Path) -> None:
    text = TINY.replace("rounds = 2", "rounds = 2\nheld_out = 0.3")
    path = definition(tmp_path, text.replace('"fedavg" }', '"fedavg" }\nchosen_by = "prior/estimate"'))
    results = Results(tmp_path / "results")
    for planned in tuning_runs(experiment := Experiment.read(path), "desk"):
        rate = float(planned.point["learning_rate"])  # the larger is better on validation, the smaller by the estimate
        selected = {Evaluation.RAW: SelectedRound(1, rate), Evaluation.PRIOR_BY_ESTIMATE: SelectedRound(1, 1 - rate)}
        row, method, digest = planned.key
        results.add(
            "tuning.jsonl",
            Summary(row=row, method=method, point=planned.point, digest=digest, run={}, selected=selected),
        )
    rates = {
        method: points.popitem()[1]["learning_rate"]
        for (_, method), points in chosen_points(experiment, results.tuning()).items()
    }
    assert rates == {"FedAvg": 0.05, "FedPALS": 0.2}
    better = [s for s in results.tuning() if s.point["learning_rate"] == 0.2 and s.method == "FedPALS"]
    for summary in better:  # a run that diverged counts as 0
        results.add("tuning.jsonl", summary.model_copy(update={"diverged": True}))
    results.keep("tuning.jsonl", tuning_runs(experiment, "desk"), [])
    rates = {
        method: points.popitem()[1]["learning_rate"]
        for (_, method), points in chosen_points(experiment, results.tuning()).items()
    }
    assert rates == {"FedAvg": 0.05, "FedPALS": 0.05}


def test_an_interrupted_experiment_continues_and_has_the_results_of_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = compute(TINY, tmp_path / "whole")
    for stop, tuned, reported in ((5, 5, 0), (9, 12, 2)):
        parts, outcome = compute(TINY, tmp_path / "parts", stopping_after(stop))
        assert (len(parts.tuning()), len(parts.runs())) == (tuned, reported)
        assert outcome.left == (12 - tuned if tuned < 12 else 6 - reported)
        assert outcome.failed == ()
    parts, outcome = compute(TINY, tmp_path / "parts")
    assert outcome.left == 0
    assert timeless(parts.tuning()) == timeless(whole.tuning())
    assert timeless(parts.runs()) == timeless(whole.runs())

    def forbidden(*_: object, **__: object) -> None:
        pytest.fail("a finished run was computed again")

    monkeypatch.setattr(computing, "simulate", forbidden)
    before = (parts.path / "runs.jsonl").read_bytes()
    again, outcome = compute(TINY, tmp_path / "parts")
    assert (outcome.failed, outcome.left) == ((), 0)
    assert (again.path / "runs.jsonl").read_bytes() == before
    # Lost results are rebuilt from the records, without training.
    (again.path / "runs.jsonl").unlink()
    restored, _ = compute(TINY, tmp_path / "parts")
    assert (restored.path / "runs.jsonl").read_bytes() == before


def test_results_to_which_nothing_is_added_keep_their_provenance(tmp_path: Path) -> None:
    results, _ = compute(TINY, tmp_path)
    results.keep_hours()
    path = results.path / "provenance.json"
    elsewhere = {**results.provenance, "processor": "another", "commit": "of another", "date": "2020-02-02"}
    path.write_text(json.dumps(elsewhere, indent=2) + "\n")
    before = path.read_bytes()
    again, _ = compute(TINY, tmp_path)
    again.keep_hours()
    assert path.read_bytes() == before
    more, _ = compute(TINY.replace("seeds = 2", "seeds = 3"), tmp_path)
    assert more.provenance["date"] > "2020-02-02"
    assert [(part["processor"], part["commit"]) for part in more.provenance["earlier"]] == [("another", "of another")]


def test_a_run_that_fails_is_listed_and_the_others_are_computed(tmp_path: Path) -> None:
    diverging = '[[method]]\nname = "Diverging"\nrun = { method = "fedprox", proximal_weight = 1e30, epochs = 4 }\n'
    results, outcome = compute(TINY + diverging, tmp_path)
    assert outcome.left == 0
    tuning = [f"C = {c}, Diverging, seed {TUNING_SEED}" for c in (2, 2, 3, 3)]
    assert [where for where, _ in outcome.failed] == [*tuning, "C = 2, Diverging", "C = 3, Diverging"]
    assert all("smaller learning_rate" in str(error) for _, error in outcome.failed[:4])
    assert all("not computed, because its tuning runs failed" in str(error) for _, error in outcome.failed[4:])
    assert len(results.tuning()) == 12
    assert {summary.method for summary in results.runs()} == {"FedAvg", "FedPALS"}
    assert len(results.runs()) == 6


def test_what_could_not_be_tuned_is_not_reported_and_the_same_command_makes_up_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(run: Run, *arguments: Any, **keywords: Any) -> Any:
        if run.seed == TUNING_SEED and run.method.name == "fedpals" and run.data.labels_per_client == 2:
            raise RuntimeError("killed")
        return simulate(run, *arguments, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(computing, "simulate", failing)
        results, outcome = compute(TINY, tmp_path / "parts")
    titles = [title for title, _ in outcome.failed]
    assert titles == [f"C = 2, FedPALS, seed {TUNING_SEED}"] * 4 + ["C = 2, FedPALS"]
    assert (
        str(outcome.failed[-1][1]) == "not computed, because its tuning runs failed; the same command tries them again"
    )
    assert {(s.row, s.method) for s in results.runs()} == {
        ("C = 2", "FedAvg"),
        ("C = 3", "FedAvg"),
        ("C = 3", "FedPALS"),
    }
    results, outcome = compute(TINY, tmp_path / "parts")
    assert outcome.failed == ()
    assert timeless(results.runs()) == timeless(compute(TINY, tmp_path / "whole")[0].runs())


def test_one_missing_tuning_run_is_enough_also_where_another_point_diverges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(run: Run, *arguments: Any, **keywords: Any) -> Any:
        if run.seed == TUNING_SEED and run.method.name == "fedavg":
            rate = run.plan.learning_rate
            if rate == 0.05:
                raise DivergedError("diverged; try a smaller learning_rate than 0.05")
            if run.data.labels_per_client == 3:
                raise RuntimeError("killed")
        return simulate(run, *arguments, **keywords)

    monkeypatch.setattr(computing, "simulate", failing)
    results, outcome = compute(TINY, tmp_path)
    reported = {(s.row, s.method): s.point for s in results.runs()}
    assert ("C = 3", "FedAvg") not in reported
    assert reported["C = 2", "FedAvg"] == {"learning_rate": 0.2}, "a point that diverges counts as 0"
    assert [title for title, _ in outcome.failed][-1] == "C = 3, FedAvg"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_every_tuning_run_fails_stops(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(run: Run, *_: Any, **__: Any) -> Any:
        if run.plan.learning_rate == 0.2 and run.method.name == "fedpals":
            signal.raise_signal(number)
        raise RuntimeError("killed")

    monkeypatch.setattr(computing, "simulate", failing)
    results, outcome = compute(TINY, tmp_path)
    assert outcome.stopped == number
    assert results.runs() == []


def test_results_follow_the_experiment_when_it_changes(tmp_path: Path) -> None:
    results, _ = compute(TINY, tmp_path)
    before = {summary.key: summary for summary in results.runs()}
    fewer = TINY.replace("seeds = 2", "seeds = 1").replace('"C = 3"', '"three"')
    results, outcome = compute(fewer, tmp_path)
    assert outcome.failed == ()
    after = results.runs()
    assert [(s.row, s.method, s.seed) for s in after] == [
        ("C = 2", "FedAvg", 0), ("C = 2", "FedPALS", 0), ("three", "FedAvg", 0), ("three", "FedPALS", 0),
    ]  # fmt: skip
    assert all(summary == before[summary.key] for summary in after if summary.row == "C = 2")


CAMERAS = """
title = "Cameras"
source = "Table 0"
metric = "macro_f1"
show = ["table", "dynamics", "weights"]

[run]
task = "iwildcam"
model = "logistic"
image_size = 8
clients = 3
rounds = 2

[scale.desk]
seeds = 1

[[row]]
name = "iWildCam"

[[method]]
name = "FedPALS, ESS 75 %"
run = { method = "fedpals", ess = 0.75 }

[[method]]
name = "FedAvg"
run = { method = "fedavg" }

[[case]]
name = "cameras"

[case.file]
path = "part/counts.csv"
labels = "part/names.csv"
clients = "train"
target = "test"
"""


@pytest.fixture
def fragment(tmp_path: Path) -> Path:
    """Counts without images; returns their data folder."""
    folder = tmp_path / "data" / "part"
    folder.mkdir(parents=True)
    lines = ["alia_file,wilds_split,location_remapped,y,count", "a,train,1,0,9", "a,train,4,1,3", "a,test,6,1,2"]
    (folder / "counts.csv").write_text("\n".join(lines) + "\n")
    (folder / "names.csv").write_text("y,english\n0,empty\n1,Peccary\n")
    return folder.parent


@pytest.mark.usefixtures("nowhere")
def test_iwildcam_from_the_official_layout_to_its_results(fragment: Path, iwildcam_like: Path, tmp_path: Path) -> None:
    assert fragment == iwildcam_like
    results, outcome = compute(CAMERAS, tmp_path, data_folder=iwildcam_like)
    assert (outcome.failed, outcome.left) == ((), 0)
    fedpals, fedavg = results.runs()
    assert (fedpals.method, fedavg.method) == ("FedPALS, ESS 75 %", "FedAvg")
    for summary in (fedpals, fedavg):
        view = summary.federation
        assert view is not None
        assert view.labels == ["empty", "peccary", "agouti"]
        # Locations of 9, 7, 5, 4 and 2 images, largest first to the client that is smallest then.
        assert sorted(map(sum, view.counts)) == [9, 9, 9]
        assert view.target == pytest.approx([1 / 3] * 3)
        test = summary.selected[Evaluation.RAW].test
        assert test is not None
        assert 0 <= test.macro_f1 <= 1
        assert len(summary.curve) == 2
    assert fedavg.federation is not None
    assert fedavg.federation.alpha == pytest.approx([1 / 3] * 3)
    (case,) = results.experiment.case
    assert case.clients == ["camera 1", "camera 4"]
    assert np.array_equal(case.counts, [[9, 0], [0, 3]])


@pytest.mark.usefixtures("nowhere")
def test_without_images_the_runs_say_which_files_are_missing_and_the_weights_are_there(
    fragment: Path, tmp_path: Path
) -> None:
    results, outcome = compute(CAMERAS, tmp_path, data_folder=fragment)
    assert [where for where, _ in outcome.failed] == ["iWildCam, FedPALS, ESS 75 %, seed 0", "iWildCam, FedAvg, seed 0"]
    assert all("iwildcam: cannot find metadata.csv, categories.csv; searched" in str(e) for _, e in outcome.failed)
    assert results.runs() == []
    assert [case.target for case in results.experiment.case] == [[0.0, 1.0]]
    # What was counted once stays, wherever the file is now, and so does what it was counted with.
    (fragment / "part" / "counts.csv").unlink()
    stored = {**results.provenance, "commit": "of another"}
    (results.path / "provenance.json").write_text(json.dumps(stored))
    results, outcome = compute(CAMERAS, tmp_path, data_folder=fragment)
    assert "cameras" not in [where for where, _ in outcome.failed]
    assert results.provenance == stored


@pytest.mark.usefixtures("nowhere")
def test_a_case_without_its_file_is_listed_and_the_runs_are_computed(iwildcam_like: Path, tmp_path: Path) -> None:
    results, outcome = compute(CAMERAS, tmp_path, data_folder=iwildcam_like)
    ((where, error),) = outcome.failed
    assert where == "cameras"
    assert f"expected at {iwildcam_like / 'part' / 'counts.csv'}" in str(error)
    assert len(results.runs()) == 2
    assert results.experiment.case == []
    assert not (results.path / "cases.json").exists()
