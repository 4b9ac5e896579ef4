"""FLARE and the simulator compute the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.state import SimulationState
from fedpals.simulation.worker import Worker
from tests.nvflare.sites import SMALL, flat, started

METHODS = ["fedavg", "fedpals", "fedprox+fedpals", "scaffold", "scaffold+fedpals", "fedrs+fedpals", "afl", "iwerm"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_three_rounds_have_the_simulators_bits(method: str, participation: float, tmp_path: Path) -> None:
    run = Run.of(**SMALL, method=method, participation=participation)
    simulated = SimulationState.load(simulate(run, tmp_path).checkpoint)
    worker = Worker(run)
    rounds = started(worker)
    for _ in range(SMALL["rounds"]):
        rounds.advance()
    assert torch.equal(flat(rounds, worker), simulated.vector)
    assert rounds.state.clients.keys() == simulated.clients.keys()
    assert all(torch.equal(vector, simulated.clients[i]) for i, vector in rounds.state.clients.items())
    assert [mix.tolist() for mix in rounds.state.mixes] == [mix.tolist() for mix in simulated.mixes]
    if simulated.weighting is not None:
        assert rounds.state.weighting is not None
        assert rounds.state.weighting.tolist() == simulated.weighting.tolist()


def test_a_network_with_convolutions_has_the_same_bits(tmp_path: Path) -> None:
    run = Run.of(**{**SMALL, "clients": 4, "model": "cnn", "rounds": 2, "samples_per_client": 30}, method="fedpals")
    simulated = SimulationState.load(simulate(run, tmp_path).checkpoint)
    worker = Worker(run)
    rounds = started(worker)
    for _ in range(2):
        rounds.advance()
    assert torch.equal(flat(rounds, worker), simulated.vector)
