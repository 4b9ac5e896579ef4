"""Flower and the simulator compute the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedpals.flower import strategy
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.state import SimulationState
from fedpals.simulation.worker import Worker
from tests.flower.grids import SMALL, flat, grid_of, initial

PAIRS = [
    "+".join(part for part in (rule, weighting) if part)
    for rule in ("fedavg", "fedsgd", "fedprox", "scaffold", "fedrs", "logit_adjusted")
    for weighting in ("", "afl", "fedpals")
]
PAIRS += ["fedrs_graded", "fedlc+feddisco", "iwerm", "iwerm+afl", "scaffold+feddisco"]


@pytest.mark.parametrize("method", PAIRS)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_five_rounds_have_the_simulators_bits(method: str, participation: float, tmp_path: Path) -> None:
    run = Run.of(**SMALL, method=method, participation=participation)
    simulated = SimulationState.load(simulate(run, tmp_path).checkpoint)
    worker = Worker(run)
    server = strategy(
        method,
        worker.federation.target,
        fraction_train=participation,
        fraction_evaluate=0.0,
        checkpoint=tmp_path / "state.safetensors",
        tell_target=True,
        **run.method.options,
    )
    result = server.start(grid_of(worker), initial(worker), num_rounds=5)
    assert torch.equal(flat(result.arrays, worker), simulated.vector)
    session = server._session
    assert session is not None
    assert session.state.clients.keys() == simulated.clients.keys()
    assert all(torch.equal(vector, simulated.clients[i]) for i, vector in session.state.clients.items())
    if simulated.weighting is not None:
        assert session.state.weighting is not None
        assert session.state.weighting.tolist() == simulated.weighting.tolist()
    assert [m.tolist() for m in session.state.mixes] == [m.tolist() for m in simulated.mixes]


def test_a_network_with_convolutions_and_buffers_has_the_same_bits(tmp_path: Path) -> None:
    settings = {**SMALL, "clients": 4, "model": "cnn", "rounds": 2, "samples_per_client": 30}
    run = Run.of(**settings, method="scaffold+fedpals")
    simulated = SimulationState.load(simulate(run, tmp_path).checkpoint)
    worker = Worker(run)
    server = strategy(run.method.name, worker.federation.target, fraction_evaluate=0.0, **run.method.options)
    result = server.start(grid_of(worker), initial(worker), num_rounds=2)
    assert torch.equal(flat(result.arrays, worker), simulated.vector)
