"""ess = auto on Flower: the simulator's choices and bits; clients that do not compare, or lie, end no run."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message

from fedpals import solve
from fedpals.errors import InputError
from fedpals.flower import LabelAware, Trainee, client_app, messages, strategy
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.worker import Worker
from tests.flower.grids import SMALL, FakeGrid, Spoil, answer, change, flat, grid_of, initial, spoiling
from tests.runs import final_vector

HELD_OUT = 0.2
AUTO: dict[str, Any] = {**SMALL, "method": "fedpals", "ess": "auto", "learning_rate": 0.5}


@pytest.fixture(scope="module")
def whole() -> Worker:
    """The federation before anybody holds samples out, which is what nodes have."""
    return Worker(Run.of({**AUTO, "ess": 0.5}))


def holding(worker: Worker, numbers: Collection[int]) -> FakeGrid:
    """Nodes of which only some hold samples out."""

    def load(context: Context) -> Trainee:
        number = int(context.node_config["partition-id"])
        own = worker.client(number)
        share = HELD_OUT if number in numbers else None
        return Trainee(worker.model, own.x, own.y, 10, worker.run.plan, number, worker.run.seed, held_out=share)

    return FakeGrid(client_app(load), range(len(worker.federation.clients)))


def claiming(reply: Message, held_out: int) -> Message:
    """An introduction with a claim of its own."""
    reply.content.metric_records["fedpals.labelcounts"]["held-out"] = held_out
    return reply


def silence(grid: FakeGrid) -> None:
    """No comparison is answered from now on."""
    for node in grid.get_node_ids():
        grid.spoil[node] = spoiling(messages.COMPARISON, lambda _: None)


def auto(worker: Worker, method: str = "fedpals", **settings: Any) -> LabelAware:
    keys = {"fraction_evaluate": 0.0, "wait": 0.05, **settings}
    return strategy(method, worker.federation.target, ess="auto", **keys)


def chosen(record: Record) -> list[float]:
    return [line.choice.ess for line in record.lines() if line.choice is not None]


@pytest.mark.parametrize(
    "keys",
    [{}, {"participation": 0.5}, {"server_momentum": 0.6, "averaging": 0.8}, {"method": "scaffold+fedpals"}],
    ids=str,
)
def test_choices_and_bits_are_the_simulators(keys: dict[str, Any], whole: Worker, tmp_path: Path) -> None:
    record = simulate(Run.of({**AUTO, "held_out": HELD_OUT, **keys}), tmp_path)
    assert len(chosen(record)) == 5
    settings = {key: keys[key] for key in ("server_momentum", "averaging") if key in keys}
    server = auto(whole, keys.get("method", "fedpals"), fraction_train=keys.get("participation", 1.0), **settings)
    server.start(grid_of(whole, held_out=HELD_OUT), initial(whole), num_rounds=5)
    assert [done.choice.ess for done in server.rounds if done.choice] == chosen(record)
    session = server._session
    assert session is not None
    assert torch.equal(flat(session.layout.record(session.state.vector), whole), final_vector(record))


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_resumed_strategy_makes_the_same_choices(fraction: float, whole: Worker, tmp_path: Path) -> None:
    once = auto(whole, fraction_train=fraction)
    arrays = once.start(grid_of(whole, held_out=HELD_OUT), initial(whole), num_rounds=4).arrays
    choices = []
    for rounds in (1, 2, 4):
        again = auto(whole, fraction_train=fraction, checkpoint=tmp_path / "state.safetensors")
        last = again.start(grid_of(whole, held_out=HELD_OUT), initial(whole), num_rounds=rounds).arrays
        choices += [done.choice for done in again.rounds]
    assert torch.equal(flat(arrays, whole), flat(last, whole))
    assert choices == [done.choice for done in once.rounds]


def test_candidates_are_all_that_clients_are_sent(whole: Worker) -> None:
    grid = grid_of(whole, held_out=HELD_OUT)
    auto(whole).start(grid, initial(whole), num_rounds=1)
    questions = [m.content for m in grid.sent if m.metadata.message_type == messages.COMPARISON]
    assert questions
    for content in questions:
        assert len(messages.read_candidates(content)) == len(content) > 1
        assert not content.config_records
        assert not content.metric_records


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: None,
        answer(change(samples=np.full(10, 10**6))),
        answer(change(loss=np.full((10, 4), np.nan))),
        answer(change(loss=np.zeros((10, 3)), product=np.zeros((10, 3, 3)))),
    ],
)
@pytest.mark.parametrize("client", [0, 3])
def test_a_wrong_comparison_is_left_out(
    spoil: Spoil, client: int, whole: Worker, log: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(whole, held_out=HELD_OUT)
    grid.spoil[grid.node(client)] = spoiling(messages.COMPARISON, spoil)
    server = auto(whole)
    server.start(grid, initial(whole), num_rounds=1)
    asked = grid.node(client) in grid.kinds(messages.COMPARISON)
    assert sum(messages.COMPARISON in line and "is left out" in line for line in log.messages) == asked
    assert server.rounds[0].choice is not None


def test_if_nobody_compares_it_is_the_candidate_nearest_to_a_half(whole: Worker, log: pytest.LogCaptureFixture) -> None:
    grid = grid_of(whole, held_out=HELD_OUT)
    server = auto(whole)
    silence(grid)
    server.start(grid, initial(whole), num_rounds=2)
    assert all(abs(done.choice.ess - 0.5) < 1 / 6 for done in server.rounds if done.choice)
    reason = "none of the 5 clients that hold samples out sent an answer that can be used"
    for number in (1, 2):
        (line,) = (m for m in log.messages if f"round {number}: the candidates for the ESS are not compared" in m)
        assert f"({reason}): the one nearest to an ESS of 50 % is taken, here " in line


def test_if_nobody_compares_any_more_the_number_of_the_candidate_stays(
    whole: Worker, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path, grid = tmp_path / "state.safetensors", grid_of(whole, held_out=HELD_OUT)
    auto(whole, checkpoint=path).start(grid, initial(whole), num_rounds=2)
    silence(grid)
    server = auto(whole, checkpoint=path)
    server.start(grid, initial(whole), num_rounds=3)
    session = server._session
    assert session is not None
    position = session.state.position
    assert position is not None
    assert any(f"number {position + 1}, as chosen last, is taken" in line for line in log.messages)


def test_a_last_client_that_stops_holding_out_ends_no_run(whole: Worker, tmp_path: Path) -> None:
    """Even if it comes back without: others may have trained for days."""
    path = tmp_path / "state.safetensors"
    auto(whole, checkpoint=path).start(holding(whole, {0}), initial(whole), num_rounds=1)
    server = auto(whole, checkpoint=path)
    grid = holding(whole, {0})
    grid.spoil[grid.node(0)] = spoiling(messages.LABELCOUNTS, partial(claiming, held_out=0))
    server.start(grid, initial(whole), num_rounds=2)
    assert [done.uncompared for done in server.rounds] == ["no participant holds samples out"]


def test_nobody_holds_samples_out(whole: Worker) -> None:
    with pytest.raises(InputError, match=r"ess is 'auto', but no client holds samples out.*ess=0\.5"):
        auto(whole).start(grid_of(whole), initial(whole), num_rounds=1)


def undecided(worker: Worker, **settings: Any) -> LabelAware:
    return strategy("fedpals", worker.federation.target, fraction_evaluate=0.0, wait=0.05, **settings)


def test_without_ess_and_lam_it_is_auto_where_clients_hold_samples_out(whole: Worker, tmp_path: Path) -> None:
    once, default = auto(whole), undecided(whole)
    wanted = once.start(grid_of(whole, held_out=HELD_OUT), initial(whole), num_rounds=3).arrays
    found = default.start(grid_of(whole, held_out=HELD_OUT), initial(whole), num_rounds=3).arrays
    assert [done.choice for done in default.rounds] == [done.choice for done in once.rounds]
    assert torch.equal(flat(found, whole), flat(wanted, whole))
    for rounds in (1, 3):
        again = undecided(whole, checkpoint=tmp_path / "state.safetensors")
        found = again.start(grid_of(whole, held_out=HELD_OUT), initial(whole), num_rounds=rounds).arrays
    assert torch.equal(flat(found, whole), flat(wanted, whole))
    fixed = undecided(whole, checkpoint=tmp_path / "state.safetensors", ess=0.5)
    with pytest.raises(InputError, match="another options"):
        fixed.start(grid_of(whole, held_out=HELD_OUT), initial(whole), num_rounds=4)


@pytest.mark.parametrize(
    ("held_out", "settings"),
    [
        (None, {}),
        (HELD_OUT, {"ess": 0.5}),
        (HELD_OUT, {"clip_update": 1.0, "noise_multiplier": 0.1, "privacy_delta": 1e-5}),
    ],
    ids=str,
)
def test_elsewhere_it_is_a_half(held_out: float | None, settings: dict[str, Any], whole: Worker) -> None:
    server = undecided(whole, **settings)
    server.start(grid_of(whole, **({} if held_out is None else {"held_out": held_out})), initial(whole), num_rounds=1)
    (done,) = server.rounds
    assert done.choice is None
    if held_out is None:  # else clients train on fewer samples than the federation says
        counts = whole.federation.counts.subset(done.participants)
        assert done.alpha == pytest.approx(solve(counts, whole.federation.target, ess=0.5).alpha)


@pytest.mark.parametrize(
    ("holders", "claim", "why"),
    [
        ({1}, None, "1 of 5 clients hold samples out, but none of them has these labels of the target: 5, 6"),
        (set(), 5, "1 of 5 clients hold samples out, but none of them has these labels of the target: 5, 6"),
    ],
)
def test_it_is_a_half_where_holders_lack_labels_of_the_target(
    holders: set[int], claim: int | None, why: str, whole: Worker, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Client 1 has no label of T, and whether it holds samples out or only says so does not make FedPALS FedAvg."""

    def grid() -> FakeGrid:
        nodes = holding(whole, holders)
        if claim is not None:
            nodes.spoil[nodes.node(1)] = spoiling(messages.LABELCOUNTS, partial(claiming, held_out=claim))
        return nodes

    half = undecided(whole, ess=0.5).start(grid(), initial(whole), num_rounds=2).arrays
    for rounds in (1, 2):
        server = undecided(whole, checkpoint=tmp_path / "state.safetensors")
        found = server.start(grid(), initial(whole), num_rounds=rounds).arrays
    assert torch.equal(flat(found, whole), flat(half, whole))
    assert server.method.full_title == "FedPALS (ESS 0.5)"
    assert sum(why in line and "FedPALS (ESS 0.5) stays: let" in line for line in log.messages) == 1


