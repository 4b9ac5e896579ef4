"""Conversion of a state dict to one vector and back: floats are averaged, other entries keep the server's values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedpals.engine.refusal import Refused
from fedpals.errors import InputError

_READ_ERRORS = (ValueError, TypeError, EOFError, OSError)
"""Exceptions that numpy raises for bytes that are not an array."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Keys, shapes and dtypes of the global arrays, and the entries that are not floats."""

    entries: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]
    fixed: dict[str, Array]
    """Counters, masks and other entries that cannot be averaged; they keep the server's values."""

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """Read the layout from the initial arrays."""
        values = {key: array.numpy() for key, array in arrays.items()}
        if complex_keys := [key for key, value in values.items() if value.dtype.kind == "c"]:
            raise InputError(f"initial_arrays: {complex_keys[0]!r} is complex; send its real view (torch.view_as_real)")
        if not any(value.dtype.kind == "f" for value in values.values()):
            raise InputError("initial_arrays holds no floating-point array, so there is nothing to average")
        entries = tuple((key, value.shape, value.dtype) for key, value in values.items())
        return cls(entries, {key: arrays[key] for key, value in values.items() if value.dtype.kind != "f"})

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the vector: float32 if all floats are float32, otherwise float64."""
        floats = {dtype for _, _, dtype in self.entries if dtype.kind == "f"}
        return np.dtype(np.float32 if floats == {np.dtype(np.float32)} else np.float64)

    def vector(self, arrays: ArrayRecord) -> Tensor:
        """Return the floats as one vector; raise `Refused` if keys, shapes or dtypes differ from the layout."""
        keys = [key for key, _, _ in self.entries]
        if arrays.keys() != set(keys):
            missing, extra = [k for k in keys if k not in arrays], [k for k in arrays if k not in set(keys)]
            raise Refused(f"missing arrays {missing[:3]}, unknown arrays {extra[:3]}")
        parts = []
        for key, shape, dtype in self.entries:
            value = load(key, arrays[key])
            if value.shape != shape or value.dtype != dtype:
                raise Refused(f"{key!r} is {value.dtype} {value.shape} instead of {dtype} {shape}")
            if dtype.kind == "f":
                parts.append(value.reshape(-1))
        return torch.from_numpy(np.concatenate(parts, dtype=self.dtype))

    def record(self, vector: Tensor) -> ArrayRecord:
        """Return the vector as arrays with the keys, shapes and dtypes of the layout."""
        values, offset = vector.numpy(), 0
        arrays = {}
        for key, shape, dtype in self.entries:
            if dtype.kind != "f":
                arrays[key] = self.fixed[key]
                continue
            size = int(np.prod(shape, dtype=np.int64))
            arrays[key] = Array(values[offset : offset + size].reshape(shape).astype(dtype, copy=False))
            offset += size
        return ArrayRecord(arrays)

    def last_layer(self, labels: int) -> tuple[str, str, int] | None:
        """Return the keys of the last layer's weight, (K, d), and bias, (K,), and d; None if there is no such layer."""
        shapes = {key: shape for key, shape, dtype in self.entries if dtype.kind == "f"}
        for key, shape in reversed(shapes.items()):
            bias = key.removesuffix("weight") + "bias"
            if key.endswith("weight") and len(shape) == 2 and shape[0] == labels and shapes.get(bias) == (labels,):
                return key, bias, shape[1]
        return None

    def facts(self) -> list[list[Any]]:
        """Return the layout in the form that a checkpoint stores."""
        return [[key, list(shape), str(dtype)] for key, shape, dtype in self.entries]


def load(key: str, array: Array) -> npt.NDArray[Any]:
    """Return the values of an array; raise `Refused` if they cannot be read."""
    try:
        return array.numpy()
    except _READ_ERRORS as error:
        raise Refused(f"{key!r} cannot be read ({error})") from None


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
