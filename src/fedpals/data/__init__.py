"""Data: sources of samples, their partition among clients, and the federations that result.

>>> from fedpals.data import Task
>>> federation = Task(task="synthetic", delta=0.5).federation(seed=0)
>>> federation.counts.sizes.tolist(), federation.target.tolist(), federation.coverage.covered
([40.0, 18.0], [0.25, 0.375, 0.375], False)
"""

from fedpals.data.dataset import Dataset, ImageFiles
from fedpals.data.federation import Federation
from fedpals.data.sources import SOURCES, Availability, available, get, load
from fedpals.data.task import Task
from fedpals.labels import Indices

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