@pytest.mark.parametrize("liar", [False, True])
def test_a_client_that_does_not_compare_does_not_make_the_default_fedavg(liar: bool, whole: Worker) -> None:
    """Client 0 has all labels of T; it does not answer, or only claims to hold samples out."""
    grid = holding(whole, set() if liar else {0})
    if liar:
        grid.spoil[grid.node(0)] = spoiling(messages.LABELCOUNTS, partial(claiming, held_out=5))
    else:
        silence(grid)
    server = undecided(whole)
    server.start(grid, initial(whole), num_rounds=2)
    assert server.method.full_title == "FedPALS (ESS auto)"
    assert all(done.uncompared for done in server.rounds)
    assert all(abs(done.choice.ess - 0.5) < 1 / 6 for done in server.rounds if done.choice)


def favouring(reply: Message, samples: list[int]) -> Message:
    """A comparison on samples that a client only claims to have, in which the first candidate is by far the best."""
    n = np.array(samples)
    each = np.full(4, 5.0)
    each[0] = 0.1
    loss = n[:, None] * each
    return answer(change(samples=n, loss=loss, product=loss[:, :, None] * each))(reply) or reply


def lied(worker: Worker, samples: list[int], **settings: Any) -> LabelAware:
    """Two rounds in which client 1 lies consistently."""
    grid = grid_of(worker, held_out=HELD_OUT)

    def lie(reply: Message) -> Message:
        kind = reply.metadata.message_type
        if kind == messages.LABELCOUNTS:
            return claiming(reply, sum(samples))
        return favouring(reply, samples) if kind == messages.COMPARISON else reply

    grid.spoil[grid.node(1)] = lie
    server = undecided(worker, **settings)
    server.start(grid, initial(worker), num_rounds=2)
    return server


