"""The answer of the front page, from numbers made by hand."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fedpals.experiments.experiment import Column
from fedpals.report.answer import answer
from fedpals.report.choices import choices, finding, mean_of, overall
from fedpals.report.finished import is_limit, read
from fedpals.report.paired import Paired
from fedpals.shift.evaluation import Evaluation
from fedpals.simulation.run import Run
from tests.report import made


def test_choices_are_ranked_by_their_mean_paired_difference_without_oracles() -> None:
    ranked = choices(made.finished())
    # FedPALS: +27 points at C = 3, −2 at C = 6; the correction adds a point to everybody.
    assert [(c.title, round(100 * c.gain.difference, 6)) for c in ranked] == [
        ("FedPALS +prior", 13.5),
        ("FedPALS (as trained)", 12.5),
        ("FedAvg +prior", 1.0),
        ("FedAvg (as trained)", 0.0),
    ]
    assert ranked[1].record == "better in 1 of 2 rows, equal in 1"
    # (3² + 8²)^½ / 2: the standard errors of the rows are 3 and 8 points.
    assert ranked[1].gain.error == pytest.approx((0.03**2 + 0.08**2) ** 0.5 / 2)


def test_choices_that_lack_a_row_are_left_out() -> None:
    runs = [*made.summaries(), made.summary("C = 3", "Rare", 0, 0.99)]
    finished = made.finished(runs)
    extra = [*finished.experiment.method, Column(name="Rare", run={"method": "fedrs"})]
    ranked = choices(made.finished(runs, method=[m.model_dump() for m in extra]))
    assert "Rare" not in {choice.method.name for choice in ranked}


def test_a_mean_without_some_error_has_none() -> None:
    mean = mean_of([Paired(0.1, None, 1), Paired(0.3, 0.1, 8)])
    assert mean.difference == pytest.approx(0.2)
    assert (mean.error, mean.seeds) == (None, 9)


def test_the_answer_is_computed_from_the_records() -> None:
    said = answer([made.finished()])
    assert said is not None
    (advice,) = said.advice
    assert advice.headline == "Use FedPALS +prior"
    assert "13.5 ± 4.3 points above FedAvg as trained" in advice.text
    assert len(said.table.columns) <= 6
    assert len(said.table.rows) <= 6
    assert [cell.text for cell in said.table.rows[0][:2]] == ["C = 3", "65.0"]
    assert said.bars[0].title == "FedPALS"
    assert "as trained: better in 1, equal in 1, worse in 0 of 2 rows" in " ".join(said.certainty)
    worse = [s.model_copy(update={"selected": {e: made.selected(0.1) for e in s.selected}})
             if s.method == "FedPALS" else s for s in made.summaries()]  # fmt: skip
    other = answer([made.finished(worse)])
    assert other is not None
    assert other.advice[0].headline == "Use FedAvg +prior"


def test_the_command_is_one_that_fedpals_takes() -> None:
    said = answer([made.finished()])
    assert said is not None
    train, predict = said.advice[0].commands
    words = shlex.split(train)
    assert words[:2] == ["fedpals", "run"]
    flags = dict(zip((word[2:].replace("-", "_") for word in words[2::2]), words[3::2], strict=True))
    assert flags["ess"] == "0.25"
    keys = {key: value for key, value in flags.items() if key not in ("task", "client_key", "target")}
    assert Run.of({**keys, "ess": float(keys["ess"])}).method.name == "fedpals"
    assert predict.endswith("--use prior")


def test_the_stored_results_have_an_answer() -> None:
    folder = Path(__file__).parents[2] / "results"
    if not folder.is_dir():
        pytest.skip("no stored results")
    experiments, _ = read([folder])
    said = answer(experiments)
    assert said is not None
    assert said.advice[0].headline.startswith("Use ")
    # The recommended recipe was put together by test accuracies: where the page praises it, it says so.
    assert ("tuning seeds" in said.advice[0].text) == ("Recommended" in said.advice[0].headline)
    assert (len(said.table.rows), len(said.table.columns)) <= (6, 6)
    assert len(said.table.columns) <= 6
    assert all(cell.text for row in said.table.rows for cell in row)
    assert all(finding(finished) or not finished.runs for finished in experiments)


def test_a_choice_with_its_own_network_is_not_the_only_advice() -> None:
    methods = [{**m.model_dump(), "apart": m.name == "FedPALS"} for m in made.finished().experiment.method]
    said = answer([made.finished(method=methods)])
    assert said is not None
    assert [a.headline for a in said.advice] == [
        "Use FedPALS +prior",
        "With the same network for every method: FedAvg +prior",
    ]


def test_a_head_that_predict_does_not_know_needs_no_target_sample_and_is_not_the_only_advice() -> None:
    runs = [s.model_copy(update={"selected": {**s.selected, Evaluation.GAUSSIAN: made.selected(0.99)}})
            for s in made.summaries()]  # fmt: skip
    said = answer([made.finished(runs)])
    assert said is not None
    assert [a.headline for a in said.advice] == [
        "Use FedPALS (Gaussian head)",
        "Best that fedpals predict can use: FedPALS +prior",
    ]
    assert "needs no sample of the target" in said.advice[0].text


def test_without_something_to_compare_there_is_no_answer() -> None:
    only = [s for s in made.summaries() if s.method == "FedPALS"]
    finished = made.finished(only)
    assert answer([finished]) is None
    assert finding(finished) == "FedPALS +prior: from 88.0 % (C = 6) to 93.0 % (C = 3)."


def test_findings_and_the_count_over_all_experiments() -> None:
    finished = made.finished()
    assert finding(finished) == (
        "Best: FedPALS +prior, 13.5 ± 4.3 points above FedAvg as trained; FedPALS (as trained): +12.5 ± 4.3."
    )
    counted = overall([finished, finished], Evaluation.RAW, "as trained")
    assert counted.sentence == "as trained: better in 2, equal in 2, worse in 0 of 4 rows"


def test_oracle_and_pooled_training_are_limits_and_no_choice() -> None:
    assert all(is_limit({"method": name}) for name in ("oracle", "pooled", "fedprox+pooled", "pooled+oracle"))
    assert not any(is_limit({"method": name}) for name in ("fedavg", "fedprox+fedpals"))
