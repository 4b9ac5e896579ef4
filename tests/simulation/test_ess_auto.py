"""ess = auto: one candidate is a fixed ESS, no shift is FedAvg, resumed runs and Flower make the same choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpals.errors import InputError
from fedpals.labels import Indices, LabelCounts, Vector
from fedpals.methods.pals import Pals
from fedpals.shift.candidates import TOLERANCE
from fedpals.simulation.pools import SerialPool
from fedpals.simulation.rounds import Simulation
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.worker import Worker
from fedpals.weights import solve
from tests.runs import SMALL, final_vector, lines_of

AUTO: dict[str, Any] = {**SMALL, "method": "fedpals", "ess": "auto", "rounds": 6, "held_out": 0.2, "learning_rate": 0.5}


@dataclass(frozen=True)
class OneCandidate(Pals):
    """auto with a single ESS to choose from."""

    def candidates(
        self, counts: LabelCounts, target: Vector, participants: Indices, state: Vector | None
    ) -> Sequence[Vector]:
        del state
        return [solve(counts.subset(participants), target, ess=0.5).alpha]


def simulation(run: Run) -> Simulation:
    worker = Worker(run)
    return Simulation(worker, SerialPool(worker))


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("momentum", [None, 0.5])
def test_one_candidate_is_a_fixed_ess(participation: float, momentum: float | None) -> None:
    keys = {**AUTO, "participation": participation, "server_momentum": momentum}
    auto = Run.of(keys)
    auto = replace(auto, method=replace(auto.method, weighting=OneCandidate(ess="auto")))
    one, fixed = simulation(auto), simulation(Run.of({**keys, "ess": 0.5}))
    for _ in range(4):
        line, other = one.advance(), fixed.advance()
        assert torch.equal(one.state.vector, fixed.state.vector)
        assert (line.loss, line.trained, line.raw, line.prior) == (other.loss, other.trained, other.raw, other.prior)
        assert line.choice is not None
        assert line.choice.candidates == ()
        assert other.choice is None


def test_where_clients_have_the_targets_labels_it_is_fedavg() -> None:
    auto, fedavg = simulation(Run.of(AUTO)), simulation(Run.of({**AUTO, "method": "fedavg", "ess": None}))
    counts = auto.server.counts
    auto.server.set_target(np.asarray(counts.sizes @ counts.marginals / counts.total))
    for _ in range(3):
        line = auto.advance()
        fedavg.advance()
        assert torch.equal(auto.state.vector, fedavg.state.vector)
        assert line.choice is not None
        assert line.choice.ess == pytest.approx(1.0)


def test_the_record_tells_what_was_chosen_and_why(tmp_path: Path) -> None:
    record = simulate(Run.of(AUTO), tmp_path)
    lines = record.lines()
    compared = [line.choice for line in lines if line.choice is not None and line.choice.candidates]
    assert compared
    assert compared[0] is lines[0].choice
    for choice in compared:
        losses, errors = np.array(choice.losses), np.array(choice.errors)
        assert list(choice.candidates) == sorted(choice.candidates)
        assert choice.candidates[-1] == pytest.approx(1.0)
        expected = np.flatnonzero(losses - losses.min() <= TOLERANCE * errors)[-1]
        assert choice.ess == choice.candidates[expected]
    for line in lines:
        sizes = np.array(record.server_view().counts).sum(axis=1)[list(line.weights.participants)]
        alpha = np.array(line.weights.alpha)
        assert line.choice is not None
        assert line.choice.ess == pytest.approx(1.0 / (np.square(alpha) / sizes).sum() / sizes.sum())


def test_it_chooses_what_is_best_on_the_held_out_samples() -> None:
    """The losses of the first round are those of the candidates' models, computed here from the weights alone."""
    auto = simulation(Run.of(AUTO))
    server, start = auto.server, auto.state.vector.clone()
    everyone = server.participants(1)
    updates = [u.vector.double() for u in auto._train(everyone.tolist())]
    losses = []
    x, y = auto.evaluator.samples["clients"]  # type: ignore[index]
    for alpha in server.method.weighting.candidates(server.counts, server.target, everyone, None):
        model = sum(a * u for a, u in zip(alpha.tolist(), updates, strict=True))
        assert isinstance(model, torch.Tensor)
        log_p = torch.from_numpy(auto.evaluator.outputs(model.float(), x)).log_softmax(dim=1)
        each = -log_p[torch.arange(len(y)), torch.from_numpy(y)].numpy()
        seen = [k for k in range(10) if server.target[k] > 0 and (y == k).any()]
        share = server.target[seen] / server.target[seen].sum()
        losses.append(float(share @ [each[y == k].mean() for k in seen]))
    assert torch.equal(auto.state.vector, start)
    choice = auto.advance().choice
    assert choice is not None
    assert choice.losses == pytest.approx(losses)


@pytest.mark.parametrize("keys", [{}, {"participation": 0.5, "server_momentum": 0.5}, {"method": "scaffold+fedpals"}])
def test_an_interrupted_run_has_the_same_bits(keys: dict[str, Any], tmp_path: Path) -> None:
    run = Run.of({**AUTO, **keys})
    whole = simulate(run, tmp_path / "whole")
    rounds = iter(range(3))
    simulate(run, tmp_path / "parts", stop=lambda: next(rounds, None) is None)
    assert not simulate(run, tmp_path / "parts", stop=lambda: True).finished
    parts = simulate(run, tmp_path / "parts")
    assert torch.equal(final_vector(whole), final_vector(parts))
    without_time = [[{**line, "seconds": 0} for line in lines_of(record)] for record in (whole, parts)]
    assert without_time[0] == without_time[1]


def test_clients_hold_samples_out_unless_told() -> None:
    keys = {**AUTO, "held_out": None}
    assert Run.of(keys).knowledge.held_out == 0.1
    assert Run.of({**keys, "ess": 0.5}).knowledge.held_out is None


@pytest.mark.parametrize("ess", ["autom", "AUTO", "", -1, 0, 2, float("nan"), "nan", "inf", True, [0.5]])
def test_other_values_are_refused(ess: object) -> None:
    with pytest.raises(InputError, match=r"^ess is [^\n]*$"):
        Run.of({**AUTO, "ess": ess})


def test_text_of_a_number_is_the_number() -> None:
    assert Run.of({**AUTO, "ess": "0.5"}) == Run.of({**AUTO, "ess": 0.5})
