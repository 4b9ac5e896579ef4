"""T from a finished run and unlabelled inputs: what its model predicts there, read against what clients told of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from scipy.special import softmax

from fedpals import checkpoint
from fedpals.data import Dataset, Indices
from fedpals.data.sources.own import read_inputs
from fedpals.errors import InputError
from fedpals.labels import LabelCounts, Vector
from fedpals.record import Record
from fedpals.server import turns
from fedpals.shift import TargetEstimate, bbse, em, pooled
from fedpals.training import FlatModel
from fedpals.worker import as_read, inputs, network

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
    labels = tuple(record.read_json("weights.json")["labels"])
    # A data set has labels; these are made up, and nobody looks at them.
    return Dataset(path.stem, x, np.zeros(len(x), dtype=np.int64), labels, {}), np.arange(len(x))


def predict(record: Record, dataset: Dataset, indices: Indices, data_folder: Path | None = None) -> Vector:
    """Return the outputs of the run's saved model, (n, K) logits without any correction."""
    torch.set_num_threads(1)
    data = as_read(record.run, dataset, data_folder)
    tensors, _ = checkpoint.load(record.model)
    try:
        model = FlatModel(network(record.run, data))
        model.network.load_state_dict(tensors)
    except (InputError, RuntimeError) as error:
        told = str(error).replace("\n", " ")
        raise InputError(
            f"{dataset.name}: these inputs do not fit the model of {record.path} ({told}); "
            "give inputs of the kind that it was trained on"
        ) from None
    chunks = [indices[start : start + _CHUNK] for start in range(0, len(indices), _CHUNK)]
    return np.concatenate([model.logits(inputs(record.run, data, rows)).double().numpy() for rows in chunks])


def learned_prior(record: Record) -> Vector:
    """Return the label mix π, (K,), that the saved model has built in.

    It is what the client rule makes of p_α = Σ α_i S_i, averaged over the rounds up to the saved one in
    which all clients had their turn.
    """
    known, run = record.read_json("weights.json"), record.run
    _, facts = checkpoint.load(record.model)
    counts = LabelCounts.of(known["counts"])
    lines = record.metrics()[: facts["round"]][-turns(run.participation) :]
    weights = [line["weights"] for line in lines]
    mixes = [np.asarray(w["alpha"]) @ np.asarray(counts.subset(w["participants"]).marginals) for w in weights]
    prior = run.build_method().rule.learned_prior(np.asarray(np.mean(mixes, axis=0)))
    return np.asarray(prior / prior.sum())


def by_bbse(record: Record, logits: Vector, *, level: float = 0.95) -> TargetEstimate:
    """Estimate T from what the model predicts on the inputs, and how clients say it errs."""
    labels = record.read_json("weights.json")["labels"]
    predicted = np.bincount(logits.argmax(axis=1), minlength=len(labels))
    return bbse(pooled(record.tallies()), predicted, level=level, labels=labels)


def by_em(record: Record, logits: Vector, *, level: float = 0.95) -> TargetEstimate:
    """Estimate T by maximum likelihood, from the model's probabilities and the label mix that it was trained on."""
    labels = record.read_json("weights.json")["labels"]
    return em(softmax(logits, axis=1), learned_prior(record), level=level, labels=labels)
