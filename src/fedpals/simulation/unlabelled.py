"""T from a finished run and unlabelled inputs: what its model predicts there, read against what clients told of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy
import torch

from fedpals.data import Dataset
from fedpals.data.sources.own import read_inputs
from fedpals.engine import checkpoint
from fedpals.engine.flat_model import FlatModel
from fedpals.errors import InputError
from fedpals.labels import Indices, LabelCounts, Vector
from fedpals.models import check_trust
from fedpals.shift import TargetEstimate, bbse, em, pooled
from fedpals.simulation.record import Record
from fedpals.simulation.server_view import learned_prior
from fedpals.simulation.worker import build_network, network_inputs, prepared

_CHUNK = 1024
"""Inputs that are prepared at a time."""


def own_inputs(record: Record, data_folder: Path | None = None) -> tuple[Dataset, Indices]:
    """Return the run's own target test set, to try an estimate where the truth is known."""
    federation = record.run.build_federation(data_folder)
    return federation.dataset, federation.test


def inputs_of(path: Path, record: Record) -> tuple[Dataset, Indices]:
    """Return unlabelled inputs: ``x`` of a .npz file, or all images below a folder."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; give a .npz file with an array x, or a folder of images")
    x = read_inputs(path)
    labels = record.server_view().labels
    # A data set has labels; these are made up, and nobody looks at them.
    return Dataset(path.stem, x, np.zeros(len(x), dtype=np.int64), labels, {}), np.arange(len(x))


def predict(
    record: Record, dataset: Dataset, indices: Indices, data_folder: Path | None = None, *, trust: bool = False
) -> Vector:
    """Return the outputs of the run's saved model, (n, K) logits without any correction.

    ``trust`` says that the code of a network may be run that the run's folder names.
    """
    torch.set_num_threads(1)
    check_trust(record.run.network.model or "", record.path, trust=trust)
    data = network_inputs(record.run.network, dataset, data_folder)
    tensors, _ = checkpoint.load(record.model())
    try:
        model = FlatModel(build_network(record.run, data))
        model.network.load_state_dict({key: value for key, value in tensors.items() if not key.startswith("input_")})
    except (InputError, RuntimeError) as error:
        reason = str(error).replace("\n", " ")
        raise InputError(
            f"{dataset.name}: these inputs do not fit the model of {record.path} ({reason}); "
            "give inputs of the kind that it was trained on"
        ) from None
    chunks = [indices[start : start + _CHUNK] for start in range(0, len(indices), _CHUNK)]
    return np.concatenate([model.logits(prepared(record.run.network, data, rows)).double().numpy() for rows in chunks])


def by_bbse(record: Record, logits: Vector, *, level: float = 0.95) -> TargetEstimate:
    """Estimate T from what the model predicts on the inputs, and how clients say it errs."""
    labels = record.server_view().labels
    predicted = np.bincount(logits.argmax(axis=1), minlength=len(labels))
    return bbse(pooled(record.tallies()), predicted, level=level, labels=labels)


def by_em(record: Record, logits: Vector, *, level: float = 0.95) -> TargetEstimate:
    """Estimate T by maximum likelihood, from the model's probabilities and the label mix that it was trained on."""
    labels = record.server_view().labels
    return em(scipy.special.softmax(logits, axis=1), _learned_prior(record), level=level, labels=labels)


def _learned_prior(record: Record) -> Vector:
    _, facts = checkpoint.load(record.model())
    view, lines = record.server_view(), record.lines()[: facts["round"]]
    return learned_prior(record.run, lines, LabelCounts.of(view.counts), np.array(view.target))
