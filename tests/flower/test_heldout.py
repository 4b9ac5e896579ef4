"""Tallies, feature sums and noisy counts: the numbers are the simulator's, and wrong answers end no run."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpals.engine import checkpoint
from fedpals.engine.flat_model import FlatModel
from fedpals.errors import InputError
from fedpals.flower import FedAvg, FedPALS, LabelAware, Trainee, add_labelcounts, strategy
from fedpals.labels.private import repair
from fedpals.shift import FeatureSums, Tally, gaussian_head, homogeneity, pooled, target_accuracy
from fedpals.shift.evaluation import Correction
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.state import SimulationState
from fedpals.simulation.worker import Worker
from tests.flower.grids import SMALL, FakeGrid, Spoil, answer, change, changed, flat, grid_of, initial, spoiling
from tests.runs import lines_of, result_of

QUIET: dict[str, Any] = {"fraction_evaluate": 0.0, "wait": 0.05}
METHOD: dict[str, Any] = {**SMALL, "method": "fedpals", "ess": 0.5, "learning_rate": 0.5}
HELD_OUT = 0.2


def fedpals(worker: Worker, **settings: Any) -> LabelAware:
    return strategy("fedpals", worker.federation.target, ess=0.5, **{**QUIET, **settings})


@pytest.fixture(scope="module")
def whole() -> Worker:
    """The federation before anybody holds samples out, which is what nodes have."""
    return Worker(Run.of(**METHOD))


@pytest.fixture(scope="module")
def split() -> Worker:
    """The simulator's federation, after it."""
    return Worker(Run.of(**METHOD, held_out=HELD_OUT))


@pytest.fixture(scope="module", params=[{}, {"server_momentum": 0.6, "averaging": 0.8}])
def simulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    run = Run.of(**METHOD, held_out=HELD_OUT, **request.param)
    return simulate(run, tmp_path_factory.mktemp("runs"))


def tallies(split: Worker, vector: torch.Tensor) -> list[Tally]:
    """What every client of the simulator says of a model."""
    split.model.load(vector)
    parts = [split.samples(indices) for indices in split.federation.held_out]
    return [Tally.of(y.numpy(), split.model.logits(x).double().numpy()) for x, y in parts]


# The simulator's numbers


def test_estimate_selection_test_and_head_are_the_simulators(simulated: Record, whole: Worker, split: Worker) -> None:
    grid, averaging = grid_of(whole, held_out=HELD_OUT), simulated.run.server.averaging
    server = fedpals(whole, averaging=averaging, server_momentum=simulated.run.server.server_momentum)
    evaluated: dict[int, torch.Tensor] = {}

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        evaluated[number] = flat(arrays, whole)

    result = server.start(grid, initial(whole), num_rounds=5, evaluate_fn=evaluate)
    metrics = result.train_metrics_clientapp
    for line in lines_of(simulated):
        assert metrics[line["round"]]["target_accuracy_estimate"] == line["raw"]["clients"]["target_accuracy"]
        assert metrics[line["round"]]["target_accuracy_standard_error"] == line["raw"]["clients"]["standard_error"]
    state, selected = SimulationState.load(simulated.checkpoint), result_of(simulated)["selected"]["raw/estimate"]
    assert torch.equal(flat(result.arrays, whole), state.model)
    assert torch.equal(evaluated[5], state.model)
    assert torch.equal(state.model, state.vector) == (averaging is None)
    assert server.best_round == selected["round"]
    assert torch.equal(evaluated[server.best_round], flat(server.best_arrays, whole))
    best, _ = checkpoint.load(simulated.model())
    assert all(torch.equal(value, best[key]) for key, value in server.best_arrays.to_torch_state_dict().items())
    assert server.check() == homogeneity(tallies(split, state.model), server.seed)
    assert server.tally.to_json() == pooled(tallies(split, state.model)).to_json()
    head, _ = checkpoint.load(simulated.model(Correction.GAUSSIAN))
    arrays, layer = server.with_gaussian_head()
    assert layer.stands_for.tolist() == head.pop("stands_for").tolist()
    assert layer.displaced is not None  # nobody has one of the target's labels
    assert layer.displaced.axes.tolist() == head.pop("displaced_axes").tolist()
    assert layer.displaced.centres.tolist() == head.pop("displaced_centres").tolist()
    ours = arrays.to_torch_state_dict()
    assert ours.keys() == head.keys()
    assert all(torch.equal(value, head[key]) for key, value in ours.items())
    queries = [m for m in grid.sent if m.metadata.message_type in {"query.tally", "query.featuresums"}]
    assert len(queries) == 5 * 5 + 5
    assert all(set(message.content) == {"arrays"} for message in queries), "nothing but the model is sent"


