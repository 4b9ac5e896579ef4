"""Beyond the paper: selection rules, the test of label shift and private counts, from numbers made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedpals.experiments.results import FinalView, Summary
from fedpals.report.exhibit import Exhibit
from fedpals.report.views import exhibits
from fedpals.rng import generator
from fedpals.shift import Tally
from fedpals.shift.evaluation import Correction, Evaluation, SelectedBy
from fedpals.weights import solve
from tests.report import made


def only(view: str, runs: list[Summary], **changes: Any) -> Exhibit:
    (exhibit,) = exhibits(made.finished(runs, show=[view], **changes))
    return exhibit


def lines(exhibit: Exhibit) -> list[list[str]]:
    return [[cell.text for cell in row] for row in exhibit.sheet.rows]


def held_out(method: str, seed: int, **scores: tuple[float, float]) -> Summary:
    """A run whose rules each have a score and the test accuracy of the round that they select."""
    selected = {
        Evaluation.of(Correction.PRIOR, SelectedBy(rule)): made.selected(test, score=score)
        for rule, (score, test) in scores.items()
    }
    whole = made.summary("C = 3", method, seed, 0.5)
    return whole.model_copy(update={"selected": {**whole.selected, **selected}})


def test_every_rule_chooses_rounds_and_methods_by_its_own_score() -> None:
    runs = [
        held_out("FedPALS", 0, validation=(0.9, 0.80), estimate=(0.7, 0.78), pooled=(0.5, 0.60)),
        held_out("FedPALS", 1, validation=(0.9, 0.90), estimate=(0.7, 0.90), pooled=(0.5, 0.70)),
        held_out("FedAvg", 0, validation=(0.8, 0.70), estimate=(0.8, 0.70), pooled=(0.6, 0.50)),
        held_out("FedAvg", 1, validation=(0.8, 0.70), estimate=(0.6, 0.60), pooled=(0.4, 0.40)),
    ]
    exhibit = only("selection", runs)
    assert exhibit.sheet.columns[3:] == (
        "target validation", "clients' estimate", "pooled clients", "lost by the estimate", "lost by pooling",
    )  # fmt: skip
    assert lines(exhibit) == [
        ["C = 3", "+prior", "FedPALS", "85.0 ± 7.1", "84.0 ± 8.5", "65.0 ± 7.1", "1.0 ± 1.4", "20.0 ± 0.0"],
        ["C = 3", "+prior", "FedAvg", "70.0 ± 0.0", "65.0 ± 7.1", "45.0 ± 7.1", "5.0 ± 7.1", "25.0 ± 7.1"],
        # validation takes FedPALS twice; the estimate FedAvg, then FedPALS; pooling FedAvg, then FedPALS
        ["C = 3", "+prior", "chosen by the rule", "85.0 ± 7.1", "80.0 ± 14.1", "60.0 ± 14.1", "5.0 ± 7.1",
         "25.0 ± 7.1"],
    ]  # fmt: skip
    ax: Any = made.figure(exhibit).axes[0]
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([85, 80, 60])


def test_without_held_out_samples_there_is_nothing_to_compare() -> None:
    for view in ("selection", "check", "unknown", "privacy"):
        assert exhibits(made.finished(show=[view])) == []


def tallies(right: list[float], seed: int) -> list[dict[str, Any]]:
    """Tallies of clients that recognise this share of every label."""
    rng = generator(seed, "tallies")
    tallies = []
    for share in right:
        y = rng.integers(0, 3, 400)
        predicted = np.where(rng.random(400) < share, y, (y + 1) % 3)
        tallies.append(Tally.of(y, np.eye(3)[predicted] * 4.0).to_json())
    return tallies


def checked(row: str, right: list[float], seed: int) -> Summary:
    return made.summary(row, "FedAvg", seed, 0.5).model_copy(update={"tallies": tallies(right, seed)})


def test_lights_alarms_and_names_of_clients() -> None:
    same = [checked("C = 3", [0.8, 0.8, 0.8, 0.8], seed) for seed in range(8)]
    other = [checked("C = 6", [0.8, 0.8, 0.4, 0.8], seed) for seed in range(3)]
    exhibit = only("check", same + other)
    green, red = lines(exhibit)
    assert (green[0], green[3], green[2][-5:]) == ("C = 3", "8", "green")
    assert (red[2], red[3], red[4]) == ("3 red", "3", "100 %")
    assert "2 (3)" in red[8]
    assert exhibit.sheet.rows[1][2].mark == "red"
    assert float(red[5]) < 1e-6 < float(green[5])
    assert float(red[6]) > 0.1 > float(green[6])


def test_clients_that_have_names_are_named() -> None:
    def named(summary: Summary) -> Summary:
        assert summary.federation is not None
        view = summary.federation.model_copy(update={"clients": ["Oslo", "Pisa", "Riga", "Turin"]})
        return summary.model_copy(update={"federation": view})

    finished = made.finished([named(checked("C = 3", [0.8, 0.8, 0.4, 0.8], seed)) for seed in range(3)])
    (federation,) = finished.federations
    assert federation.counts.clients == ("Oslo", "Pisa", "Riga", "Turin")
    (line,) = lines(only("check", list(finished.runs)))
    assert "Riga (3)" in line[8]


def private(epsilon: float, counts: list[list[int]], seed: int) -> Summary:
    noisy = solve(counts, made.TARGET, ess=0.5)
    view = FinalView(
        labels=made.LABELS, counts=counts, target=made.TARGET, participants=[0, 1, 2, 3], alpha=noisy.alpha.tolist(),
        exact_counts=made.COUNTS, moved=0.2,
    )  # fmt: skip
    run = {"task": "digits", "method": "fedpals", "ess": 0.5, "seed": seed, "count_epsilon": epsilon}
    return made.summary("C = 3", "FedPALS", seed, 0.5).model_copy(update={"federation": view, "run": run})


def test_misplaced_weight_is_against_the_weights_of_exact_counts() -> None:
    exact = private(1.0, made.COUNTS, 0)
    assert lines(only("privacy", [exact]))[0][2:4] == ["0.0 ± 0.0", "20.0 ± 0.0"]
    swapped = [made.COUNTS[1], made.COUNTS[0], *made.COUNTS[2:]]
    line = lines(only("privacy", [private(1.0, swapped, 0)]))[0]
    ours, theirs = (solve(counts, made.TARGET, ess=0.5) for counts in (swapped, made.COUNTS))
    assert line[2] == f"{50 * np.abs(ours.alpha - theirs.alpha).sum():.1f} ± 0.0"
    mix = ours.alpha @ theirs.counts.marginals
    assert float(line[4]) == pytest.approx(np.square(np.array(made.TARGET) - mix).sum(), rel=1e-3)
    assert float(line[5]) == pytest.approx(theirs.squared_distance, rel=1e-3)


def test_the_share_of_t_that_is_wrong() -> None:
    runs = []
    for seed, target in enumerate(([0.3, 0.3, 0.4], [0.2, 0.3, 0.5])):
        view = FinalView(
            labels=made.LABELS, counts=made.COUNTS, target=target, participants=[0], alpha=[1.0],
            exact_target=made.TARGET,
        )  # fmt: skip
        runs.append(made.summary("C = 3", "FedPALS", seed, 0.5).model_copy(update={"federation": view}))
    exhibit = only("unknown", [*runs, made.summary("C = 3", "FedAvg", 0, 0.5)])
    assert lines(exhibit) == [["C = 3", "FedPALS", "5.0 ± 7.1", "10", "2"]]
    ax: Any = made.figure(exhibit).axes[0]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([5])
