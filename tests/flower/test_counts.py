"""Counts that cannot be used, or lie, are refused and named."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedpals.flower import FedAvg
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker
from tests.flower.grids import SMALL, FakeGrid, grid_of, initial
from tests.flower.scene import COUNTS, QUIET, TARGET, alpha_of, expected, fedpals, four, plain_app, reply_of, start


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
