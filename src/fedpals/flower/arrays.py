"""Flower's records of arrays as the engine's vectors, and back."""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedpals.engine import layout
from fedpals.engine.refusal import Refused, refusing

_FORMAT = "numpy.ndarray"
"""Flower's name of the npy format."""
_MAX_HEADER_BYTES = 2048
"""Bound on the text of an npy header; 64 dimensions need fewer."""


class Layout(layout.Layout):
    """The layout of the global arrays, for Flower's records."""

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Self:
        """Read the layout from the initial arrays."""
        return cls.like({key: array.numpy() for key, array in arrays.items()}, "initial_arrays")

    def vector(self, arrays: ArrayRecord) -> Tensor:
        """Return the floats as one vector; raise `Refused` if keys, shapes or dtypes differ from the layout."""
        self.check_keys(arrays)
        views = {key: _view(key, arrays[key], (dtype, shape)) for key, shape, dtype in self.entries}
        return self.flatten(views)

    def record(self, vector: Tensor) -> ArrayRecord:
        """Return the vector as arrays with the keys, shapes and dtypes of the layout."""
        return ArrayRecord({key: Array(value) for key, value in self.unflatten(vector).items()})


def load(key: str, array: Array) -> npt.NDArray[Any]:
    """Return the values of an array; raise `Refused` if they cannot be read."""
    return _view(key, array).copy()


def _view(key: str, array: Array, like: tuple[np.dtype[Any], tuple[int, ...]] | None = None) -> npt.NDArray[Any]:
    """Return the values of an array, which stay in its bytes; raise `Refused` unless the bytes are what they claim.

    The header decides nothing: dtype and shape must be those of ``like``, if given, and take up exactly the bytes that
    were received. So no reply can make the server allocate more than its own size.
    """
    with refusing(repr(key)):
        if array.stype != _FORMAT:
            raise Refused(f"{key!r} has the format {array.stype!r} instead of {_FORMAT!r}")
        shape, is_fortran, dtype, offset = _header(array.data)
        if like is not None and (dtype, shape) != like:
            raise Refused(f"{key!r} is {dtype} {shape} instead of {like[0]} {like[1]}")
        if dtype.kind not in "biufc" or min(shape, default=0) < 0:
            raise Refused(f"{key!r} is {dtype} {shape}, which is no array of numbers")
        if (size := math.prod(shape) * dtype.itemsize) != len(array.data) - offset:
            raise Refused(f"{key!r} claims {size} bytes, but {len(array.data) - offset} were sent")
        return np.frombuffer(array.data, dtype, offset=offset).reshape(shape, order="F" if is_fortran else "C")


def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, order, dtype and the length of an npy header; values are not touched."""
    file = BytesIO(data[: _MAX_HEADER_BYTES + 64])
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file, max_header_size=_MAX_HEADER_BYTES)
    return shape, is_fortran, dtype, file.tell()


def pack(vector: Tensor) -> ArrayRecord:
    """Return a vector of the client rule as a record."""
    return ArrayRecord({"vector": Array(vector.cpu().numpy())})


def unpack(arrays: ArrayRecord) -> Tensor:
    """Return the vector that `pack` put into a record."""
    if list(arrays) != ["vector"]:
        raise Refused(f"the rule's record holds {list(arrays)[:3]} instead of one vector")
    value = load("vector", arrays["vector"])
    if value.dtype != np.float32 or value.ndim != 1:
        raise Refused(f"the rule's vector is {value.dtype} {value.shape} instead of a flat float32")
    return torch.from_numpy(value)
