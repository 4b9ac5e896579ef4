"""Differential privacy and dishonest updates on Flower: no wrapper, and nothing goes around the noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp import strategy as flowers

from fedpals.engine import checkpoint
from fedpals.engine.privacy import epsilon
from fedpals.engine.server import DivergedError
from fedpals.errors import InputError
from fedpals.flower import FedPALS, LabelAware, add_labelcounts, client_app, strategy
from fedpals.simulation.pools import SerialPool
from fedpals.simulation.rounds import Simulation
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker
from tests.flower.grids import SMALL, FakeGrid, flat, grid_of, initial, spoiling, worker

pytest.importorskip("dp_accounting", reason="needs the extra privacy")

PRIVATE: dict[str, Any] = {"clip_update": 1.0, "noise_multiplier": 1.0}
QUIET: dict[str, Any] = {"fraction_evaluate": 0.0, "wait": 0.05}


@pytest.fixture
def whole() -> Worker:
    return worker()


def fedpals(whole: Worker, **settings: Any) -> LabelAware:
    return FedPALS(whole.federation.target, ess=0.5, **QUIET, **settings)


WRAPPERS: dict[str, Callable[[LabelAware], Any]] = {
    "server, fixed": lambda inner: flowers.DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, 5),
    "client, fixed": lambda inner: flowers.DifferentialPrivacyClientSideFixedClipping(inner, 1.0, 1.0, 5),
    "server, adaptive": lambda inner: flowers.DifferentialPrivacyServerSideAdaptiveClipping(inner, 0.1, 5),
    "client, adaptive": lambda inner: flowers.DifferentialPrivacyClientSideAdaptiveClipping(inner, 0.1, 5),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_flowers_wrappers_are_refused(whole: Worker, name: str) -> None:
    grid = grid_of(whole)
    with pytest.raises(InputError, match=r"another strategy wraps this one.*give clip_update=1\.0, noise_multiplier"):
        WRAPPERS[name](fedpals(whole)).start(grid, initial(whole), num_rounds=1)
    assert not grid.sent


def test_a_strategy_that_was_started_before_cannot_be_wrapped_either(whole: Worker) -> None:
    server, grid = fedpals(whole), grid_of(whole)
    server.start(grid, initial(whole), num_rounds=1)
    sent = len(grid.sent)
    with pytest.raises(InputError, match="another strategy wraps this one"):
        WRAPPERS["server, fixed"](server).start(grid, initial(whole), num_rounds=1)
    assert len(grid.sent) == sent


def test_epsilon_is_in_metrics_and_log(whole: Worker, log: pytest.LogCaptureFixture) -> None:
    server = fedpals(whole, **PRIVATE)
    result = server.start(grid_of(whole), initial(whole), num_rounds=2)
    metrics = result.train_metrics_clientapp
    assert [metrics[t]["epsilon"] for t in (1, 2)] == pytest.approx([4.377, 6.573], abs=1e-3)
    assert metrics[2]["delta"] == 1e-5
    assert any("round 2: ε = 6.573 at δ = 1e-05" in line for line in log.messages)


def test_results_are_the_simulators_given_the_same_key(whole: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "seed 0")
    run = Run.of({**SMALL, **PRIVATE, "method": "fedpals", "ess": 0.5, "rounds": 2})
    own = Worker(run)
    simulation = Simulation(own, SerialPool(own))
    while not simulation.finished:
        simulation.advance()
    result = fedpals(whole, **PRIVATE).start(grid_of(whole), initial(whole), num_rounds=2)
    assert result.arrays is not None
    assert torch.equal(flat(result.arrays, whole), simulation.state.vector)


def test_the_checkpoint_has_the_model_with_its_noise_and_a_resume_continues(whole: Worker, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    first = fedpals(whole, **PRIVATE, checkpoint=path).start(grid_of(whole), initial(whole), num_rounds=1)
    tensors, facts = checkpoint.load(path)
    assert first.arrays is not None
    assert torch.equal(tensors["vector"], flat(first.arrays, whole))
    one = np.sqrt(np.square(tensors["vector"].numpy() - flat(initial(whole), whole).numpy()).sum())
    assert one > 1.5  # one client's 1.0 and all the noise; without noise it is at most 1.0
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(path.read_bytes())
    ends = [
        fedpals(whole, **PRIVATE, checkpoint=p).start(grid_of(whole), initial(whole), num_rounds=3)
        for p in (path, copy)
    ]
    assert all(end.train_metrics_clientapp[3]["epsilon"] == pytest.approx(8.385, abs=1e-3) for end in ends)
    assert torch.equal(*(flat(end.arrays, whole) for end in ends if end.arrays is not None))
    assert len(facts["noise_key"]) == 64
    assert path.stat().st_mode & 0o077 == 0  # whoever has the key can take the noise away
    with pytest.raises(InputError, match="another protection"):
        fedpals(whole, checkpoint=path).start(grid_of(whole), initial(whole), num_rounds=3)


def test_no_state_is_kept_from_which_rounds_would_be_released_again(whole: Worker, tmp_path: Path) -> None:
    """After going back, other updates would give other models of the same rounds: 9.997 spent, and 8.385 told."""
    path, grid = tmp_path / "state.safetensors", grid_of(whole)

    def lose_all(number: int, _: ArrayRecord) -> None:
        if number == 2:
            grid.spoil = dict.fromkeys(grid.contexts, spoiling("train", lambda _: None))

    server = fedpals(whole, **PRIVATE, checkpoint=path)
    with pytest.raises(DivergedError, match=r"The state after round 2 is in .*end the run") as error:
        server.start(grid, initial(whole), num_rounds=3, timeout=1.0, evaluate_fn=lose_all)
    assert "mv " not in str(error.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["state.safetensors"]


def test_nothing_exact_is_asked_for(whole: Worker) -> None:
    grid = grid_of(whole, held_out=0.2)
    server = fedpals(whole, **PRIVATE)
    server.start(grid, initial(whole), num_rounds=1)
    with pytest.raises(InputError, match="a last layer made of them would tell about clients"):
        server.with_gaussian_head()
    with pytest.raises(InputError, match="a last layer made of them would tell about clients"):
        server.with_recommended_layer()
    with pytest.raises(InputError, match="use the last round"):
        _ = server.best_round
    assert {m.metadata.message_type for m in grid.sent} == {"query.labelcounts", "train"}


@pytest.mark.parametrize("name", ["scaffold", "afl"])
def test_methods_that_noise_does_not_cover(whole: Worker, name: str) -> None:
    with pytest.raises(InputError, match=r"clip_update: .*no noise"):
        strategy(name, whole.federation.target, **QUIET, **PRIVATE)


# Dishonest updates


def lying(factor: float, start: ArrayRecord) -> Any:
    def lie(reply: Message) -> Message:
        arrays = reply.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        for key, array in arrays.items():
            first = start[key].numpy()
            arrays[key] = Array((first + factor * (array.numpy() - first)).astype(np.float32))
        return reply

    return spoiling("train", lie)


@pytest.mark.parametrize("factor", [-50.0, 1e30])
def test_a_lie_is_named_and_refused(whole: Worker, log: pytest.LogCaptureFixture, factor: float) -> None:
    grid, start = grid_of(whole), initial(whole)
    server = strategy("fedavg", whole.federation.target, **QUIET)
    grid.spoil[grid.node(1)] = lying(factor, start)
    result = server.start(grid, start, num_rounds=1)
    assert [refusal.client for refusal in server.rounds[0].refused] == [1]
    assert any("client 1" in line and "times the median" in line for line in log.messages)
    honest = grid_of(whole)
    honest.spoil[honest.node(1)] = spoiling("train", lambda _: None)
    expected = strategy("fedavg", whole.federation.target, **QUIET).start(honest, start, num_rounds=1)
    assert result.arrays is not None
    assert expected.arrays is not None
    assert torch.equal(flat(result.arrays, whole), flat(expected.arrays, whole))


def test_a_node_that_restarts_before_its_old_id_is_gone_has_not_spent_less(whole: Worker) -> None:
    """Without a number it is a newcomer, and SuperLink calls the old id online until its heartbeats are missed."""
    grid, rounds = grid_of(whole), 4
    current = grid.node(2)

    def nameless(reply: Message) -> Message:
        if reply.metadata.message_type == "query.labelcounts":
            del reply.content.metric_records["fedpals.labelcounts"]["client"]
        return reply

    def restart(number: int, _: ArrayRecord) -> None:
        nonlocal current
        if number in (1, 2, 3):
            grid.hanging.add(current)
            current = grid.join(2, node=90_000 + number)
            grid.spoil[current] = nameless

    grid.spoil.update(dict.fromkeys(grid.contexts, nameless))
    settings = {**PRIVATE, **QUIET, "patience": 0.1, "min_available_nodes": 2}
    server = strategy("fedavg", whole.federation.target, **settings)
    told = server.start(grid, initial(whole), rounds, 0.3, evaluate_fn=restart).train_metrics_clientapp
    assert server._session is not None
    nodes = [member.node for member in server._session.roster.members]
    rows = {nodes.index(node) for node in nodes if grid.contexts[node].node_config["partition-id"] == 2}
    assert len(rows) == rounds
    spent = sum(
        (alpha / done.alpha.max()) ** 2
        for done in server.rounds
        for row, alpha in zip(done.participants.tolist(), done.alpha.tolist(), strict=True)
        if row in rows
    )
    last = told[rounds]["epsilon"]
    assert isinstance(last, float)
    assert last >= epsilon(math.sqrt(spent), 1e-5) * (1 - 1e-9)
    assert server._session.state.spent is not None
    assert server._session.state.spent[nodes.index(current)] >= spent * (1 - 1e-9)


def test_a_node_that_restarts_with_its_number_spends_as_if_it_had_not(whole: Worker) -> None:
    def restart(number: int, _: ArrayRecord) -> None:
        if number == 1:
            grid.contexts.pop(grid.node(2))
            grid.join(2, node=90_000)

    told = []
    for evaluate in (restart, None):
        grid = grid_of(whole)
        server = strategy("fedavg", whole.federation.target, **PRIVATE, **QUIET)
        result = server.start(grid, initial(whole), num_rounds=3, evaluate_fn=evaluate)
        told.append([result.train_metrics_clientapp[number]["epsilon"] for number in (1, 2, 3)])
    assert told[0] == told[1]


def test_a_node_whose_number_is_new_has_spent_nothing(whole: Worker) -> None:
    grid = grid_of(whole)
    late = grid.contexts.pop(grid.node(2))

    def join(number: int, _: ArrayRecord) -> None:
        if number == 2:
            grid.contexts[late.node_id] = late

    server = strategy("fedavg", whole.federation.target, **PRIVATE, **QUIET)
    server.start(grid, initial(whole), num_rounds=3, evaluate_fn=join)
    assert server._session is not None
    assert server._session.state.spent is not None
    assert server._session.state.spent[-1] <= 1.0 < server._session.state.spent.max()


def test_a_lie_that_is_kept_is_named(whole: Worker, log: pytest.LogCaptureFixture) -> None:
    grid, start = grid_of(whole), initial(whole)
    grid.spoil[grid.node(1)] = lying(-50.0, start)
    strategy("fedavg", whole.federation.target, outliers="keep", **QUIET).start(grid, start, num_rounds=1)
    assert any("client 1" in line and "it is used as it is" in line for line in log.messages)


def test_the_geometric_median(whole: Worker) -> None:
    grid, start = grid_of(whole), initial(whole)
    grid.spoil[grid.node(1)] = lying(-5.0, start)
    server = strategy("fedavg", whole.federation.target, aggregation="geometric_median", **QUIET)
    server.start(grid, start, num_rounds=1)
    weights = dict(zip(server.rounds[0].participants.tolist(), server.rounds[0].alpha.tolist(), strict=True))
    assert weights[1] < 0.6 * min(weight for row, weight in weights.items() if row != 1)


# Modifiers of the clients' app

TWO_RECORDS = r"client 0: error: LocalDpMod expects exactly one ArrayRecord, but found 2"


@pytest.mark.parametrize("mod", [fixedclipping_mod, LocalDpMod(1.0, 1.0, 1.0, 1e-5)])
def test_modifiers_leave_the_question_for_counts_alone(mod: Any) -> None:
    app = ClientApp(mods=[mod])
    add_labelcounts(app, lambda _: [3, 4])
    grid = FakeGrid(app, [0])
    question = Message(content=start_record(), message_type="query.labelcounts", dst_node_id=grid.node(0))
    (reply,) = grid.send_and_receive([question])
    assert reply.has_content()
    assert reply.content.metric_records["fedpals.labelcounts"]["counts"] == [3, 4]


def test_a_modifier_that_fails_is_named_with_its_reason(whole: Worker) -> None:
    grid = grid_of(whole)
    grid.app = client_app(grid_load(whole), mods=[LocalDpMod(1.0, 1.0, 1.0, 1e-5)])
    with pytest.raises(DivergedError, match=TWO_RECORDS):
        strategy("scaffold", whole.federation.target, **QUIET).start(grid, initial(whole), num_rounds=1)


def test_the_error_of_a_modifier_is_addressed_to_the_question(whole: Worker) -> None:
    """SuperLink never gets a reply to anything else, and the server would wait for it until the timeout."""
    grid = grid_of(whole)
    strategy("scaffold", whole.federation.target, **QUIET).start(grid, initial(whole), num_rounds=1)
    job = next(message for message in grid.sent if message.metadata.message_type == "train")
    node = job.metadata.dst_node_id
    app = client_app(grid_load(whole), mods=[LocalDpMod(1.0, 1.0, 1.0, 1e-5)])
    reply = app(job, grid.contexts[node])
    assert "LocalDpMod" in (reply.error.reason or "")
    assert reply.metadata.reply_to_message_id == job.metadata.message_id
    assert (reply.metadata.src_node_id, reply.metadata.dst_node_id) == (node, job.metadata.src_node_id)


def test_the_error_of_a_modifier_of_another_app_is_named_with_its_reason(whole: Worker) -> None:
    """On a grid that passes on what a modifier addresses to the app's answer, which SuperLink does not."""
    grid, honest = grid_of(whole), grid_of(whole).app
    app = ClientApp(mods=[LocalDpMod(1.0, 1.0, 1.0, 1e-5)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = honest(message, context)
        reply.content["more"] = ArrayRecord()
        return reply

    grid.app = Routed(honest, app)
    with pytest.raises(DivergedError, match=TWO_RECORDS):
        fedpals(whole).start(grid, initial(whole), num_rounds=1)


class Routed(ClientApp):
    """One app for training, another for the questions."""

    def __init__(self, questions: ClientApp, training: ClientApp) -> None:
        super().__init__()
        self.questions, self.training = questions, training

    def __call__(self, message: Message, context: Context) -> Message:
        trains = message.metadata.message_type == "train"
        return (self.training if trains else self.questions)(message, context)


def start_record() -> Any:
    from flwr.app import RecordDict

    return RecordDict()


def test_modifiers_of_a_ready_made_app_see_training_only(whole: Worker) -> None:
    seen: list[str] = []

    def watch(message: Message, context: Context, call_next: Any) -> Message:
        seen.append(message.metadata.message_type)
        reply: Message = call_next(message, context)
        return reply

    grid = grid_of(whole)
    grid.app = client_app(grid_load(whole), mods=[watch])
    fedpals(whole).start(grid, initial(whole), num_rounds=1)
    assert set(seen) == {"train"}


def grid_load(whole: Worker) -> Any:
    from fedpals.flower import Trainee

    def load(context: Context) -> Trainee:
        number = int(context.node_config["partition-id"])
        own = whole.client(number)
        return Trainee(whole.model, own.x, own.y, len(whole.federation.dataset.labels), whole.run.plan, number)

    return load
