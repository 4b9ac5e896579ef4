"""ess = auto on Flower: the simulator's choices and bits; clients that do not compare, or lie, end no run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpals import solve
from fedpals.errors import InputError
from fedpals.flower import LabelAware, messages, strategy
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.worker import Worker
from tests.flower.grids import SMALL, Spoil, answer, change, flat, grid_of, initial, spoiling
from tests.runs import final_vector

HELD_OUT = 0.2
AUTO: dict[str, Any] = {**SMALL, "method": "fedpals", "ess": "auto", "learning_rate": 0.5}


@pytest.fixture(scope="module")
def whole() -> Worker:
    """The federation before anybody holds samples out, which is what nodes have."""
    return Worker(Run.of({**AUTO, "ess": 0.5}))


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


def test_a_resumed_strategy_makes_the_same_choices(whole: Worker, tmp_path: Path) -> None:
    once = auto(whole)
    arrays = once.start(grid_of(whole, held_out=HELD_OUT), initial(whole), num_rounds=4).arrays
    for rounds in (2, 4):
        again = auto(whole, checkpoint=tmp_path / "state.safetensors")
        last = again.start(grid_of(whole, held_out=HELD_OUT), initial(whole), num_rounds=rounds).arrays
    assert torch.equal(flat(arrays, whole), flat(last, whole))


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


def test_if_nobody_compares_it_stays_at_fedavg(whole: Worker, log: pytest.LogCaptureFixture) -> None:
    grid = grid_of(whole, held_out=HELD_OUT)
    for node in grid.get_node_ids():
        grid.spoil[node] = spoiling(messages.COMPARISON, lambda _: None)
    server = auto(whole)
    server.start(grid, initial(whole), num_rounds=2)
    assert [done.choice.ess for done in server.rounds if done.choice] == pytest.approx([1.0, 1.0])
    assert any("the ESS stays the same" in line for line in log.messages)


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
