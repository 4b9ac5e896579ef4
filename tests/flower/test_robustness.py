"""It keeps going, or says why not: one test per row of the table in docs/flower.md."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpals import solve
from fedpals.engine.server import DivergedError
from fedpals.errors import InputError
from fedpals.flower import (
    AFL,
    IWERM,
    SCAFFOLD,
    FedAvg,
    FedDisco,
    FedLC,
    FedPALS,
    FedProx,
    FedRS,
    FedRSBinary,
    FedSGD,
    LabelAware,
    LogitAdjusted,
    TooFewNodesError,
    add_labelcounts,
    strategy,
)
from fedpals.methods import METHODS, build_method
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.state import SimulationState
from fedpals.simulation.worker import Worker
from tests.flower.grids import SMALL, FakeGrid, flat, grid_of, initial

COUNTS = [[30, 10, 0], [0, 20, 20], [10, 10, 40], [5, 5, 5]]
TARGET = [0.7, 0.2, 0.1]
QUIET: dict[str, Any] = {"fraction_evaluate": 0.0, "wait": 0.05}


def start() -> ArrayRecord:
    return ArrayRecord(
        {
            "weight": Array(np.arange(6, dtype=np.float32).reshape(2, 3)),
            "half": Array(np.ones(2, dtype=np.float16)),
            "double": Array(np.array(0.125)),
            "seen": Array(np.array(7)),
        }
    )


def plain_app(counts: Callable[[int], Any] = lambda i: COUNTS[i]) -> ClientApp:
    """A ClientApp as Flower's quickstart has it, with the one line added; client i adds i + 1 to every array."""
    app = ClientApp()
    add_labelcounts(app, lambda context: counts(int(context.node_config["partition-id"])))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        values = {key: array.numpy() for key, array in message.content.array_records["arrays"].items()}
        arrays = ArrayRecord({key: Array(np.asarray(v + v.dtype.type(number + 1))) for key, v in values.items()})
        metrics = MetricRecord({"train_loss": float(number), "num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        metrics = MetricRecord({"eval_loss": float(number), "num-examples": sum(COUNTS[number])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def four() -> FakeGrid:
    return FakeGrid(plain_app(), range(4))


def fedpals(**settings: Any) -> FedPALS:
    return FedPALS(TARGET, ess=0.6, **{**QUIET, **settings})


def expected(counts: list[list[int]], clients: list[int], ess: float = 0.6) -> dict[int, float]:
    alpha = solve([counts[i] for i in clients], TARGET, ess=ess).alpha.tolist()
    return dict(zip(clients, alpha, strict=True))


def alpha_of(server: LabelAware) -> dict[int, float]:
    result = server.rounds[-1]
    return dict(zip(result.participants.tolist(), result.alpha.tolist(), strict=True))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")
    return caplog


# An existing app, one line changed at the server and one added at the client


def test_any_state_dict_is_averaged_with_its_dtypes_and_integers_stay() -> None:
    server = fedpals()
    result = server.start(four(), start(), num_rounds=2)
    weights = expected(COUNTS, [0, 1, 2, 3])
    assert alpha_of(server) == pytest.approx(weights)
    moved = 2 * sum((i + 1) * a for i, a in weights.items())
    for key, before in start().items():
        after = result.arrays[key].numpy()
        assert (after.dtype, after.shape) == (before.numpy().dtype, before.numpy().shape)
        if key == "seen":
            assert after == 7
        else:
            assert after == pytest.approx(before.numpy() + moved, rel=1e-3 if key == "half" else 1e-6)
    assert list(result.arrays) == list(start())


def test_metrics_follow_the_weights_and_the_round_is_logged(log: pytest.LogCaptureFixture) -> None:
    server = fedpals(fraction_evaluate=1.0)
    result = server.start(four(), start(), num_rounds=1)
    weights = solve(COUNTS, TARGET, ess=0.6)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["train_loss"] == pytest.approx(sum(i * a for i, a in enumerate(weights.alpha)))
    assert metrics["squared_distance"] == pytest.approx(weights.squared_distance)
    assert metrics["ess"] == pytest.approx(weights.ess)
    assert weights.ess == pytest.approx(0.6, rel=1e-6)
    sizes = np.sum(COUNTS, axis=1)
    assert result.evaluate_metrics_clientapp[1]["eval_loss"] == pytest.approx(np.arange(4) @ sizes / sizes.sum())
    line = next(r.getMessage() for r in log.records if r.getMessage().startswith("round 1: trained"))
    assert f"squared distance {weights.squared_distance:.6f}, ESS 60.0 %" in line
    assert all(f"client {i} (node" in line for i, a in enumerate(weights.alpha) if a > 0)


def test_a_users_own_average_of_training_metrics_gets_the_replies() -> None:
    def average(replies: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord({"samples": float(np.sum([r.metric_records["metrics"][key] for r in replies]))})

    server = fedpals(train_metrics_aggr_fn=average)
    metrics = server.start(four(), start(), num_rounds=1).train_metrics_clientapp[1]
    assert metrics["samples"] == server.rounds[0].trained


def test_metrics_that_a_users_own_average_cannot_use_do_not_end_the_run(log: pytest.LogCaptureFixture) -> None:
    def average(replies: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord({"samples": float(np.sum([r.metric_records["metrics"][key] for r in replies]))})

    grid = four()

    def spoilt(reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            reply.content["metrics"] = MetricRecord({"train_loss": 1.0})
        return reply

    grid.spoil[grid.node(0)] = spoilt
    metrics = fedpals(train_metrics_aggr_fn=average).start(grid, start(), num_rounds=2).train_metrics_clientapp
    assert [set(metrics[number]) >= {"ess", "trained"} for number in (1, 2)] == [True, True]
    assert any("round 1: the training metrics cannot be averaged (KeyError" in r.getMessage() for r in log.records)


def test_a_plain_training_message_is_what_flowers_fedavg_sends() -> None:
    grid = four()
    fedpals().start(grid, start(), num_rounds=2, train_config=ConfigRecord({"lr": 0.1}))
    sent = [m for m in grid.sent if m.metadata.message_type == "train"]
    for message in sent:
        assert set(message.content) == {"arrays", "config"}
        assert set(message.content.config_records["config"]) == {"lr", "server-round"}
    assert all(not m.content for m in grid.sent if m.metadata.message_type == "query.labelcounts")
    assert len(grid.kinds("query.labelcounts")) == 4, "counts are asked for once"


def test_only_the_rule_and_its_vectors_are_added_for_other_rules() -> None:
    worker = Worker(Run.of(**SMALL, method="scaffold+fedpals"))
    grid = grid_of(worker)
    server = strategy("scaffold+fedpals", worker.federation.target, ess=0.5, **QUIET)
    server.start(grid, initial(worker), num_rounds=2)
    seen = {key for message in grid.sent for key in message.content}
    assert seen == {"arrays", "config", "fedpals.rule", "fedpals.server", "fedpals.client"}
    rules = [dict(m.content.config_records["fedpals.rule"]) for m in grid.sent if "fedpals.rule" in m.content]
    assert all(rule == {"name": "scaffold", "server_step": 1.0} for rule in rules)


def test_clients_without_weight_are_not_sent_training() -> None:
    counts = [[10, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 0]]
    grid = FakeGrid(plain_app(lambda i: counts[i]), range(4))
    server = FedPALS([0.5, 0.5, 0.0], lam=0.0, **QUIET)
    server.start(grid, start(), num_rounds=1)
    assert alpha_of(server) == pytest.approx({0: 0.5, 1: 0.5, 2: 0.0})
    assert sorted(grid.kinds("train")) == sorted([grid.node(0), grid.node(1)])


def test_at_least_so_many_nodes_train() -> None:
    server = FedAvg(TARGET, fraction_train=0.1, min_train_nodes=3, **QUIET)
    server.start(four(), start(), num_rounds=1)
    assert server.rounds[0].participants.size == 3


# A node dies in mid-round


def lose(reply: Message) -> None:
    del reply


def test_a_lost_node_is_named_and_the_others_weighed_afresh(log: pytest.LogCaptureFixture) -> None:
    grid = four()
    lost = grid.node(2)

    def dies(reply: Message) -> Message:
        if reply.metadata.message_type != "train":
            return reply
        # Flower reports the loss in its own name.
        report = Message(Error(3, "node unavailable"), reply_to=reply)
        report.metadata.__dict__["_src_node_id"] = 1
        return report

    grid.spoil[lost] = dies
    server = fedpals()
    result = server.start(grid, start(), num_rounds=1)
    assert alpha_of(server) == pytest.approx(expected(COUNTS, [0, 1, 3]))
    moved = sum((i + 1) * a for i, a in alpha_of(server).items())
    assert result.arrays["double"].numpy() == pytest.approx(0.125 + moved)
    assert any(f"client 2 (node {lost}): no reply" in r.getMessage() for r in log.records)


def test_a_client_that_gets_weight_through_a_loss_is_trained_then() -> None:
    counts = [[10, 0, 0], [0, 10, 0], [6, 4, 0], [5, 5, 10]]
    grid = FakeGrid(plain_app(lambda i: counts[i]), range(4))
    server = FedPALS([0.5, 0.5, 0.0], lam=0.0, **QUIET)
    grid.spoil[grid.node(0)] = lambda reply: reply if reply.metadata.message_type != "train" else lose(reply)
    server.start(grid, start(), num_rounds=1)
    weights = alpha_of(server)
    assert 0 not in weights
    assert {grid.node(i) for i, a in weights.items() if a > 0} <= set(grid.kinds("train"))
    assert len(set(grid.kinds("train"))) == len(grid.kinds("train")), "nobody is trained twice"


def test_a_node_that_left_is_not_waited_for_and_may_come_back(log: pytest.LogCaptureFixture) -> None:
    grid = four()
    server = fedpals(wait=1.0)
    session_rounds = []

    def evaluate(number: int, _: ArrayRecord) -> None:
        session_rounds.append(number)
        grid.offline = {grid.node(1)} if number == 1 else set()

    server.start(grid, start(), num_rounds=3, evaluate_fn=evaluate)
    assert [result.participants.tolist() for result in server.rounds] == [[0, 1, 2, 3], [0, 2, 3], [0, 1, 2, 3]]
    assert grid.kinds("query.labelcounts").count(grid.node(1)) == 2
    assert not [r for r in log.records if r.levelno >= logging.ERROR]


def test_a_node_that_joins_late_takes_part_from_then_on() -> None:
    grid = FakeGrid(plain_app(), range(3))
    server = AFL(TARGET, **QUIET)
    queries: list[float] = []

    def answer(message: Message, context: Context) -> Message:
        del context
        queries.append(1.0)
        return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)

    grid.app.query("loss")(answer)

    def evaluate(number: int, _: ArrayRecord) -> None:
        if number == 1:
            grid.join(3)

    server.start(grid, start(), num_rounds=2, evaluate_fn=evaluate)
    # Equal losses move nobody, so the mixture stays n/N, now over four clients.
    assert alpha_of(server) == pytest.approx({i: sum(row) / np.sum(COUNTS) for i, row in enumerate(COUNTS)})
    assert len(queries) == 3 + 4


# Too few nodes


def test_too_few_nodes_end_in_an_error_with_the_numbers() -> None:
    server = fedpals(min_available_nodes=5, wait=0.2)
    began = time.monotonic()
    with pytest.raises(TooFewNodesError, match=r"round 1: 4 of the 5 nodes needed .* after 0.2 s, 4 are connected"):
        server.start(four(), start(), num_rounds=1)
    assert time.monotonic() - began < 2


def test_nodes_that_join_while_the_server_waits_all_take_part() -> None:
    grid = FakeGrid(plain_app(), range(1))
    looks = []
    ids = grid.get_node_ids

    def get_node_ids() -> Any:
        looks.append(1)
        if len(looks) == 3:
            for i in (1, 2, 3):
                grid.join(i)
        return ids()

    grid.get_node_ids = get_node_ids  # type: ignore[method-assign]
    server = fedpals(wait=5.0)
    server.start(grid, start(), num_rounds=1)
    assert alpha_of(server) == pytest.approx(expected(COUNTS, [0, 1, 2, 3]))


# All replies late


def test_late_replies_end_in_an_error_and_not_in_an_unchanged_model() -> None:
    grid = four()
    for i in range(4):
        grid.spoil[grid.node(i)] = lambda reply: reply if reply.metadata.message_type != "train" else lose(reply)
    server = fedpals()
    with pytest.raises(DivergedError, match=r"round 1: no client .* no reply within 9 s.*raise the timeout of 9 s"):
        server.start(grid, start(), num_rounds=1, timeout=9)


# Replies that cannot be used


def change(key: str, value: Any) -> Callable[[RecordDict], None]:
    def apply(reply: RecordDict) -> None:
        reply.array_records["arrays"][key] = Array(np.asarray(value))

    return apply


def remove(reply: RecordDict) -> None:
    del reply.array_records["arrays"]["half"]


def no_arrays(reply: RecordDict) -> None:
    del reply["arrays"]


def garbage(reply: RecordDict) -> None:
    reply.array_records["arrays"]["half"] = Array("float16", (2,), "numpy.ndarray", b"nonsense")


def pickled(reply: RecordDict) -> None:
    import io

    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    reply.array_records["arrays"]["half"] = Array("float16", (2,), "numpy.ndarray", file.getvalue())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (change("weight", np.full((2, 3), math.nan, np.float32)), "6 of 9 parameters are NaN or infinite"),
        (change("half", np.array([math.inf, 1], np.float16)), "1 of 9 parameters are NaN or infinite"),
        (change("weight", np.ones(3, np.float32)), r"'weight' is float32 \(3,\) instead of float32 \(2, 3\)"),
        (change("weight", np.ones((2, 3))), "'weight' is float64 .* instead of float32"),
        (change("seen", np.array(7.0)), "'seen' is float64 .* instead of int64"),
        (change("other", np.ones(1)), r"unknown arrays \['other'\]"),
        (remove, r"missing arrays \['half'\]"),
        (no_arrays, "0 ArrayRecords instead of one"),
        (garbage, "'half' cannot be read"),
        (pickled, r"'half' is object \(1,\) instead of float16"),
    ],
)
def test_an_unusable_reply_is_refused_and_named(
    spoil: Callable[[RecordDict], None], reason: str, log: pytest.LogCaptureFixture
) -> None:
    grid = four()

    def spoilt(reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            spoil(reply.content)
        return reply

    grid.spoil[grid.node(1)] = spoilt
    server = fedpals()
    result = server.start(grid, start(), num_rounds=1)
    assert alpha_of(server) == pytest.approx(expected(COUNTS, [0, 2, 3]))
    assert [r.client for r in server.rounds[0].refused] == [1]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(server.rounds[0].refused[0].reason)
    assert any(f"client 1 (node {grid.node(1)}): " in r.getMessage() for r in log.records)
    assert all(np.isfinite(a.numpy()).all() for a in result.arrays.values())


def test_a_client_that_ignores_the_rule_is_refused() -> None:
    with pytest.raises(DivergedError, match="does not confirm that it trained with the client rule 'proximal'"):
        FedProx(**QUIET).start(four(), start(), num_rounds=1)


@pytest.mark.parametrize("vector", [np.full(650, math.nan, np.float32), np.ones(3, np.float32), np.ones(650)])
def test_a_broken_control_variate_is_refused(vector: Any) -> None:
    worker = Worker(Run.of(**SMALL, method="scaffold"))
    grid = grid_of(worker)

    def spoilt(reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            reply.content["fedpals.client"] = ArrayRecord({"vector": Array(vector)})
        return reply

    grid.spoil[grid.node(3)] = spoilt
    server = SCAFFOLD(**QUIET)
    server.start(grid, initial(worker), num_rounds=2)
    assert [[r.client for r in result.refused] for result in server.rounds] == [[3], [3]]


def test_a_vector_that_the_rule_does_not_keep_is_not_kept() -> None:
    grid = four()

    def spoilt(reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            reply.content["fedpals.client"] = ArrayRecord({"vector": Array(np.ones(10**6, np.float32))})
        return reply

    grid.spoil[grid.node(0)] = spoilt
    server = fedpals()
    server.start(grid, start(), num_rounds=2)
    assert server._session is not None
    assert server._session.state.clients == {}
    assert all("fedpals.client" not in message.content for message in grid.sent)


def test_evaluations_that_do_not_fit_together_do_not_end_the_run(log: pytest.LogCaptureFixture) -> None:
    grid = four()

    def spoilt(reply: Message) -> Message:
        if reply.metadata.message_type == "evaluate":
            reply.content["metrics"] = MetricRecord({"num-examples": 0})
        return reply

    grid.spoil[grid.node(0)] = spoilt
    server = fedpals(fraction_evaluate=1.0)
    result = server.start(grid, start(), num_rounds=2)
    assert len(server.rounds) == 2
    assert not result.evaluate_metrics_clientapp
    assert any("cannot be averaged" in r.getMessage() for r in log.records)


# Counts that cannot be used


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ([-1, 5, 5], "is negative"),
        ([0.5, 5.0, 5.0], "is fractional"),
        ([math.nan, 1.0, 1.0], "not a finite number"),
        ([1, 2], "2 label counts instead of 3"),
        ([1, 2, 3, 4], "4 label counts instead of 3"),
        ([1e300, 1.0, 1.0], "1e.300 is too large"),
        (3, "sends no label counts"),
        (None, "sends no label counts"),
    ],
)
def test_unusable_counts_are_refused_and_named(counts: Any, reason: str, log: pytest.LogCaptureFixture) -> None:
    grid = four()

    def spoilt(reply: Message) -> Message:
        if reply.metadata.message_type == "query.labelcounts":
            record = MetricRecord({} if counts is None else {"counts": counts})
            return Message(RecordDict({"fedpals.labelcounts": record}), reply_to=reply_of(reply))
        return reply

    grid.spoil[grid.node(0)] = spoilt
    server = fedpals()
    server.start(grid, start(), num_rounds=2)
    assert sorted(sum(COUNTS[i]) for i in (1, 2, 3)) == sorted(
        sum(m.counts)
        for m in server._session.roster.members  # type: ignore[union-attr]
    )
    warnings = [r.getMessage() for r in log.records if "is refused" in r.getMessage()]
    assert len(warnings) == 1, "asked once, named once"
    assert f"node {grid.node(0)} " in warnings[0]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(warnings[0])


def reply_of(reply: Message) -> Message:
    """The message that ``reply`` answers, for another answer to it."""
    return Message(RecordDict(), reply_to=reply)


def test_the_helper_refuses_counts_that_are_no_whole_numbers() -> None:
    grid = FakeGrid(plain_app(lambda i: np.array(COUNTS[i]) / 2 if i == 0 else COUNTS[i]), range(4))
    server = fedpals()
    server.start(grid, start(), num_rounds=1)
    assert len(server._session.roster.members) == 3  # type: ignore[union-attr]


def test_without_a_target_the_first_answer_decides_how_many_labels_there_are() -> None:
    grid = FakeGrid(plain_app(lambda i: COUNTS[i] if i else [1, 2, 3]), range(4))
    server = FedAvg(**QUIET)
    server.start(grid, start(), num_rounds=1)
    sizes = [6, *(sum(row) for row in COUNTS[1:])]
    assert alpha_of(server) == {i: n / sum(sizes) for i, n in enumerate(sizes)}
    assert server.prior_shift == pytest.approx([0, 0, 0])


# A client lies about its counts


def test_counts_that_change_after_an_absence_are_refused(log: pytest.LogCaptureFixture) -> None:
    counts = [list(row) for row in COUNTS]
    grid = FakeGrid(plain_app(lambda i: counts[i]), range(4))
    server = fedpals(wait=1.0)

    def evaluate(number: int, _: ArrayRecord) -> None:
        grid.offline = {grid.node(3)} if number == 1 else set()
        if number == 1:
            counts[3] = [5, 5, 5000]

    server.start(grid, start(), num_rounds=3, evaluate_fn=evaluate)
    assert alpha_of(server) == pytest.approx(expected(COUNTS, [0, 1, 2]))
    assert any("label counts changed (5010 samples instead of 15)" in r.getMessage() for r in log.records)


def test_counts_that_change_between_rounds_are_refused(log: pytest.LogCaptureFixture) -> None:
    worker = Worker(Run.of(**SMALL, method="fedavg"))
    grid = grid_of(worker)

    def lies(reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            record = reply.content.metric_records["fedpals.labelcounts"]
            record["counts"] = [2 * int(c) for c in record["counts"]]  # type: ignore[union-attr]
        return reply

    grid.spoil[grid.node(4)] = lies
    server = FedAvg(**QUIET)
    server.start(grid, initial(worker), num_rounds=1)
    assert [r.client for r in server.rounds[0].refused] == [4]
    assert any("label counts changed" in r.getMessage() for r in log.records)


def test_a_cap_bounds_what_a_client_counts_for(log: pytest.LogCaptureFixture) -> None:
    grid = FakeGrid(plain_app(lambda i: [10**12, 0, 0] if i == 0 else COUNTS[i]), range(4))
    server = FedAvg(TARGET, max_samples=50, **QUIET)
    server.start(grid, start(), num_rounds=1)
    sizes = [50, 40, 8 + 8 + 33, 15]
    assert alpha_of(server) == pytest.approx({i: n / sum(sizes) for i, n in enumerate(sizes)})
    assert any("claims 1000000000000 samples and counts as 50" in r.getMessage() for r in log.records)


def test_a_number_claimed_twice_is_refused_and_named(log: pytest.LogCaptureFixture) -> None:
    grid = four()
    grid.join(0, node=5)
    server = FedAvg(TARGET, **QUIET)
    server.start(grid, start(), num_rounds=2)
    assert len(alpha_of(server)) == 4
    # By node, 5 comes first: which of the two is the impostor nobody can know.
    refusals = [r.getMessage() for r in log.records if "is refused" in r.getMessage()]
    assert len(refusals) == 1
    assert f"node {grid.node(0)} is refused: number 0 belongs to node 5, which is connected" in refusals[0]


# The server is stopped


class StoppedError(Exception):
    """The server's process ends."""


@pytest.mark.parametrize("method", ["scaffold+fedpals", "afl", "fedavg"])
@pytest.mark.parametrize("same_nodes", [True, False])
def test_a_stopped_server_continues_with_the_same_bits(method: str, same_nodes: bool, tmp_path: Path) -> None:
    run = Run.of(**SMALL, method=method, participation=0.6)
    unbroken = SimulationState.load(simulate(run, tmp_path).checkpoint)
    worker = Worker(run)
    grid = grid_of(worker)

    def new_server() -> LabelAware:
        settings = {**QUIET, "fraction_train": 0.6, "checkpoint": tmp_path / "state.safetensors", **run.method.options}
        return strategy(method, worker.federation.target, **settings)

    def stop(number: int, _: ArrayRecord) -> None:
        if number == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        new_server().start(grid, initial(worker), num_rounds=5, evaluate_fn=stop)
    if not same_nodes:
        # Another run of the simulation: the same clients under other node ids, in another order.
        contexts = grid.contexts
        grid.contexts = {}
        for node, context in reversed(contexts.items()):
            grid.join(int(context.node_config["partition-id"]), node=node * 31 % 9973 + 20000)
    seen: list[int] = []
    result = new_server().start(
        grid,
        initial(worker),
        num_rounds=5,
        evaluate_fn=lambda number, _: seen.append(number),
    )
    assert seen == [3, 4, 5]
    assert set(result.train_metrics_clientapp) == {4, 5}
    assert torch.equal(flat(result.arrays, worker), unbroken.vector)
    finished = new_server()
    again = finished.start(grid, initial(worker), num_rounds=5)
    assert torch.equal(flat(again.arrays, worker), unbroken.vector)
    assert not finished.rounds
    assert np.isfinite(finished.prior_shift[worker.federation.target > 0]).all()


def test_a_checkpoint_of_another_run_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    fedpals(checkpoint=path).start(four(), start(), num_rounds=1)
    with pytest.raises(InputError, match=r"belongs to a run with another options .* choose another file"):
        FedPALS(TARGET, lam=1.0, checkpoint=path, **QUIET).start(four(), start(), num_rounds=2)
    other = ArrayRecord({"weight": Array(np.ones(3, np.float32))})
    with pytest.raises(InputError, match="another arrays"):
        fedpals(checkpoint=path).start(four(), other, num_rounds=2)


# Settings


SIBLINGS: dict[str, Callable[[], LabelAware]] = {
    "fedpals": lambda: FedPALS(TARGET),
    "fedavg": FedAvg,
    "fedsgd": FedSGD,
    "fedprox": lambda: FedProx(proximal_weight=0.3),
    "scaffold": lambda: SCAFFOLD(server_step=0.5),
    "fedrs_graded": lambda: FedRS(absent_factor=0.1),
    "fedrs_binary": lambda: FedRSBinary(absent_factor=0.1),
    "fedlc": lambda: FedLC(calibration=0.5),
    "iwerm": lambda: IWERM(TARGET, importance_source="pooled", importance_clip=5.0, tell_target=True),
    "feddisco": lambda: FedDisco(TARGET, discrepancy_weight=0.2, discrepancy_offset=0.0),
    "logit_adjusted": lambda: LogitAdjusted(adjustment=0.5),
    "afl": lambda: AFL(mixture_step=0.2),
}


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"oracle", "pooled"}))
def test_every_method_has_a_sibling_of_its_name(name: str) -> None:
    sibling = SIBLINGS[name]().method
    options = {**vars(sibling.rule), **{k: v for k, v in vars(sibling.weighting).items() if v is not None}}
    method = build_method(name, options)  # with all options given
    assert replace(sibling, options={}) == replace(method, options={})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: strategy("fedpals", ess=0.5), "FedPALS needs target"),
        (lambda: FedPALS([0.5, 0.6]), "target sums to 1.1"),
        (lambda: strategy("oracle", TARGET), "oracle redraws the clients"),
        (lambda: strategy("pooled", TARGET), "pooled puts all samples in one place"),
        (lambda: strategy("feddisco"), "FedDisco needs target"),
        (lambda: IWERM(tell_target=True), "IW-ERM needs target"),
        (lambda: strategy("iwerm+fedpals", TARGET), r"IW-ERM\+FedPALS tells every client what T is.*tell_target=True"),
        (lambda: strategy("fedavg", TARGET, ess=0.5), "ess is no option of the method 'fedavg'"),
        (lambda: FedRS(absent_factor=2.0), "absent_factor is 2.0; it must be less than or equal to 1"),
        (lambda: FedPALS(TARGET, ess=0.5, lam=1.0), "give one of them"),
        (lambda: FedAvg().prior_shift, "available after the first round"),
        (lambda: FedAvg(max_samples=0), "max_samples is 0"),
        (lambda: FedAvg(fraction_train=0.0), "fraction_train is 0.0"),
        (lambda: FedAvg().start(four(), ArrayRecord({"n": Array(np.array(1))})), "no floating-point array"),
        (lambda: FedAvg().start(four(), ArrayRecord({"z": Array(np.array(1j))})), "'z' is complex"),
    ],
)
def test_settings_that_no_run_can_use(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
