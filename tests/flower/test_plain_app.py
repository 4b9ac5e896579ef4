"""An existing app, one line changed at the server and one added at the client."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedpals import solve
from fedpals.flower import FedAvg, FedPALS, strategy
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker
from tests.flower.grids import SMALL, FakeGrid, grid_of, initial
from tests.flower.scene import COUNTS, QUIET, TARGET, alpha_of, expected, fedpals, four, plain_app, start


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
