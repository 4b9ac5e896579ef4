"""Replies that cannot be used are refused and named, and the weights are solved again for the other sites."""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from nvflare.app_common.abstract.fl_model import FLModel

from fedpals import solve
from fedpals.engine.protection import Protection
from fedpals.engine.server import DivergedError
from fedpals.nvflare import LabelAwareController, TooFewSitesError, messages
from fedpals.nvflare.rounds import Rounds
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker
from tests.nvflare.sites import SMALL, FakeExchange, Spoil, site, started

LIAR = site(3)


@cache
def worker(method: str = "fedpals") -> Worker:
    return Worker(Run.of(**SMALL, method=method))


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="fedpals.test")


def spoiling(task: str, spoil: Spoil, method: str = "fedpals", **settings: Any) -> Rounds:
    """Rounds in which one site spoils its answers to a task; far updates are refused, as in every job by default."""
    settings.setdefault("protection", Protection(outliers="refuse"))
    exchange = FakeExchange(worker(method))
    exchange.spoil[task, LIAR] = spoil
    return started(worker(method), exchange, **settings)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def first(answer: FLModel) -> str:
    return str(next(iter(answer.params)))


def change(by: Callable[[np.ndarray], Any]) -> Spoil:
    """Change the first array of an answer."""

    def spoil(answer: FLModel) -> FLModel:
        answer.params[first(answer)] = by(answer.params[first(answer)])
        return answer

    return spoil


def rename(answer: FLModel) -> FLModel:
    answer.params["other"] = answer.params.pop(first(answer))
    return answer


def meta(**values: Any) -> Spoil:
    def spoil(answer: FLModel) -> FLModel:
        answer.meta.update({f"fedpals.{key}": value for key, value in values.items()})
        return answer

    return spoil


def loss(value: Any) -> Spoil:
    def spoil(answer: FLModel) -> FLModel:
        answer.metrics["train_loss"] = value
        return answer

    return spoil


