"""A server with clients that are written down in a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedpals.config import validated
from fedpals.engine.client import Update
from fedpals.engine.protection import Protection
from fedpals.engine.round import Round
from fedpals.engine.server import Compare, Server
from fedpals.engine.state import ServerState
from fedpals.labels import LabelCounts
from fedpals.methods import build_method
from fedpals.shift.candidates import Comparison

SIZES = [555, *[49] * 8, 53]
"""Of ten clients, so that FedAvg gives the first α = 0.555."""
COUNTS = LabelCounts.of(np.array([[n - n // 2, n // 2] for n in SIZES]))


def server(
    size: int = 3, method: str = "fedavg", state: ServerState | None = None, key: str | None = None, **settings: Any
) -> Server:
    """A server of the ten clients; ``settings`` are its own, and keys of `Protection`."""
    keys = {name: settings.pop(name) for name in Protection.model_fields if name in settings}
    options: dict[str, Any] = {name: settings.pop(name) for name in ("ess", "lam", "max_weight") if name in settings}
    return Server(
        build_method(method, options),
        settings.pop("counts", COUNTS),
        np.array(settings.pop("target", [0.5, 0.5])),
        state or ServerState(0, torch.zeros(size)),
        protection=validated(Protection, keys),
        noise_key=key,
        **settings,
    )


def advance(own: Server, moves: Mapping[int, Any], *, others: Any = 0.0, compare: Compare | None = None) -> Round:
    """One round in which clients move the parameters by ``moves``, and the others by ``others``; text is a refusal."""

    def update(i: int) -> Update | str:
        move = moves.get(i, others)
        if isinstance(move, str):
            return move
        return Update(own.state.vector + torch.as_tensor(move, dtype=torch.float32), 0.5, 1)

    def train(clients: Sequence[int]) -> Iterable[Update | str]:
        return [update(i) for i in clients]

    return own.advance(own.participants(own.state.round + 1), train, no_losses, compare)


no_losses: Callable[[Sequence[int]], Iterable[float]] = lambda clients: [0.0 for _ in clients]  # noqa: E731


def equal_models(labels: int, models: int) -> Comparison:
    """Models of which every sample says the same, so that the largest ESS is chosen."""
    samples = np.full(labels, 5)
    ones = np.ones((labels, models))
    return Comparison(samples, 5 * ones, 5 * ones[:, :, None] * ones[:, None, :])
