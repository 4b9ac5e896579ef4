"""The small files that tables and figures are made from."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fedpals.engine.metrics import Metrics
from fedpals.errors import InputError
from fedpals.experiments.experiment import Experiment, PlannedRun, choose_points, reported_runs
from fedpals.experiments.provenance import provenance, same_platform
from fedpals.experiments.results import Results, Summary
from fedpals.shift.evaluation import Evaluation
from fedpals.simulation.record import SelectedRound
from fedpals.simulation.simulator import simulate
from tests.experiments.conftest import TINY, definition
from tests.runs import lines_of, result_of


@pytest.fixture
def planned(tiny: Experiment) -> list[PlannedRun]:
    return reported_runs(tiny, "desk", choose_points(tiny, {}))


def summary(plan: PlannedRun, score: float = 0.5) -> Summary:
    return Summary(
        row=plan.row,
        method=plan.method,
        point=plan.point,
        digest=plan.run.digest,
        run=plan.run.keys(),
        selected={Evaluation.RAW: SelectedRound(1, score, Metrics(score, score, ()))},
    )


def test_runs_are_appended_and_read_back(tmp_path: Path, planned: list[PlannedRun]) -> None:
    results = Results(tmp_path / "results" / "tiny")
    assert results.runs() == results.tuning() == []
    written = [summary(plan, i / 10) for i, plan in enumerate(planned)]
    for one in written:
        results.add("runs.jsonl", one)
    results.add("tuning.jsonl", written[0])
    assert results.runs() == written
    assert results.tuning() == written[:1]
    assert [run.key for run in results.runs()] == [plan.key for plan in planned]
    assert [run.configuration for run in results.runs()] == [plan.run for plan in planned]


def test_a_line_that_was_cut_off_is_a_run_that_is_not_there(tmp_path: Path, planned: list[PlannedRun]) -> None:
    results = Results(tmp_path)
    path = tmp_path / "runs.jsonl"
    for plan in planned[:2]:
        results.add("runs.jsonl", summary(plan))
    path.write_text(path.read_text()[:-20])
    assert [run.key for run in results.runs()] == [planned[0].key]
    # The next sweep begins with `keep`; what it appends must not grow together with the rest of the line.
    results.keep("runs.jsonl", planned, ["table"])
    results.add("runs.jsonl", summary(planned[2]))
    assert [run.key for run in results.runs()] == [planned[0].key, planned[2].key]


def test_a_cut_off_line_that_stands_alone_does_not_spoil_what_follows(
    tmp_path: Path, planned: list[PlannedRun]
) -> None:
    results = Results(tmp_path)
    (tmp_path / "runs.jsonl").write_text('{"row": "C =')
    results.keep("runs.jsonl", planned, ["table"])
    for plan in planned[:2]:
        results.add("runs.jsonl", summary(plan))
    assert [run.key for run in results.runs()] == [plan.key for plan in planned[:2]]


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path, planned: list[PlannedRun]) -> None:
    results = Results(tmp_path)
    for plan in planned[:2]:
        results.add("runs.jsonl", summary(plan))
    path = tmp_path / "runs.jsonl"
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(InputError, match=r"runs.jsonl, line 1: not a run's summary"):
        results.runs()


@pytest.mark.parametrize("content", [b"", b'{"scale": "de', b"\xff\xfe", b"3"])
def test_damaged_provenance_names_its_file_and_the_remedy(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_bytes(content)
    with pytest.raises(
        InputError, match=r"provenance\.json: damaged \(.*\); delete it, and fedpals reproduce writes it"
    ):
        Results(tmp_path).begin(definition(tmp_path, TINY), "desk", "fedpals reproduce tiny")


@pytest.mark.parametrize("line", [b"", b"{}", b"\xff\xfe", b'{"row": 1'])
def test_a_damaged_line_is_one_sentence(line: bytes, tmp_path: Path, planned: list[PlannedRun]) -> None:
    results = Results(tmp_path)
    results.add("runs.jsonl", summary(planned[0]))
    path = tmp_path / "runs.jsonl"
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(InputError) as caught:
        results.runs()
    told = str(caught.value)
    assert told.startswith(f"{path}, line 1: not a run's summary (")
    assert told.endswith("); delete the line, and fedpals reproduce writes it again")
    assert "\n" not in told


def test_what_another_command_adds_counts_once_and_half_a_line_of_a_killed_one_is_cut(
    tmp_path: Path, planned: list[PlannedRun]
) -> None:
    results, path = Results(tmp_path), tmp_path / "runs.jsonl"
    for plan in (planned[0], planned[1], planned[0]):
        results.add("runs.jsonl", summary(plan))
    assert [run.key for run in results.runs()] == [planned[0].key, planned[1].key]
    path.write_bytes(path.read_bytes() + b'{"row": "C =')
    results.add("runs.jsonl", summary(planned[2]))
    assert [run.key for run in results.runs()] == [plan.key for plan in planned[:3]]
    assert {file.name for file in tmp_path.iterdir()} == {"runs.jsonl", "experiments"}


def test_keep_drops_what_the_experiment_no_longer_has_and_orders_the_rest(
    tmp_path: Path, planned: list[PlannedRun]
) -> None:
    results = Results(tmp_path)
    for plan in reversed(planned):
        results.add("runs.jsonl", summary(plan))
    results.add("runs.jsonl", summary(planned[0], 0.9))  # again: the last one counts
    results.keep("runs.jsonl", planned[:4], ["table"])
    assert [run.key for run in results.runs()] == [plan.key for plan in planned[:4]]
    assert results.runs()[0].selected[Evaluation.RAW].score == 0.9
    results.keep("runs.jsonl", [], ["table"])
    assert results.runs() == []
    results.keep("tuning.jsonl", planned, [])
    assert not (tmp_path / "tuning.jsonl").exists()


def test_keep_takes_the_points_that_the_grid_has_now(tmp_path: Path, planned: list[PlannedRun]) -> None:
    """A key that is no longer tuned leaves the runs as they are; only what tells them apart in the grid changes."""
    results, now = Results(tmp_path), replace(planned[0], point={})
    results.add("tuning.jsonl", summary(replace(planned[0], point={"learning_rate": 0.03})))
    results.keep("tuning.jsonl", [now], [])
    assert results.tuning() == [summary(now).thinned([])]


def test_what_is_computed_is_written_down(tmp_path: Path) -> None:
    results = Results(tmp_path / "results" / "tiny")
    results.begin(definition(tmp_path, TINY), "desk", "fedpals reproduce tiny")
    assert results.experiment.title == "A tiny experiment"
    facts = results.provenance
    assert (facts["command"], facts["scale"]) == ("fedpals reproduce tiny", "desk")
    assert {"version", "kernel", "date", "python", "torch", "numpy"} <= facts.keys()
    assert facts["processor"]
    assert facts["threads"]["cores"] >= 1
    here = provenance("another command", "paper")
    assert same_platform(facts, here)
    for name in ("processor", "instructions", "kernel", "torch"):
        assert not same_platform({**facts, name: "another"}, here)
        assert not same_platform({key: fact for key, fact in facts.items() if key != name}, here)


def test_results_that_go_on_elsewhere_name_every_platform(tmp_path: Path, planned: list[PlannedRun]) -> None:
    results, path = Results(tmp_path / "tiny"), definition(tmp_path, TINY)
    results.begin(path, "desk", "fedpals reproduce tiny")
    here = results.provenance
    results.begin(path, "desk", "fedpals reproduce tiny")
    assert "earlier" not in results.provenance
    results.add("runs.jsonl", summary(planned[0]))
    for processor, plan in zip(("another", "a third", "another"), planned[1:], strict=False):
        stored = {**results.provenance, "processor": processor, "commit": f"of {processor}"}
        (results.path / "provenance.json").write_text(json.dumps(stored))
        results.begin(path, "desk", "fedpals reproduce tiny")
        assert results.provenance == stored, "nothing is added yet"
        results.add("runs.jsonl", summary(plan))
    facts = results.provenance
    assert [(part["processor"], part["commit"]) for part in facts["earlier"]] == [
        ("another", "of another"),
        ("a third", "of a third"),
    ]
    assert facts["processor"] == here["processor"]
    assert not same_platform(facts, here)


def test_the_provenance_tells_the_hours(tmp_path: Path, planned: list[PlannedRun]) -> None:
    results = Results(tmp_path / "tiny")
    results.begin(definition(tmp_path, TINY), "desk", "fedpals reproduce tiny")
    for plan in planned[:2]:
        results.add("runs.jsonl", summary(plan).model_copy(update={"seconds": 5400.0}))
    results.add("tuning.jsonl", summary(planned[2]).model_copy(update={"seconds": 900.0}))
    results.keep_hours()
    assert results.provenance["core_hours"] == {"tuning": 0.25, "reported": 3.0}
    assert results.provenance["command"] == "fedpals reproduce tiny"


def test_the_commit_is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        head = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout
        assert head.startswith(provenance("", "")["commit"].rstrip("+"))
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert "commit" not in provenance("", "")


def test_a_commit_has_a_plus_if_the_code_differs_from_it_not_if_results_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *who, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    code, result = tmp_path / "src" / "fedpals" / "experiments" / "provenance.py", tmp_path / "results.jsonl"
    code.parent.mkdir(parents=True)
    code.write_text("code\n")
    result.write_text("1\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    monkeypatch.setattr("fedpals.experiments.provenance.__file__", str(code))
    head = git("rev-parse", "--short=12", "HEAD")
    result.write_text("2\n")
    assert provenance("", "")["commit"] == head
    code.write_text("other code\n")
    assert provenance("", "")["commit"] == f"{head}+"


def test_a_summary_holds_what_the_record_says(tmp_path: Path, planned: list[PlannedRun]) -> None:
    plan = planned[2]
    record = simulate(plan.run, tmp_path)
    whole = Summary.of(plan, record, show=["table", "dynamics"])
    result, lines = result_of(record), lines_of(record)
    assert whole.key == plan.key
    selected = json.loads(whole.model_dump_json(exclude_none=True))["selected"]
    for evaluation, stored in result["selected"].items():
        test = {name: round(v, 7) for name, v in stored["test"].items() if isinstance(v, float)}
        assert selected.pop(evaluation) == {**stored, "test": {**test, "per_label": []}}
    assert not selected
    assert whole.curve == [round(line["raw"]["test"]["accuracy"], 5) for line in lines]
    assert whole.federation is not None
    assert whole.federation.alpha == lines[-1]["weights"]["alpha"]
    assert sum(map(sum, whole.federation.counts)) == whole.samples == result["samples"]
    recalls = Summary.of(plan, record, show=["labels"]).selected[Evaluation.RAW].test
    assert recalls is not None
    assert recalls.per_label == pytest.approx(tuple(result["selected"]["raw"]["test"]["per_label"]), abs=1e-5)
    short = Summary.of(plan, record)
    assert (short.curve, short.federation) == ([], None)
    assert not Summary.of(plan, record, show=["table"]).curve
    assert Summary.of(plan, record, metric="macro_f1", show=["dynamics"]).curve != whole.curve
    assert Summary.model_validate_json(json.dumps(whole.model_dump(exclude_none=True))) == whole
