"""Numbers brought to a common scale by sums that clients can send, and missing values filled in.

A client sends, per column, how many values it has, their sum and the sum of their squares; the server
adds these up and tells everybody mean and standard deviation over all clients. The target's samples take
no part. What was done is kept with the model, so that it is used on raw inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError
from fedpals.labels import Indices, Vector

Scale: TypeAlias = Literal["standard", "none"]
"""standard: mean 0 and standard deviation 1 over all clients, column by column; none: numbers stay as they are."""
Impute: TypeAlias = Literal["mean", "median"]
"""What takes the place of missing values: mean or median of the column over all clients."""

_BISECTIONS = 60
"""Questions by which the server finds the medians: to the last digit of any range of numbers."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """x ↦ (x − shift)/scale by column, missing values first replaced by ``fill``.

    A column of a table is one of d numbers, of float images one of C channels.
    """

    shift: Vector
    scale: Vector
    fill: Vector | None = None

    def __call__(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Bring raw inputs, (n, d) or (n, C, H, W), to the scale of the network."""
        if x.ndim < 2 or x.shape[1] != self.shift.size:
            raise InputError(
                f"inputs have shape {x.shape}, but the model was trained on samples with {self.shift.size} "
                f"{'columns' if x.ndim <= 2 else 'channels'}; give the same, in the same order"
            )
        shape = (1, -1, *(1,) * (x.ndim - 2))
        values = x.astype(np.float64)
        if self.fill is not None:
            values = np.where(np.isnan(values), self.fill.reshape(shape), values)
        return np.asarray((values - self.shift.reshape(shape)) / self.scale.reshape(shape), dtype=np.float32)


def federated_scaling(x: npt.NDArray[Any], clients: Sequence[Indices], scale: Scale, impute: Impute | None) -> Scaling:
    """Return the scaling of samples (n, d) or (n, C, H, W) by what the clients' samples sum up to.

    Each client is asked for sums over its own samples only; missing values (NaN) count nowhere.
    """
    columns = x.shape[1]
    fill = _fill(x, clients, impute) if impute is not None else None
    if scale == "none":
        return Scaling(np.zeros(columns), np.ones(columns), fill)
    n, total = (sum(part) for part in zip(*(_sums(x[rows]) for rows in clients), strict=True))
    mean = total / np.maximum(n, 1)
    squares = sum(_squares(x[rows], mean) for rows in clients)
    deviation = np.sqrt(squares / np.maximum(n, 1))
    return Scaling(mean, np.where(deviation > 0, deviation, 1.0), fill)


def _by_column(x: npt.NDArray[Any]) -> Vector:
    """Return values as (columns, all others)."""
    return np.moveaxis(x, 1, 0).reshape(x.shape[1], -1).astype(np.float64)


def _sums(x: npt.NDArray[Any]) -> tuple[Vector, Vector]:
    values = _by_column(x)
    return np.count_nonzero(~np.isnan(values), axis=1).astype(np.float64), np.nansum(values, axis=1)


def _squares(x: npt.NDArray[Any], mean: Vector) -> Vector:
    """Σ (x − mean)²: the second sum that clients send, around a mean that they have been told."""
    return np.asarray(np.nansum(np.square(_by_column(x) - mean[:, None]), axis=1))


def _fill(x: npt.NDArray[Any], clients: Sequence[Indices], impute: Impute) -> Vector:
    own = [_by_column(x[rows]) for rows in clients]
    n = sum(np.count_nonzero(~np.isnan(values), axis=1) for values in own)
    if (empty := np.flatnonzero(np.asarray(n) == 0)).size:
        raise InputError(
            f"x: column {empty[0]} has no value at any client, so that it cannot be filled in; leave it out"
        )
    if impute == "mean":
        return np.asarray(sum(np.nansum(values, axis=1) for values in own) / n)
    return _medians(own, np.asarray(n))


def _medians(own: Sequence[Vector], n: npt.NDArray[np.int64]) -> Vector:
    """Find medians by bisection: in each step clients say how many of their values are at most a threshold."""
    low = np.min([np.nanmin(np.where(np.isnan(v), np.inf, v), axis=1, initial=np.inf) for v in own], axis=0)
    high = np.max([np.nanmax(np.where(np.isnan(v), -np.inf, v), axis=1, initial=-np.inf) for v in own], axis=0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = sum(np.count_nonzero(values <= middle[:, None], axis=1) for values in own)
        enough = 2 * np.asarray(below) >= n
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(high)
