"""A server that was stopped continues with the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedpals.errors import InputError
from fedpals.flower import FedPALS, LabelAware, strategy
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.state import SimulationState
from fedpals.simulation.worker import Worker
from tests.flower.grids import SMALL, flat, grid_of, initial
from tests.flower.scene import QUIET, TARGET, StoppedError, fedpals, four, start


@pytest.mark.parametrize("method", ["scaffold+fedpals", "afl", "fedavg"])
@pytest.mark.parametrize("same_nodes", [True, False])
def test_a_stopped_server_continues_with_the_same_bits(method: str, same_nodes: bool, tmp_path: Path) -> None:
    run = Run.of(**SMALL, method=method, participation=0.6)
    unbroken = SimulationState.load(simulate(run, tmp_path).checkpoint)
    worker = Worker(run)
    grid = grid_of(worker)

    def new_server() -> LabelAware:
        settings = {**QUIET, "fraction_train": 0.6, "checkpoint": tmp_path / "state.safetensors", **run.method.options}
        return strategy(method, worker.federation.target, **settings)

    def stop(number: int, _: ArrayRecord) -> None:
        if number == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        new_server().start(grid, initial(worker), num_rounds=5, evaluate_fn=stop)
    if not same_nodes:
        # Another run of the simulation: the same clients under other node ids, in another order.
        contexts = grid.contexts
        grid.contexts = {}
        for node, context in reversed(contexts.items()):
            grid.join(int(context.node_config["partition-id"]), node=node * 31 % 9973 + 20000)
    seen: list[int] = []
    result = new_server().start(
        grid,
        initial(worker),
        num_rounds=5,
        evaluate_fn=lambda number, _: seen.append(number),
    )
    assert seen == [3, 4, 5]
    assert set(result.train_metrics_clientapp) == {4, 5}
    assert torch.equal(flat(result.arrays, worker), unbroken.vector)
    finished = new_server()
    again = finished.start(grid, initial(worker), num_rounds=5)
    assert torch.equal(flat(again.arrays, worker), unbroken.vector)
    assert not finished.rounds
    assert np.isfinite(finished.prior_shift[worker.federation.target > 0]).all()


def test_a_checkpoint_of_another_run_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    fedpals(checkpoint=path).start(four(), start(), num_rounds=1)
    with pytest.raises(InputError, match=r"belongs to a run with another options .* choose another file"):
        FedPALS(TARGET, lam=1.0, checkpoint=path, **QUIET).start(four(), start(), num_rounds=2)
    other = ArrayRecord({"weight": Array(np.ones(3, np.float32))})
    with pytest.raises(InputError, match="another arrays"):
        fedpals(checkpoint=path).start(four(), other, num_rounds=2)