def poisoned(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def poison(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array.flat[0] = value
        return array

    return poison


UPDATES = {
    "nan": (change(poisoned(math.nan)), "1 of 650 parameters are NaN or infinite"),
    "infinite": (change(poisoned(-math.inf)), "1 of 650 parameters are NaN or infinite"),
    "shape": (change(lambda a: a[:-1]), "instead of float32"),
    "dtype": (change(lambda a: a.astype(np.float64)), "is float64"),
    "text": (change(lambda _: "weights"), "of type str instead of numpy arrays"),
    "list": (change(lambda a: a.tolist()), "of type list instead of numpy arrays"),
    "pickle": (change(pickle.dumps), "of type bytes instead of numpy arrays"),
    "far": (change(lambda a: -50 * a - 50), "times the median of the round's clients"),
    "10³⁰": (change(lambda a: 1e30 * a + np.float32(1e30)), "times the median of the round's clients"),
    "infinite loss": (loss(math.inf), "its loss is inf"),
    "objects": (change(lambda a: a.astype("S8")), "instead of float32"),
    "keys": (rename, "missing arrays ["),
    "no parameters": (lambda _: FLModel(metrics={}), "it sends no parameters"),
    "loss": (loss(math.nan), "its loss is nan"),
    "counts of fractions": (meta(counts=[0.5] * 10), "not whole numbers"),
    "other counts": (meta(counts=[5] * 10), "its label counts changed"),
    "no counts": (meta(counts="many"), "not whole numbers"),
    "silent": (lambda _: "no reply within 3600 s", "no reply within 3600 s"),
    "crash": (lambda _: "error: EXECUTION_EXCEPTION; the log of the site says why", "EXECUTION_EXCEPTION"),
}


@pytest.mark.parametrize("fault", UPDATES)
def test_an_update_that_cannot_be_used_is_refused_and_the_others_are_weighed_anew(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    spoil, reason = UPDATES[fault]
    rounds = spoiling(messages.TRAIN, spoil)
    result = rounds.advance()
    assert [(rounds.name(refusal.client), reason in refusal.reason) for refusal in result.refused] == [(LIAR, True)]
    assert any(LIAR in line and reason in line for line in warnings(caplog))
    federation = worker().federation
    others = [row for row in range(len(federation.clients)) if rounds.name(row) != LIAR]
    counts = [np.bincount(federation.dataset.y[federation.clients[row]], minlength=10) for row in others]
    expected = solve(counts, federation.target, ess=0.5).alpha
    assert result.participants.tolist() == others
    assert result.alpha.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert torch.isfinite(rounds.state.vector).all()


RULE_VECTORS = {
    "shape": (meta(client=np.zeros(3, np.float32)), "the rule's vector has shape"),
    "dtype": (meta(client=np.zeros(650)), "float64 (650,) instead of a flat float32"),
    "nan": (meta(client=np.full(650, np.nan, np.float32)), "entries of the rule's vector are NaN"),
    "text": (meta(client="zeros"), "the rule's vector is str"),
    "missing": (meta(client=None), "it sends no vector of the rule"),
    "far": (meta(client=np.full(650, 1e9, np.float32)), "the norm of its rule's vector is"),
    "array for a name": (meta(rule={"name": np.zeros(2)}), "does not confirm"),
    "another rule": (meta(rule={"name": "sgd"}), "does not confirm that it trained with the client rule 'scaffold'"),
}


@pytest.mark.parametrize("fault", RULE_VECTORS)
def test_vectors_of_the_rule_are_checked(fault: str) -> None:
    spoil, reason = RULE_VECTORS[fault]
    rounds = spoiling(messages.TRAIN, spoil, "scaffold+fedpals")
    (refusal,) = rounds.advance().refused
    assert rounds.name(refusal.client) == LIAR
    assert reason in refusal.reason


COUNTS = {
    "missing": (lambda _: FLModel(metrics={}), "call fedpals.nvflare.send_label_counts"),
    "too few": (meta(counts=[1, 2]), "2 label counts instead of 10"),
    "shares": (meta(counts=[0.1] * 10), "not whole numbers"),
    "negative": (meta(counts=[-1] + [5] * 9), "negative"),
    "nested": (meta(counts=[[1] * 10]), "not whole numbers"),
    "ragged": (meta(counts=[[1], [1, 2]]), "cannot be read"),
    "text": (meta(counts="abc"), "not whole numbers"),
    "nan": (meta(counts=[math.nan] * 10), "not whole numbers"),
    "nan as noise": (meta(epsilon=math.nan), "ε of its noisy counts is nan"),
    "huge": (meta(counts=[2**60] * 10), "too large to be counted exactly"),
}


@pytest.mark.parametrize("fault", COUNTS)
def test_a_site_with_unusable_counts_is_refused_and_named(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    spoil, reason = COUNTS[fault]
    rounds = spoiling(messages.LABEL_COUNTS, spoil)
    result = rounds.advance()
    assert LIAR not in [rounds.name(row) for row in result.participants.tolist()]
    assert any(LIAR in line and reason in line for line in warnings(caplog))
    with pytest.raises(TooFewSitesError, match=rf"4 of the 5 sites needed .*{LIAR}"):
        spoiling(messages.LABEL_COUNTS, spoil, min_clients=5).advance()


def test_a_site_silent_on_counts_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    rounds = spoiling(messages.LABEL_COUNTS, lambda _: "no reply within 600 s")
    exchange = rounds.exchange
    assert isinstance(exchange, FakeExchange)
    assert len(rounds.advance().participants) == 4
    assert warnings(caplog) == [f"{LIAR} sends no label counts: no reply within 600 s; it will be asked again"]
    exchange.spoil.clear()
    assert len(rounds.advance().participants) == 5
    assert exchange.asked(messages.LABEL_COUNTS).count(LIAR) == 2


def test_a_site_that_leaves_and_returns_keeps_its_row() -> None:
    rounds = started(worker())
    exchange = rounds.exchange
    assert isinstance(exchange, FakeExchange)
    everyone = rounds.advance().participants.tolist()
    exchange.offline = {LIAR}
    assert LIAR not in [rounds.name(row) for row in rounds.advance().participants.tolist()]
    exchange.offline = set()
    assert rounds.advance().participants.tolist() == everyone


def test_a_large_claim_is_capped_and_named(caplog: pytest.LogCaptureFixture) -> None:
    rounds = spoiling(messages.LABEL_COUNTS, meta(counts=[10**6] * 10), max_samples=500)
    rounds.advance()
    assert f"{LIAR} claims 10000000 samples and counts as 500" in warnings(caplog)


def test_a_site_that_claims_far_more_than_all_others_is_named(caplog: pytest.LogCaptureFixture) -> None:
    rounds = spoiling(messages.LABEL_COUNTS, meta(counts=[10**12] + [0] * 9))
    rounds.advance()
    (warning,) = (line for line in warnings(caplog) if "claims" in line)
    assert warning.startswith(f"{LIAR} claims 1000000000000 samples, all 4 others together ")
    assert "max_samples, or FedPALS's max_weight" in warning


@pytest.mark.parametrize("value", [10**400, "much", None, [1.0], math.nan])
def test_a_loss_that_cannot_be_read_is_none(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert math.isnan(messages.read_loss(FLModel(metrics={"loss": value})))
    rounds = spoiling(messages.LOSS, lambda _: FLModel(metrics={"loss": "much"}), "afl")
    rounds.advance()
    assert f"{LIAR} sends no loss; its share of AFL's mixture stays the same" in warnings(caplog)


def test_a_vector_that_the_rule_does_not_keep_is_not_kept() -> None:
    rounds = spoiling(messages.TRAIN, meta(client=np.ones(10**6, np.float32)))
    assert rounds.advance().refused == ()
    assert rounds.state.clients == {}


def test_with_noise_for_privacy_nan_counts_as_no_change() -> None:
    pytest.importorskip("dp_accounting")
    protection = Protection(clip_update=1.0, noise_multiplier=1.0)
    rounds = spoiling(messages.TRAIN, change(poisoned(math.nan)), protection=protection)
    plain = started(worker(), protection=protection).advance()
    result = rounds.advance()
    assert result.alpha.tolist() == plain.alpha.tolist()
    assert [rounds.name(refusal.client) for refusal in result.refused] == [LIAR]


def test_a_difference_of_parameters_is_added_to_the_global_ones() -> None:
    def difference(answer: FLModel) -> FLModel:
        start = rounds.layout.unflatten(rounds.state.vector)
        return FLModel("DIFF", {k: v - start[k] for k, v in answer.params.items()}, metrics=answer.metrics)

    rounds, plain = spoiling(messages.TRAIN, difference), started(worker())
    rounds.advance()
    plain.advance()
    assert torch.allclose(rounds.state.vector, plain.state.vector, atol=1e-7)


def test_a_finite_lie_is_refused_unless_asked_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    lie = change(lambda array: -50 * array - 50)
    far = {
        policy: spoiling(messages.TRAIN, lie, protection=Protection(outliers=policy)) for policy in ("refuse", "keep")
    }
    (refusal,) = far["refuse"].advance().refused
    assert far["refuse"].name(refusal.client) == LIAR
    assert far["keep"].advance().refused == ()
    assert any(LIAR in line and line.endswith("it is used as it is") for line in warnings(caplog))
    assert LabelAwareController("fedpals", {}, [0.5, 0.5], 1, 1)._protection.outliers == "refuse"


def test_privacy_costs_what_the_log_says(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("dp_accounting")
    rounds = started(worker(), protection=Protection(clip_update=1.0, noise_multiplier=1.0))
    result = rounds.advance()
    assert result.privacy is not None
    assert result.privacy.sigma == pytest.approx(result.alpha.max())
    assert any(f"ε = {result.privacy.epsilon:.3f} at δ = 1e-05" in record.getMessage() for record in caplog.records)


def test_without_any_usable_update_the_run_ends_with_reasons() -> None:
    exchange = FakeExchange(worker())
    exchange.spoil = {(messages.TRAIN, name): change(poisoned(math.nan)) for name in exchange.answers}
    with pytest.raises(DivergedError, match=r"no client returned a usable update .*client 0 is site-1"):
        started(worker(), exchange).advance()


def test_noisy_counts_are_drawn_once_and_not_repeated() -> None:
    pytest.importorskip("opendp")
    exchange = FakeExchange(worker(), count_epsilon=1.0)
    answers = exchange.answers[LIAR]
    reported = [answers.to(messages.LABEL_COUNTS, messages.question()).meta["fedpals.counts"] for _ in range(3)]
    assert reported[0] == reported[1] == reported[2]
    rounds = started(worker(), exchange)
    rounds.advance()
    exchange.spoil[messages.TRAIN, LIAR] = lambda answer: str(answer.meta)
    (refusal,) = rounds.advance().refused
    assert refusal.reason == "{}"
