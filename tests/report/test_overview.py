"""The page of a study: what it says of runs made by hand, under way and damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import fedpals
from fedpals.engine.recorded import complete_lines, to_line
from fedpals.engine.round import Refusal
from fedpals.report.light import (
    Check,
    check_coverage,
    check_divergence,
    check_ess,
    check_estimate,
    check_refusals,
    worst,
)
from fedpals.report.overview import overview
from fedpals.report.watched import watched
from tests.report import made


def test_lights_and_their_reasons() -> None:
    covered = check_coverage(fedpals.solve(made.COUNTS, made.TARGET, lam=0))
    assert (covered.light, "covered" in covered.text) == ("green", True)
    assert check_coverage(fedpals.solve([[1, 0], [1, 0]], [0.9, 0.1], lam=0)).light == "amber"
    assert check_coverage(fedpals.solve([[1, 0], [1, 0]], [0.5, 0.5], lam=0)).light == "red"
    assert check_ess("FedPALS", 0.1).light == "amber"
    assert check_ess("FedPALS", 0.4).light == "green"
    assert [check_refusals(n, 10).light for n in (0, 1, 6)] == ["green", "amber", "red"]
    assert [check_estimate(error).light for error in (None, 0.06, 0.01)] == ["amber", "amber", "green"]
    assert [check_estimate(0.0, unseen).light for unseen in (0.02, 0.3)] == ["amber", "red"]
    assert check_divergence([]) is None
    assert worst([Check("green", ""), Check("red", ""), Check("amber", "")]) == "red"
    assert worst([]) == "green"


def test_an_overview_has_estimates_with_errors_and_paired_differences() -> None:
    (shop,) = overview(made.watched_runs(), "T")["federations"]
    assert shop["progress"][1] == {"method": "FedPALS", "rounds": 6, "planned": 20, "runs": 2, "finished": 0}
    first, *_, last = shop["table"]["rows"]
    assert (first["test"], first["estimate"], first["difference"]) == ("52.5 ± 0.7", "52.5 ± 2.0", "")
    assert (last["difference"], last["verdict"], last["seeds"]) == ("+10.0 ± 0.0", "better", 2)
    assert shop["table"]["final"] is False
    curves = {chart["title"]: chart["lines"] for chart in shop["charts"]}
    assert curves["Estimated target accuracy"][0]["points"][0] == [1, 50.5, 2.0]
    assert curves["Target accuracy"][1]["points"][-1] == [3, 62.5, 0.71]
    solved = {bar["name"]: bar["values"] for chart in shop["charts"] for bar in chart["bars"]}
    assert solved["target"] == pytest.approx([20, 30, 50])


def test_the_effective_sample_size_is_the_papers() -> None:
    fedavg, _, pals, _ = made.watched_runs()
    assert fedavg.ess() == pytest.approx([1.0] * 3)
    alpha = pals.lines[0].weights.alpha
    total = sum(made.SIZES)
    expected = 1 / (total * sum(a * a / n for a, n in zip(alpha, made.SIZES, strict=True)))
    assert pals.ess()[0] == pytest.approx(expected)


def test_refused_updates_are_named() -> None:
    run, *_ = made.watched_runs()
    spoilt = replace(run.lines[-1], refused=(Refusal(2, "3 of 5 parameters are NaN or infinite"),))
    (shop,) = overview([replace(run, lines=[*run.lines[:-1], spoilt])], "T")["federations"]
    assert shop["refused"] == ["FedAvg, seed 0, round 3: client 2: 3 of 5 parameters are NaN or infinite"]
    assert shop["light"] == "amber"


def test_clients_that_have_names_keep_them() -> None:
    run, *_ = made.watched_runs()
    assert run.view is not None
    spoilt = replace(run.lines[-1], refused=(Refusal(2, "far"),))
    named = replace(run, view=replace(run.view, clients=("Nice", "Oslo", "Pisa", "Riga")), lines=[spoilt])
    (shop,) = overview([named], "T")["federations"]
    (weights,) = (chart for chart in shop["charts"] if chart["title"] == "Weights of the clients")
    assert weights["names"] == ["Nice", "Oslo", "Pisa", "Riga"]
    assert shop["refused"] == ["FedAvg, seed 0, round 3: Pisa: far"]
    assert shop["table"]["rows"][0]["test"] == "52.0"  # one seed has no spread


def test_an_estimate_says_what_part_of_the_target_it_cannot_know() -> None:
    run, *_ = made.watched_runs()
    assert run.view is not None
    lacking = replace(run, view=replace(run.view, counts=tuple((0, *row[1:]) for row in run.view.counts)))
    (shop,) = overview([lacking], "T")["federations"]
    assert shop["light"] == "red"
    assert any("leave out 20% of the target, whose labels no client has" in check["text"] for check in shop["checks"])


def test_before_the_first_round_and_without_any_run() -> None:
    run, *_ = made.watched_runs()
    (shop,) = overview([replace(run, lines=[], view=None)], "T")["federations"]
    assert (shop["charts"], shop["table"]["rows"]) == ([], [])
    assert overview([], "T")["federations"] == []


def test_a_half_written_line_waits_for_its_end() -> None:
    text = "".join(to_line(made.round_line(i, 0.5, made.FEDAVG)) for i in (1, 2, 3))
    assert [line.round for line in complete_lines(text)] == [1, 2, 3]
    for cut in (1, 20, 200):
        assert [line.round for line in complete_lines(text[:-cut])] == [1, 2]
    assert complete_lines("") == []
    assert complete_lines("nonsense\n") == []


def test_folders_that_are_empty_or_hold_something_else(tmp_path: Path) -> None:
    assert watched([tmp_path]) == []
    (tmp_path / "config.toml").write_text("task = ")
    (tmp_path / "about.json").write_text("{")
    assert watched([tmp_path]) == []
    with pytest.raises(fedpals.InputError, match="absent: no such folder"):
        watched([tmp_path / "absent"])
