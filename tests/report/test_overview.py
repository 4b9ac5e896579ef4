"""The page of a study: what it says of runs made by hand, under way and damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedpals
from fedpals.engine.metrics import Estimated, HeldOutMetrics, Scores
from fedpals.engine.recorded import complete_lines, to_line
from fedpals.engine.round import Refusal
from fedpals.report.light import (
    Check,
    check_coverage,
    check_divergence,
    check_ess,
    check_estimate,
    check_label_shift,
    check_refusals,
    worst,
)
from fedpals.report.overview import overview
from fedpals.report.watched import WatchedRun, watched
from fedpals.shift import Homogeneity, Tally
from fedpals.shift.homogeneity import ClientTest, LabelTest
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
    assert curves["Estimated target accuracy"][0]["points"][0] == [1, 50.5, 48.5, 52.5]
    assert curves["Target accuracy"][1]["points"][-1] == [3, 62.5, 61.79, 63.21]
    solved = {bar["name"]: bar["values"] for chart in shop["charts"] for bar in chart["bars"]}
    assert solved["target"] == pytest.approx([20, 30, 50])


def ended(runs: list[WatchedRun], accuracy: float, balanced: float) -> list[WatchedRun]:
    """Let runs end with an estimated accuracy and balanced accuracy, of a target without samples."""
    clients = HeldOutMetrics(accuracy, accuracy, 0.02, balanced_accuracy=Estimated(balanced))
    return [
        replace(run, lines=[replace(line, raw=Scores(clients=clients)) for line in run.lines], planned=len(run.lines))
        for run in runs
    ]


def test_a_model_that_is_no_better_than_a_constant_guess_is_named() -> None:
    fedavg, pals = made.watched_runs()[:2], made.watched_runs()[2:]
    (shop,) = overview([*ended(fedavg, 0.51, 0.8), *ended(pals, 0.56, 0.4)], "T")["federations"]
    first, last = (next(r for r in shop["table"]["rows"] if r["method"] == m) for m in ("FedAvg", "FedPALS"))
    assert (first["balanced"], last["balanced"]) == ("80.0", "40.0")
    assert (first["guess"], last["guess"]) == (True, False)  # half of the target are boots; ± 2 points
    assert (
        "predicting 'boot', the target's most frequent label, would have an accuracy of 50.0 and a balanced "
        in (shop["table"]["majority"])
    )
    warnings = [check for check in shop["checks"] if "No better than always predicting 'boot'" in check["text"]]
    assert [(w["light"], w["text"].endswith(": FedAvg as trained.")) for w in warnings] == [("amber", True)]
    under_way = [replace(run, planned=10) for run in ended(fedavg, 0.51, 0.8)]
    (shop,) = overview(under_way, "T")["federations"]
    assert not any("No better" in check["text"] for check in shop["checks"]), "what is not finished may become better"


def test_a_client_that_differs_and_carries_the_weight_is_not_to_be_left_out() -> None:
    clients = tuple(ClientTest(name, 40, 0.0, 0.0, -0.4, 9.0) for name in ("va", "cleveland"))
    test = Homogeneity("red", 1e-5, 0.4, 0.2, (LabelTest("sick", 80, 2, 0.0, 0.0, 0.4),), (), clients, (), ("va",))
    light = {"FedAvg": {"va": 0.2, "cleveland": 0.8}}
    assert check_label_shift(test, light).text == test.advice
    assert "leave out client va" in test.advice
    heavy = {**light, "FedPALS": {"va": 0.999, "cleveland": 0.001}}
    assert check_label_shift(test, heavy).text == (
        "The clients differ within labels (p = 1e-05, V = 0.40): client va differs from the others, and carries all "
        "the weight of FedPALS. Ask what differs there before you use the model."
    )
    assert "carries 60 % of the weight of FedPALS" in check_label_shift(test, {"FedPALS": {"va": 0.6}}).text


def test_the_page_takes_the_weights_of_the_last_round_by_name() -> None:
    rng = np.random.default_rng(0)
    alike, other = 0.8 * np.eye(3) + 0.2 / 3, np.roll(np.eye(3), 1, axis=1)
    confusions = [rng.multinomial(np.full(3, 60), other if i == 3 else alike) for i in range(4)]
    tallies = [Tally(np.zeros(3), np.zeros(3), confusion) for confusion in confusions]
    view = replace(made.VIEW, clients=("Nice", "Oslo", "Pisa", "Riga"))
    fedavg, _, pals, _ = made.watched_runs()
    line = made.round_line(1, 0.6, [0.0, 0.0, 0.1, 0.9])
    runs = [replace(fedavg, view=view, tallies=tallies), replace(pals, view=view, lines=[line])]
    texts = [check["text"] for check in overview(runs, "T")["federations"][0]["checks"]]
    assert any("Riga differs from the others, and carries 90 % of the weight of FedPALS" in text for text in texts)


def test_of_chosen_sizes_the_band_is_the_range_of_the_seeds() -> None:
    runs = made.watched_runs()[2:]
    other = replace(runs[1], lines=[made.round_line(1, 0.5, made.FEDAVG)])
    (shop,) = overview([runs[0], other], "T")["federations"]
    (chart,) = (chart for chart in shop["charts"] if chart["title"] == "Effective sample size")
    low, high = 100 * runs[0].ess()[0], 100.0
    assert chart["lines"][0]["points"][0] == pytest.approx([1, (low + high) / 2, low, high], abs=0.01)


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
    assert any("leave out 20 % of the target, whose labels no client has" in check["text"] for check in shop["checks"])


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
