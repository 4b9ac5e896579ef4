"""FedPALS and its baselines on Flower: strategies for a ServerApp, and a ready-made client.

Weights, client rules and checks are the simulator's; this package sends them as Flower messages.

    strategy = FedPALS(target, ess=0.5)                    # instead of FedAvg()
    add_labelcounts(app, lambda context: counts)           # one line at the client
"""

try:
    import flwr  # noqa: F401
except ImportError:
    from fedpals.errors import MissingExtraError

    raise MissingExtraError("fedpals.flower", "flower") from None

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpals.engine.trainee import Trainee
    from fedpals.flower.attendance import TooFewNodesError
    from fedpals.flower.client import add_labelcounts, client_app
    from fedpals.flower.methods import (
        AFL,
        IWERM,
        SCAFFOLD,
        FedAvg,
        FedDisco,
        FedLC,
        FedPALS,
        FedProx,
        FedRS,
        FedRSBinary,
        FedSGD,
        LogitAdjusted,
        strategy,
    )
    from fedpals.flower.rounds import LabelAware

__all__ = [
    "AFL",
    "IWERM",
    "SCAFFOLD",
    "FedAvg",
    "FedDisco",
    "FedLC",
    "FedPALS",
    "FedProx",
    "FedRS",
    "FedRSBinary",
    "FedSGD",
    "LabelAware",
    "LogitAdjusted",
    "TooFewNodesError",
    "Trainee",
    "add_labelcounts",
    "client_app",
    "strategy",
]

_HOMES = {
    "LabelAware": "rounds",
    "TooFewNodesError": "attendance",
    "Trainee": "client",
    "add_labelcounts": "client",
    "client_app": "client",
}
"""Modules of the names that are not in ``methods``; loaded when first used: every message to a client starts a process,
which needs nothing of the server's."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fedpals.flower' has no attribute {name!r}")
    return getattr(import_module(f"fedpals.flower.{_HOMES.get(name, 'methods')}"), name)
