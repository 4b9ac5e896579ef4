"""What the peers share: data, network, training and evaluation as most research code has them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fedpals.engine.plan import Plan
from fedpals.labels import Indices
from fedpals.models import build
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker

Samples = tuple[Tensor, Tensor]
"""Inputs and labels."""


def load_samples(run: Run) -> tuple[list[Samples], Samples]:
    """Return the clients' samples and those to evaluate on, scaled, in torch's usual layout."""
    worker = Worker(run)
    federation = worker.federation

    def usual_layout(indices: Indices) -> Samples:
        x, y = worker.samples(indices)
        return torch.empty(x.shape).copy_(x), y

    parts = [usual_layout(federation.validation), usual_layout(federation.test)]
    evaluation = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    return [usual_layout(indices) for indices in federation.clients], evaluation


def build_network(seed: int, *, shape: tuple[int, int, int] = (1, 28, 28), pool_first: bool = False) -> nn.Module:
    """Return the paper's CNN with our initial values, in the order that everyone writes: ReLU, then pooling."""
    after: list[nn.Module] = [nn.MaxPool2d(2), nn.ReLU()] if pool_first else [nn.ReLU(), nn.MaxPool2d(2)]
    ours = build("cnn", shape=shape, classes=10, seed=seed)
    features = list(ours.parameters())[4].shape[1]
    layers = nn.Sequential(
        nn.Conv2d(shape[0], 6, 5), *after, nn.Conv2d(6, 16, 5), *after, nn.Flatten(),
        nn.Linear(features, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    with torch.no_grad():
        for theirs, initial in zip(layers.parameters(), ours.parameters(), strict=True):
            theirs.copy_(initial)
    return layers


def fit(model: nn.Module, samples: Samples, plan: Plan) -> None:
    """Train for one epoch, as most research code does."""
    loader = DataLoader(TensorDataset(*samples), batch_size=plan.batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=plan.learning_rate)
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def accuracy(model: nn.Module, samples: Samples) -> float:
    """Evaluate in batches of 512, as ours does."""
    model.eval()
    with torch.inference_mode():
        right = [model(x).argmax(1) == y for x, y in zip(*(torch.split(t, 512) for t in samples), strict=True)]
    return float(torch.cat(right).float().mean())