GIANT = [0, 0, 10**6, 0, 0, 10**6, 10**6, 0, 0, 0]


def test_a_client_that_claims_to_hold_far_too_much_out_is_named(whole: Worker, log: pytest.LogCaptureFixture) -> None:
    server = lied(whole, GIANT)
    assert all(done.choice and done.choice.ess == done.choice.candidates[0] for done in server.rounds)
    (line,) = (line for line in log.messages if "claims to hold" in line)
    assert "client 1 (node " in line
    assert "claims to hold 3000000 samples out, more than the " in line
    assert " and all 4 others together " in line
    assert "max_samples would bound it" in line


def test_max_samples_bounds_what_counts_as_held_out(whole: Worker, log: pytest.LogCaptureFixture) -> None:
    bounded, silent = lied(whole, GIANT, max_samples=1000), lied(whole, [0] * 10, max_samples=1000)
    assert [done.choice for done in bounded.rounds] == [done.choice for done in silent.rounds]
    (line,) = (line for line in log.messages if "claims to hold" in line)
    assert "claims to hold 3000000 samples out, more than max_samples=1000: it is not asked to judge models" in line


def test_a_client_that_holds_out_more_of_a_label_than_it_trains_on_is_named_once(
    whole: Worker, log: pytest.LogCaptureFixture
) -> None:
    lied(whole, [0, 0, 10, 0, 0, 5, 5, 0, 0, 0])
    (line,) = (line for line in log.messages if "claims to hold" in line)
    assert "claims to hold 10 samples of label 2 out, more than the 0 that it trains on" in line


