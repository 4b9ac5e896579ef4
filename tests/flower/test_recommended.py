"""The last layer that is recommended: the simulator's, computed from the clients' answers only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpals.engine import checkpoint
from fedpals.errors import InputError
from fedpals.flower import LabelAware, strategy
from fedpals.shift.evaluation import Correction
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.worker import Worker
from tests.flower.grids import SMALL, FakeGrid, Spoil, answer, change, changed, grid_of, initial, spoiling

METHOD: dict[str, Any] = {**SMALL, "method": "fedpals", "ess": 0.5, "learning_rate": 0.5}
HELD_OUT = 0.2


def trained(seed: int, rounds: int = 5, spoil: tuple[int, Spoil] | None = None) -> tuple[LabelAware, FakeGrid]:
    worker = Worker(Run.of(**METHOD, seed=seed))
    grid = grid_of(worker, held_out=HELD_OUT)
    if spoil is not None:
        grid.spoil[grid.node(spoil[0])] = spoiling("query.features", spoil[1])
    server = strategy("fedpals", worker.federation.target, ess=0.5, seed=seed, fraction_evaluate=0.0, wait=0.05)
    server.start(grid, initial(worker), num_rounds=rounds)
    return server, grid


@pytest.mark.parametrize(("seed", "new_label"), [(0, True), (1, False)])
def test_it_is_the_simulators(seed: int, new_label: bool, tmp_path: Path) -> None:
    record = simulate(Run.of(**METHOD, seed=seed, held_out=HELD_OUT), tmp_path)
    expected, _ = checkpoint.load(record.model(Correction.RECOMMENDED))
    server, grid = trained(seed)
    arrays, layer = server.with_recommended_layer()
    assert layer.stands_for.tolist() == expected.pop("stands_for").tolist()
    assert (layer.displaced is not None) == new_label == ("displaced_axes" in expected)
    tensors = arrays.to_torch_state_dict()
    assert all(torch.equal(tensors[key], expected[key]) for key in tensors)
    queries = [m for m in grid.sent if m.metadata.message_type in {"query.features", "query.featuresums"}]
    assert len(queries) == 10
    assert all(set(message.content) == {"arrays"} for message in queries), "nothing but the model is sent"


BROKEN = [
    (lambda _: None, "no reply within"),
    (answer(changed("features", lambda v: v[:, :3])), "instead of"),
    (answer(changed("features", lambda v: v[1:])), "do not fit"),
    (answer(changed("features", lambda v: v + np.nan)), "NaN or infinite"),
    (answer(changed("labels", lambda v: v - 10)), "labels must be whole numbers"),
    (answer(changed("labels", lambda v: v + 10)), "there are only 10 labels"),
    (answer(changed("labels", lambda v: v * 1.0)), "labels must be whole numbers"),
    (answer(change(other=np.zeros(3))), "sends no HeldOutFeatures of features, labels"),
]


@pytest.mark.parametrize(("spoil", "reason"), BROKEN)
def test_features_that_cannot_be_used_are_named_and_left_out(
    spoil: Spoil, reason: str, log: pytest.LogCaptureFixture
) -> None:
    server, grid = trained(1, 1, (2, spoil))
    _, layer = server.with_recommended_layer()
    warnings = [r.getMessage() for r in log.records if "is left out" in r.getMessage()]
    # One that did not answer is not asked for its sums of features, which come next.
    assert all("query.featuresums" in w and "has not answered earlier" in w for w in warnings[1:])
    assert f"query.features: client 2 (node {grid.node(2)}) is left out: " in warnings[0]
    assert reason in warnings[0]
    _, whole = trained(1, 1)[0].with_recommended_layer()
    assert not np.array_equal(layer.weight, whole.weight), "calibrated without its samples"


def test_without_samples_held_out_there_is_nothing_to_calibrate_with() -> None:
    worker = Worker(Run.of(**METHOD, seed=1))
    server = strategy("fedpals", worker.federation.target, ess=0.5, fraction_evaluate=0.0, wait=0.05)
    server.start(grid_of(worker), initial(worker), num_rounds=1)
    with pytest.raises(InputError, match="no client sent features of held-out samples: hold samples out"):
        server.with_recommended_layer()
