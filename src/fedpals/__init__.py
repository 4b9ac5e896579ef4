"""Target-aware federated learning under label shift.

>>> import fedpals
>>> fedpals.solve([[90, 10], [30, 70]], [0.5, 0.5], ess=0.9).alpha.round(3).tolist()
[0.333, 0.667]
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedpals.errors import CertificateError, FedpalsError, InputError
from fedpals.labels import LabelCounts
from fedpals.weights import Certificate, Projection, Weights, coverage, ess_grid, solve

if TYPE_CHECKING:
    from pathlib import Path

    from fedpals.data.federation import Federation
    from fedpals.engine.target_model import TargetModel
    from fedpals.methods import ClientRule, Weighting, option, register
    from fedpals.study.study import Study
    from fedpals.study.train import train

__version__ = version("fedpals")

__all__ = [
    "Certificate",
    "CertificateError",
    "ClientRule",
    "Federation",
    "FedpalsError",
    "InputError",
    "LabelCounts",
    "Projection",
    "Study",
    "TargetModel",
    "Weighting",
    "Weights",
    "__version__",
    "coverage",
    "ess_grid",
    "load",
    "option",
    "register",
    "solve",
    "train",
]

_LAZY = {
    "ClientRule": "fedpals.methods",
    "Federation": "fedpals.data.federation",
    "Study": "fedpals.study.study",
    "TargetModel": "fedpals.engine.target_model",
    "Weighting": "fedpals.methods",
    "option": "fedpals.methods",
    "register": "fedpals.methods",
    "train": "fedpals.study.train",
}
"""Where names live that are imported when they are first used: training loads torch, weights need not."""
_NEED_TORCH = {"Study", "TargetModel", "train"}


def load(path: Path | str, network: Any = None, *, trust: bool = False) -> TargetModel:
    """Read a model that `TargetModel.save` wrote.

    ``network`` is the class or function of the user's own network; it is not needed for this package's. Where the file
    names the network of a module, ``trust`` says that its code may be run.
    """
    model: type[TargetModel] = __getattr__("TargetModel")
    return model.load(path, network, trust=trust)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'fedpals' has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if name in _NEED_TORCH and error.name in {"torch", "safetensors", "numba"}:
            from fedpals.errors import MissingExtraError

            raise MissingExtraError(f"fedpals.{name}", "learn") from None
        raise


def __dir__() -> list[str]:
    return __all__