def test_honest_claims_are_nobodys_business(whole: Worker, log: pytest.LogCaptureFixture) -> None:
    for share in (0.1, HELD_OUT, 0.5):
        undecided(whole).start(grid_of(whole, held_out=share), initial(whole), num_rounds=1)
    assert not [line for line in log.messages if "claims" in line]


def test_without_a_shift_it_is_fedavg(whole: Worker) -> None:
    """T is the marginal of what the clients train on, exactly, and all of them take part: nothing is compared."""
    seen = auto(whole)
    seen.start(grid_of(whole, held_out=HELD_OUT), initial(whole), num_rounds=1)
    session = seen._session
    assert session is not None
    counts = session.roster.counts
    target = counts.sizes @ counts.marginals / counts.total
    grid = grid_of(whole, held_out=HELD_OUT)
    settings: dict[str, Any] = {"fraction_evaluate": 0.0, "wait": 0.05}
    found, wanted = strategy("fedpals", target, ess="auto", **settings), strategy("fedavg", target, **settings)
    arrays = found.start(grid, initial(whole), num_rounds=3).arrays
    fedavg = wanted.start(grid_of(whole, held_out=HELD_OUT), initial(whole), num_rounds=3).arrays
    assert torch.equal(flat(arrays, whole), flat(fedavg, whole))
    assert [done.choice.ess for done in found.rounds if done.choice] == pytest.approx([1.0] * 3)
    assert not grid.kinds(messages.COMPARISON)
    assert not any(done.uncompared for done in found.rounds)
