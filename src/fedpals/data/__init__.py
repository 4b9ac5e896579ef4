"""Data: sources of samples, their partition among clients, and the federations that result.

>>> from fedpals.data import Task
>>> federation = Task(task="synthetic", delta=0.5).federation(seed=0)
>>> federation.counts.sizes.tolist(), federation.target.tolist(), federation.coverage.covered
([40.0, 18.0], [0.25, 0.375, 0.375], False)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedpals.labels import Indices

if TYPE_CHECKING:
    from fedpals.data.dataset import Dataset, ImageFiles
    from fedpals.data.federation import Federation
    from fedpals.data.sources import SOURCES, Availability, available, get, load
    from fedpals.data.task import Task

__all__ = [
    "SOURCES",
    "Availability",
    "Dataset",
    "Federation",
    "ImageFiles",
    "Indices",
    "Task",
    "available",
    "get",
    "load",
]

_HOMES = {"Dataset": "dataset", "Federation": "federation", "ImageFiles": "dataset", "Task": "task"}
"""Modules of the names that are not in ``sources``; loaded when first used: a client of a deployment needs none."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fedpals.data' has no attribute {name!r}")
    return getattr(import_module(f"fedpals.data.{_HOMES.get(name, 'sources')}"), name)
