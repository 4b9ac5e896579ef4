"""Nodes that are lost, leave, join, are too few or too late: it keeps going, or says why not."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict

from fedpals.engine.server import DivergedError
from fedpals.flower import AFL, FedPALS, TooFewNodesError
from tests.flower.grids import FakeGrid
from tests.flower.scene import COUNTS, QUIET, TARGET, alpha_of, expected, fedpals, four, plain_app, start


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


def test_late_replies_end_in_an_error_and_not_in_an_unchanged_model() -> None:
    grid = four()
    for i in range(4):
        grid.spoil[grid.node(i)] = lambda reply: reply if reply.metadata.message_type != "train" else lose(reply)
    server = fedpals()
    with pytest.raises(DivergedError, match=r"round 1: no client .* no reply within 9 s.*raise the timeout of 9 s"):
        server.start(grid, start(), num_rounds=1, timeout=9)
