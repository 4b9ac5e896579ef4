"""Replies that cannot be used are refused and named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from fedpals.engine.server import DivergedError
from fedpals.flower import SCAFFOLD, FedProx
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker
from tests.flower.grids import SMALL, grid_of, initial
from tests.flower.scene import COUNTS, QUIET, alpha_of, expected, fedpals, four, start


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


@pytest.mark.parametrize("spoil", [lambda _: None, change("half", np.array([math.nan, 1], np.float16))])
def test_an_update_in_another_nodes_name_is_its_senders_fault(
    spoil: Callable[[RecordDict], None], log: pytest.LogCaptureFixture
) -> None:
    grid = four()
    sender, named = grid.node(0), grid.node(3)

    def forged(reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            reply.metadata.__dict__["_src_node_id"] = named
            spoil(reply.content)
        return reply

    grid.spoil[sender] = forged
    server = fedpals()
    server.start(grid, start(), num_rounds=1)
    assert alpha_of(server) == pytest.approx(expected(COUNTS, [1, 2, 3]))
    (refused,) = server.rounds[0].refused
    assert (refused.client, f"its reply names node {named} as the sender" in refused.reason) == (0, True)
    assert any(f"client 0 (node {sender}): " in r.getMessage() for r in log.records)


@pytest.mark.parametrize("named", [None, 5])
def test_counts_in_another_nodes_name_are_nobodys(named: int | None, log: pytest.LogCaptureFixture) -> None:
    grid = four()
    sender, others = grid.node(0), [grid.node(i) for i in (1, 2, 3)]

    def forged(reply: Message) -> Message:
        if reply.metadata.message_type == "query.labelcounts":
            reply.metadata.__dict__["_src_node_id"] = named or others[2]
            next(iter(reply.content.metric_records.values()))["counts"] = [1, 1, 900]
        return reply

    grid.spoil[sender] = forged
    server = fedpals(patience=0.1, wait=5.0)
    server.start(grid, start(), num_rounds=2)
    assert server._session is not None
    members = server._session.roster.members
    assert {m.node: list(m.counts) for m in members} == dict(zip(others, COUNTS[1:], strict=True))
    assert any(f"node {sender}: its reply names node" in r.getMessage() for r in log.records)


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


@pytest.mark.parametrize("weight", [-10.0, math.nan, math.inf])
def test_an_evaluation_with_an_impossible_weight_is_left_out_and_named(
    weight: float, log: pytest.LogCaptureFixture
) -> None:
    grid = four()
    liar = grid.node(0)

    def spoilt(reply: Message) -> Message:
        if reply.metadata.message_type == "evaluate":
            metrics = reply.content.metric_records["metrics"]
            reply.content["metrics"] = MetricRecord({**dict.fromkeys(metrics, 99.0), "num-examples": weight})
        return reply

    grid.spoil[liar] = spoilt
    result = fedpals(fraction_evaluate=1.0).start(grid, start(), num_rounds=1)
    averaged = result.evaluate_metrics_clientapp[1]
    assert averaged
    assert all(isinstance(value, float) and 0 <= value < 50 for value in averaged.values())
    assert any(f"the evaluation of node {liar} is left out" in r.getMessage() for r in log.records)