def test_only_participants_are_asked(whole: Worker) -> None:
    grid = grid_of(whole, held_out=HELD_OUT)
    server = fedpals(whole, fraction_train=0.6)
    server.start(grid, initial(whole), num_rounds=2)
    nodes = [grid.node(int(i)) for result in server.rounds for i in result.participants]
    assert grid.kinds("query.tally") == nodes
    assert len(nodes) == 6


# Clients that do not answer, or answer nonsense


def test_nodes_that_hold_nothing_out_are_never_asked(whole: Worker) -> None:
    grid = grid_of(whole)
    server = fedpals(whole)
    metrics = server.start(grid, initial(whole), num_rounds=1).train_metrics_clientapp[1]
    assert not grid.kinds("query.tally")
    assert "target_accuracy_estimate" not in metrics
    with pytest.raises(InputError, match=r"no round has an estimate: let clients hold samples out"):
        _ = server.best_round
    with pytest.raises(InputError, match="0 tallies"):
        server.check()
    with pytest.raises(InputError, match="no client sent a tally: let clients hold samples out"):
        _ = server.tally


def garbage(record: ArrayRecord) -> None:
    record["loss"] = Array("float64", (10,), "numpy.ndarray", b"nonsense")


def instead(content: RecordDict | Error) -> Spoil:
    """Another answer of the same node."""
    return lambda reply: Message(content, reply_to=Message(RecordDict(), reply_to=reply))


BROKEN_TALLIES = [
    (lambda _: None, "no reply within"),
    (instead(Error(2, "unknown query")), "error: unknown query"),
    (instead(RecordDict()), "sends no Tally of loss, squared_loss, confusion"),
    (answer(garbage), "'loss' cannot be read"),
    (answer(changed("loss", lambda v: v + math.nan)), "loss: label 0: nan"),
    (answer(changed("confusion", lambda v: -v)), "it must be ≥ 0"),
    (answer(changed("confusion", lambda v: v.astype(np.uint64))), "uint64 instead of int64"),
    (answer(changed("confusion", lambda v: v * 1.0)), "must hold whole numbers"),
    (answer(changed("confusion", lambda v: 2 * v)), "samples, but it holds"),
    (answer(changed("confusion", lambda v: np.where(v, 2**58, 0))), "samples, but it holds"),
    (answer(change(loss=np.zeros(3), squared_loss=np.zeros(3), confusion=np.eye(3, dtype=int))), "3 labels instead"),
    (answer(change(other=np.zeros(3))), "sends no Tally"),
]


