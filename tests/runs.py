"""What tests of whole runs share."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from fedpals.engine import checkpoint
from fedpals.simulation.record import Record
from fedpals.simulation.state import SimulationState
from fedpals.simulation.worker import Worker

SMALL: dict[str, Any] = {"task": "digits", "labels_per_client": 3, "clients": 6, "model": "logistic", "rounds": 3}


def lines_of(record: Record) -> list[dict[str, Any]]:
    """The lines of all rounds, as they stand in the file."""
    return [json.loads(line) for line in (record.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def result_of(record: Record) -> dict[str, Any]:
    """The result, as it stands in the file."""
    return dict(json.loads((record.path / "result.json").read_text(encoding="utf-8")))


def view_of(record: Record) -> dict[str, Any]:
    """What the server knew, as it stands in the file."""
    return dict(json.loads((record.path / "weights.json").read_text(encoding="utf-8")))


def final_vector(record: Record) -> torch.Tensor:
    return SimulationState.load(record.checkpoint).vector


def check_saved_model(record: Record, name: str, file: str) -> None:
    """Use a saved model as its file says, on the test set."""
    worker = Worker(record.run)
    x, y = worker.samples(worker.federation.test)
    tensors, facts = checkpoint.load(record.path / f"{file}.safetensors")
    shift = tensors.pop("prior_shift", torch.zeros(10))
    temperature = tensors.pop("temperature", 1.0)
    stands_for = tensors.pop("stands_for", torch.arange(10))
    displaced = tensors.pop("displaced_axes", None), tensors.pop("displaced_centres", None)
    worker.model.network.load_state_dict(tensors)
    outputs = worker.model.logits(x).double() / temperature + shift
    if displaced[0] is not None and displaced[1] is not None:
        features = worker.model.features(x)
        assert features is not None
        apart = (features.double() @ displaced[0].T)[:, None] - displaced[1]
        outputs += torch.where(stands_for == torch.arange(10), 0.0, 0.5 * apart.square().sum(dim=2))
    predicted = stands_for[outputs.argmax(dim=1)]
    told = result_of(record)["selected"][name]
    assert float((predicted == y).double().mean()) == pytest.approx(told["test"]["accuracy"])
    assert facts["round"] == told["round"]
