from __future__ import annotations

import fedpals
from fedpals.engine.round import EssChoice
from fedpals.report.advice import (
    advice,
    choice_sentence,
    coverage_sentence,
    fedavg_mismatch,
    mismatch,
    sentence_of_choices,
    shortage_sentence,
)

COUNTS = [[900, 100, 0], [100, 600, 300], [5, 5, 40]]


def test_the_verdict_on_coverage() -> None:
    assert coverage_sentence(fedpals.solve(COUNTS, [0.3, 0.4, 0.3], lam=0)).startswith("covered")
    assert "not covered" in coverage_sentence(fedpals.solve(COUNTS, [0, 0, 1], lam=0))
    counts = fedpals.LabelCounts.of([[1, 1]], labels=["a", "b"])
    assert "no client has 'c'" in coverage_sentence(fedpals.solve(counts, {"a": 0.5, "b": 0.3, "c": 0.2}, lam=0))
    almost = fedpals.solve([[1, 0, 0], [0, 1, 0]], [0.5, 0.4999, 0.0001], lam=0)
    assert "practical purposes" not in coverage_sentence(almost)
    assert "the best mix is wrong for" in coverage_sentence(fedpals.solve(COUNTS, [0, 0, 1], lam=0))


def test_what_the_best_mix_is_short_of() -> None:
    counts = fedpals.LabelCounts.of(COUNTS, labels=["food", "clothing", "toys"])
    sentence = shortage_sentence(fedpals.solve(counts, [0.0, 0.0, 1.0], lam=0))
    assert sentence is not None
    assert sentence.startswith("The best mix has too little of toys (80 % instead of 100 %).")
    assert "A new client with 100 % toys would help most." in sentence
    assert shortage_sentence(fedpals.solve(counts, [0.3, 0.4, 0.3], lam=0)) is None


def test_the_mismatch_is_the_share_of_wrong_samples() -> None:
    weights = fedpals.solve(COUNTS, [0.2, 0.5, 0.3], ess=0.9)
    assert mismatch(weights.target, weights.marginal) < fedavg_mismatch(weights)
    assert fedavg_mismatch(weights) == mismatch(weights.target, weights.fedavg @ weights.counts.marginals)


def test_advice_fits_the_situation() -> None:
    pooled = [1005 / 2050, 705 / 2050, 340 / 2050]
    assert "plain FedAvg is enough" in advice(fedpals.solve(COUNTS, pooled, lam=1))
    assert "hardly better than FedAvg" in advice(fedpals.solve(COUNTS, [0.1, 0.1, 0.8], lam=1e9))
    # Where the ESS is already the smallest there is, the advice does not ask for a smaller one.
    best = fedpals.solve([[3, 4, 0], [5, 2, 0]], [0.3, 0.3, 0.4], lam=0)
    assert advice(best).endswith("than FedAvg: find clients whose labels are more like the target's.")
    assert "noisy" in advice(fedpals.solve(COUNTS, [0.05, 0.05, 0.9], lam=0))
    assert "closer still" in advice(fedpals.solve(COUNTS, [0.2, 0.5, 0.3], ess=0.9))
    assert "use them" in advice(fedpals.solve(COUNTS, [0.3, 0.45, 0.25], lam=0))


def test_what_was_chosen_and_why() -> None:
    assert choice_sentence([[1.0] * 8]).startswith("The ESS was 100 %: no other weights had a clearly smaller")
    assert choice_sentence([[1.0, 1.0, 0.6, 0.4, 0.4, 0.4, 0.4, 0.38]]).startswith(
        "The ESS fell from 100 % to 39 % by round 4: weights nearer"
    )
    assert choice_sentence([[0.3, 0.3, 0.3, 0.3, 0.9, 1.0, 1.0, 1.0]]).startswith(
        "The ESS rose from 30 % to 100 % by round 6: no other"
    )
    assert choice_sentence([[0.3]]).startswith("The ESS was 30 %: weights nearer")


def test_the_reason_is_that_of_the_comparison() -> None:
    # FedAvg was among the candidates and not chosen, however near the chosen ESS is.
    assert "clearly smaller estimated target loss than FedAvg's" in choice_sentence([[0.97] * 4])
    assert "The ESS was 97 %: weights nearer" in choice_sentence([[0.97] * 4])
    # A cap has FedAvg's ESS at 67 %.
    compared = EssChoice(0.67, (0.2, 0.4, 0.67), (0.9, 0.8, 0.7), (0.1, 0.1, 0.0))
    assert sentence_of_choices([[compared] * 4]).startswith("The ESS was 67 %: no other weights had")
    assert sentence_of_choices([[EssChoice(0.67)] * 4, []]).startswith("The ESS was 67 %: no weights were compared")
    assert sentence_of_choices([[EssChoice(0.4, (0.4, 0.67), (0.7, 0.9), (0.0, 0.1))] * 4]).startswith(
        "The ESS was 40 %: weights nearer"
    )


def test_what_was_chosen_in_single_rounds_is_not_hidden_by_the_others() -> None:
    usual = [0.25] * 8
    assert choice_sentence([usual, [*usual[:3], 1.0, *usual[4:]], usual]).startswith(
        "The ESS was mostly 25 %, up to 100 % in some rounds: weights nearer"
    )
    assert "mostly 100 %, down to 50 % in some rounds: no" in choice_sentence([[1.0, 1.0, 0.5, 1.0]])
    assert "mostly 50 %, down to 25 % and up to 75 % in some" in choice_sentence([[0.5, 0.25, 0.75, 0.5, 0.5]])