@pytest.mark.parametrize(("spoil", "reason"), BROKEN_TALLIES)
def test_a_tally_that_cannot_be_used_is_named_and_left_out(
    spoil: Spoil, reason: str, whole: Worker, split: Worker, log: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(whole, held_out=HELD_OUT)
    grid.spoil[grid.node(1)] = spoiling("query.tally", spoil)
    server = fedpals(whole)
    result = server.start(grid, initial(whole), num_rounds=2)
    others = [t for i, t in enumerate(tallies(split, flat(result.arrays, whole))) if i != 1]
    expected = target_accuracy(pooled(others), whole.federation.target)
    assert result.train_metrics_clientapp[2]["target_accuracy_estimate"] == expected.value
    assert [test.client for test in server.check().clients] == ["0", "2", "3", "4"]
    assert not server.rounds[-1].refused, "its update is as good as any"
    warnings = [r.getMessage() for r in log.records if "is left out" in r.getMessage()]
    assert len(warnings) == 2
    assert f"query.tally: client 1 (node {grid.node(1)}) is left out: " in warnings[0]
    assert reason in warnings[0]


def test_nobody_sends_a_tally(whole: Worker) -> None:
    grid = grid_of(whole, held_out=HELD_OUT)
    for i in range(5):
        grid.spoil[grid.node(i)] = spoiling("query.tally", lambda _: None)
    server = fedpals(whole)
    result = server.start(grid, initial(whole), num_rounds=2)
    assert len(server.rounds) == 2
    assert all("target_accuracy_estimate" not in metrics for metrics in result.train_metrics_clientapp.values())


def test_labels_of_the_target_that_nobody_holds_out_leave_no_estimate(
    whole: Worker, log: pytest.LogCaptureFixture
) -> None:
    def all_label_0(record: ArrayRecord) -> None:
        confusion = np.zeros((10, 10), dtype=np.int64)
        confusion[0, 0] = record["confusion"].numpy().sum()
        change(loss=np.zeros(10), squared_loss=np.zeros(10), confusion=confusion)(record)

    grid = grid_of(whole, held_out=HELD_OUT)
    grid.spoil = dict.fromkeys(grid.contexts, spoiling("query.tally", answer(all_label_0)))
    server = FedPALS(np.eye(10)[9], ess=0.5, **QUIET)
    server.start(grid, initial(whole), num_rounds=1)
    assert any("target accuracy cannot be estimated" in r.getMessage() for r in log.records)
    assert server.check().light == "amber"
    with pytest.raises(InputError, match="no round has an estimate"):
        _ = server.best_arrays


def test_a_cap_bounds_tallies_too(whole: Worker, log: pytest.LogCaptureFixture) -> None:
    server = fedpals(whole, max_samples=10)
    result = server.start(grid_of(whole, held_out=HELD_OUT), initial(whole), num_rounds=1)
    assert "target_accuracy_estimate" not in result.train_metrics_clientapp[1]
    assert any("more than max_samples=10" in r.getMessage() for r in log.records)


BROKEN_SUMS = [
    (lambda _: None, "no reply within"),
    (answer(changed("samples", lambda v: v + (v > 0))), "label counts changed"),
    (answer(changed("features", lambda v: v[:, :3])), "do not fit"),
    (answer(change(features=np.zeros((10, 3)), products=np.eye(3))), "instead of (10, 64)"),
    (answer(changed("features", lambda v: v * math.inf)), "NaN or infinite"),
    (answer(changed("products", lambda v: v / 2)), "smaller than their sums allow"),
    (answer(changed("features", lambda v: v + 1)), "a label without samples"),
    (answer(changed("samples", lambda v: v * 1.0)), "must be whole numbers"),
]


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")
@pytest.mark.parametrize(("spoil", "reason"), BROKEN_SUMS)
def test_feature_sums_that_cannot_be_used_are_named_and_left_out(
    spoil: Spoil, reason: str, whole: Worker, log: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(whole)
    grid.spoil[grid.node(2)] = spoiling("query.featuresums", spoil)
    server = fedpals(whole)
    server.start(grid, initial(whole), num_rounds=1)
    arrays, layer = server.with_gaussian_head()
    clients = [whole.client(i) for i in (0, 1, 3, 4)]
    sums = [FeatureSums.of(own.x.flatten(1).double().numpy(), own.y.numpy(), 10) for own in clients]
    head = gaussian_head(sums, whole.federation.target)
    assert (arrays["1.weight"].numpy() == head.weight.astype(np.float32)).all()
    assert (arrays["1.bias"].numpy() == head.bias.astype(np.float32)).all()
    assert (layer.stands_for == head.stands_for).all()
    warnings = [r.getMessage() for r in log.records if "is left out" in r.getMessage()]
    assert len(warnings) == 1
    assert f"client 2 (node {grid.node(2)})" in warnings[0]
    assert reason in warnings[0]


def test_arrays_without_a_last_layer_have_no_gaussian_head() -> None:
    app = ClientApp()
    add_labelcounts(app, lambda _: [3, 1])

    @app.train()
    def train(message: Message, _: Any) -> Message:
        return Message(RecordDict({"arrays": message.content.array_records["arrays"]}), reply_to=message)

    server = FedAvg(min_available_nodes=1, **QUIET)
    with pytest.raises(InputError, match="available after the first round"):
        server.with_gaussian_head()
    server.start(FakeGrid(app, [0]), ArrayRecord({"weight": Array(np.ones((2, 3), np.float32))}), num_rounds=1)
    with pytest.raises(InputError, match="do not end in a linear layer with a bias, 2 labels"):
        server.with_gaussian_head()


def test_a_plain_app_sends_no_feature_sums(whole: Worker) -> None:
    grid = grid_of(whole)
    for i in range(5):
        grid.spoil[grid.node(i)] = spoiling("query.featuresums", instead(Error(2, "unknown query")))
    server = fedpals(whole)
    server.start(grid, initial(whole), num_rounds=1)
    with pytest.raises(InputError, match="at least one client must send sums of its features"):
        server.with_gaussian_head()


# The server is stopped


class StoppedError(Exception):
    """The server's process ends."""


def test_a_stopped_server_keeps_the_best_round_and_the_mean(whole: Worker, tmp_path: Path) -> None:
    def new_server(**settings: Any) -> LabelAware:
        return fedpals(whole, server_momentum=0.6, averaging=0.8, **settings)

    grid = grid_of(whole, held_out=HELD_OUT)
    unbroken = new_server()
    expected = unbroken.start(grid, initial(whole), num_rounds=5)
    assert unbroken.best_round < 5, "so that what came before the stop counts"
    path = tmp_path / "state.safetensors"

    def stop(number: int, _: ArrayRecord) -> None:
        if number == unbroken.best_round:
            raise StoppedError

    with pytest.raises(StoppedError):
        new_server(checkpoint=path).start(grid, initial(whole), num_rounds=5, evaluate_fn=stop)
    resumed, finished = new_server(checkpoint=path), new_server(checkpoint=path)
    for one in (resumed, finished):
        result = one.start(grid, initial(whole), num_rounds=5)
        assert torch.equal(flat(result.arrays, whole), flat(expected.arrays, whole))
        assert one.best_round == unbroken.best_round
        assert torch.equal(flat(one.best_arrays, whole), flat(unbroken.best_arrays, whole))
        assert one.check() == unbroken.check()
        head, same = one.with_gaussian_head()[0], unbroken.with_gaussian_head()[0]
        assert torch.equal(flat(head, whole), flat(same, whole))
    assert not finished.rounds
    with pytest.raises(InputError, match="another server_momentum"):
        fedpals(whole, checkpoint=path).start(grid, initial(whole), num_rounds=6)


# Noisy counts


def introductions(grid: FakeGrid) -> dict[int, list[list[int]]]:
    """Record the counts that every node sends from now on."""
    counts: dict[int, list[list[int]]] = {node: [] for node in grid.contexts}

    def note(reply: Message) -> Message:
        if reply.metadata.message_type == "query.labelcounts":
            record = reply.content.metric_records["fedpals.labelcounts"]
            counts[reply.metadata.src_node_id].append(list(record["counts"]))  # type: ignore[arg-type]
        elif reply.metadata.message_type == "train":
            node = reply.metadata.src_node_id
            assert "fedpals.labelcounts" not in reply.content
            assert reply.content.metric_records["metrics"]["num-examples"] == max(0, sum(counts[node][0]))
        return reply

    grid.spoil = dict.fromkeys(grid.contexts, note)
    return counts


def test_noise_is_drawn_once_and_repaired(whole: Worker, log: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("opendp")
    grid = grid_of(whole, count_epsilon=0.2)
    counts_of = introductions(grid)
    server = fedpals(whole)

    def evaluate(number: int, _: ArrayRecord) -> None:
        grid.offline = {grid.node(3)} if number == 1 else set()

    server.start(grid, initial(whole), num_rounds=3, evaluate_fn=evaluate)
    answers = [counts_of[grid.node(i)] for i in range(5)]
    assert [len(counts) for counts in answers] == [1, 1, 1, 2, 1], "asked again after an absence"
    assert answers[3][0] == answers[3][1]
    assert [counts[0] for counts in answers] != whole.federation.table.tolist()
    assert min(map(min, (counts[0] for counts in answers))) < 0, "some of 35 absent labels"
    assert server._session is not None
    inner = server._session.server
    assert inner is not None
    assert (np.asarray(inner.counts.table) == repair([counts[0] for counts in answers]).table).all()
    assert not [r for r in log.records if "refused" in r.getMessage() and r.levelno >= logging.WARNING]


def test_a_restarted_node_draws_again_but_the_first_counts_hold(whole: Worker) -> None:
    pytest.importorskip("opendp")
    grid = grid_of(whole, count_epsilon=0.2)
    server = FedAvg(whole.federation.target, **QUIET)
    table: list[Any] = []

    def evaluate(number: int, _: ArrayRecord) -> None:
        session = server._session
        if session is None or number == 0:
            return
        table.append([member.counts for member in session.roster.members])
        node = grid.node(3)
        grid.offline = {node} if number == 1 else set()
        grid.contexts[node].state = RecordDict()

    server.start(grid, initial(whole), num_rounds=3, evaluate_fn=evaluate)
    assert table[0] == table[1] == table[2]
    assert len(server.rounds[2].participants) + len(server.rounds[2].refused) == len(server.rounds[0].participants)


def test_clients_with_noisy_counts_send_no_sums(whole: Worker, log: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("opendp")
    grid = grid_of(whole, count_epsilon=1.0)
    server = fedpals(whole)
    server.start(grid, initial(whole), num_rounds=1)
    with pytest.raises(InputError, match="at least one client"):
        server.with_gaussian_head()
    assert any("would reveal them exactly" in r.getMessage() for r in log.records)


def test_without_the_extra_the_log_says_what_to_install(
    whole: Worker, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opendp.prelude", None)
    with pytest.raises(TimeoutError):
        fedpals(whole, min_available_nodes=1).start(grid_of(whole, count_epsilon=1.0), initial(whole), num_rounds=1)
    assert any("pip install 'fedpals[privacy]'" in r.getMessage() for r in log.records)


@pytest.mark.parametrize(
    ("noisy", "repaired"),
    [
        ([12, -2, 1] + 7 * [0], (11, *9 * [0])),
        ([1, -4, 1] + 7 * [0], tuple(10 * [0])),
        ([1.5] + 9 * [1.0], None),
        ([1e300] + 9 * [1.0], None),
        ([math.nan] + 9 * [1.0], None),
        (3 * [1], None),
    ],
)
def test_noisy_counts_are_repaired_or_refused(
    noisy: list[float], repaired: tuple[int, ...] | None, whole: Worker
) -> None:
    grid = grid_of(whole)
    record = MetricRecord({"counts": noisy, "epsilon": 1.0, "client": 1})
    grid.spoil[grid.node(1)] = spoiling("query.labelcounts", instead(RecordDict({"fedpals.labelcounts": record})))
    server = fedpals(whole)
    server.start(grid, initial(whole), num_rounds=1)
    assert server._session is not None
    counts = [m.counts for m in server._session.roster.members if m.node == grid.node(1)]
    assert counts == ([] if repaired is None else [repaired])


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"held_out": 1.5}, r"held_out is 1\.5; it must be between 0 and 1"),
        ({"held_out": 0.1, "count_epsilon": 1.0}, "tallies of held-out samples reveal .* give one of them"),
    ],
)
def test_settings_that_no_client_can_have(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Trainee(FlatModel(torch.nn.Linear(2, 2)), torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), 2, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["averaging", "server_momentum"])
@pytest.mark.parametrize("value", [0.0, 1.0, math.nan])
def test_a_server_that_forgets_nothing_or_all_is_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"{name} is .*; it must be between 0 and 1"):
        FedAvg(**{name: value})
