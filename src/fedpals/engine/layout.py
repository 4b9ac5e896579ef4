"""Conversion of a state dict to one vector and back: floats are averaged, other entries keep the server's values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedpals.engine.refusal import Refused
from fedpals.errors import InputError

Values = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Layout:
    """Keys, shapes and dtypes of the global arrays, and the entries that are not floats."""

    entries: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]
    fixed: dict[str, Values]
    """Counters, masks and other entries that cannot be averaged; they keep the server's values."""

    @classmethod
    def like(cls, arrays: Mapping[str, Values], name: str) -> Self:
        """Read the layout from the initial arrays, which an error calls ``name``."""
        if complex_keys := [key for key, value in arrays.items() if value.dtype.kind == "c"]:
            raise InputError(f"{name}: {complex_keys[0]!r} is complex; send its real view (torch.view_as_real)")
        if not any(value.dtype.kind == "f" for value in arrays.values()):
            raise InputError(f"{name} holds no floating-point array, so there is nothing to average")
        entries = tuple((key, value.shape, value.dtype) for key, value in arrays.items())
        return cls(entries, {key: value for key, value in arrays.items() if value.dtype.kind != "f"})

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the vector: float32 if all floats are float32, otherwise float64."""
        floats = {dtype for _, _, dtype in self.entries if dtype.kind == "f"}
        return np.dtype(np.float32 if floats == {np.dtype(np.float32)} else np.float64)

    def check_keys(self, arrays: Mapping[str, Any]) -> None:
        """Raise `Refused` if arrays are missing or unknown."""
        keys = [key for key, _, _ in self.entries]
        if arrays.keys() != set(keys):
            missing, extra = [k for k in keys if k not in arrays], [k for k in arrays if k not in set(keys)]
            raise Refused(f"missing arrays {missing[:3]}, unknown arrays {extra[:3]}")

    def flatten(self, arrays: Mapping[str, Values]) -> Tensor:
        """Return the floats as one vector; raise `Refused` if keys, shapes or dtypes differ from the layout."""
        self.check_keys(arrays)
        parts = []
        for key, shape, dtype in self.entries:
            value = arrays[key]
            if value.shape != shape or value.dtype != dtype:
                raise Refused(f"{key!r} is {value.dtype} {value.shape} instead of {dtype} {shape}")
            if dtype.kind == "f":
                parts.append(value.reshape(-1))
        return torch.from_numpy(np.concatenate(parts, dtype=self.dtype))

    def unflatten(self, vector: Tensor) -> dict[str, Values]:
        """Return the vector as arrays with the keys, shapes and dtypes of the layout."""
        values, offset = vector.numpy(), 0
        arrays = {}
        for key, shape, dtype in self.entries:
            if dtype.kind != "f":
                arrays[key] = self.fixed[key]
                continue
            size = int(np.prod(shape, dtype=np.int64))
            arrays[key] = values[offset : offset + size].reshape(shape).astype(dtype, copy=False)
            offset += size
        return arrays

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
