"""Whatever people have their samples in, as numpy arrays: numpy, torch, pandas, lists, torch data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError
from fedpals.labels import Indices

_MOST_LABELS = 1_000_000
"""Number of labels above which a number is hardly a label."""


def as_samples(x: Any, what: str = "x") -> npt.NDArray[Any]:
    """Return samples as (n, d) float32 numbers, (n, C, H, W) uint8 images, or (n, C, H, W) float32.

    Missing values stay NaN. Images without a channel axis, (n, H, W), get one.
    """
    if hasattr(x, "dtypes") and hasattr(x, "columns"):  # a pandas DataFrame
        for i, (name, kind) in enumerate(zip(x.columns, x.dtypes, strict=True)):
            if kind.kind not in "buif":
                raise InputError(_no_numbers(what, f"the column {str(name)!r}", np.asarray(x.iloc[:, i], dtype=object)))
    values = _as_array(x, what)
    if values.dtype.kind not in "buif":
        for column in range(values.shape[1] if values.ndim == 2 else 0):
            if _first_word(values[:, column]) is not None:
                raise InputError(_no_numbers(what, f"column {column}", values[:, column]))
        raise InputError(
            f"{what} holds {values.dtype}; samples must be numbers, a row or an image each: give {what}.astype(float)"
        )
    if values.ndim == 3:
        values = values[:, None]
    if values.ndim not in (2, 4) or 0 in values.shape[1:]:
        raise InputError(
            f"{what} has shape {values.shape}; give (samples, columns), or (samples, channels, height, width)"
        )
    if values.ndim == 4 and values.dtype == np.uint8:
        return values
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    if np.isinf(numbers).any():
        at = tuple(int(i) for i in np.argwhere(np.isinf(numbers))[0])
        raise InputError(f"{what}[{', '.join(map(str, at))}] is {values[at]}; numbers must be finite")
    return numbers


def _no_numbers(what: str, column: str, values: npt.NDArray[Any]) -> str:
    """Say which column of samples holds words, where, and what to do about it."""
    found = _first_word(values)
    if found is None:
        return f"{what}: {column} holds numbers that are stored as something else; turn it into numbers: astype(float)"
    row, word = found
    return (
        f"{what}: {column} holds {word!r} (row {row}), but samples must be numbers; if that stands for a missing "
        f"value, read it as one (pandas.read_csv(…, na_values={str(word)!r})), else turn the column into numbers, for "
        "instance with pandas.get_dummies, or leave it out"
    )


def _first_word(values: npt.NDArray[Any]) -> tuple[int, Any] | None:
    """Return the first value that cannot be read as a number, and its position before it; None where all can."""
    for at, value in enumerate(values.tolist()):
        try:
            float(value)
        except (TypeError, ValueError):
            return at, value
    return None


def column_names(x: Any) -> tuple[str, ...]:
    """Return the names of the columns of a pandas table; none of anything else."""
    return tuple(str(name) for name in x.columns) if hasattr(x, "dtypes") and hasattr(x, "columns") else ()


def as_labels(y: Any, labels: Sequence[Any] | None, samples: int, what: str = "y") -> tuple[Indices, tuple[str, ...]]:
    """Return labels as numbers from 0, and their names.

    ``y`` holds names out of ``labels``, or whole numbers from 0; without ``labels`` they are the values that occur.
    """
    values = _as_array(y, what).reshape(-1) if np.ndim(y) != 1 and np.size(y) == samples else _as_array(y, what)
    if values.shape != (samples,):
        raise InputError(f"{what} has shape {values.shape} for {samples} samples; give a label each")
    if values.dtype.kind == "f":
        if not np.isfinite(values).all() or (values != np.floor(values)).any():
            at = int(np.argmax(~np.isfinite(values) | (values != np.floor(values))))
            raise InputError(f"{what}[{at}] is {values[at]}; labels are whole numbers from 0, or names")
        values = values.astype(np.int64)
    if values.dtype.kind not in "buiUSO":
        raise InputError(f"{what} holds {values.dtype}; labels are whole numbers from 0, or names")
    if labels is None:
        if values.dtype.kind in "bui":
            if values.size and values.min() < 0:
                raise InputError(f"{what} holds {values.min()}; labels are whole numbers from 0, or names")
            largest = int(values.max(initial=0))
            if largest >= _MOST_LABELS:
                raise InputError(
                    f"{what} holds {largest}; labels are whole numbers from 0 without large gaps, or names"
                )
            labels = (False, True) if values.dtype.kind == "b" else range(largest + 1)
        else:
            labels = sorted({str(value) for value in values})
    names = tuple(str(label) for label in labels)
    if len(names) < 2:
        raise InputError(f"{what} has one label only, {', '.join(names)}; name all labels, two or more, with labels")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"labels: {twice!r} appears twice; give every label its own name")
    if values.dtype.kind in "bui":
        outside = (values < 0) | (values >= len(names))
        if outside.any():
            at = int(np.argmax(outside))
            raise InputError(
                f"{what}[{at}] is {values[at]}, but there are {len(names)} labels, from 0 to {len(names) - 1}"
            )
        return values.astype(np.int64), names
    numbers = {name: i for i, name in enumerate(names)}
    texts = [str(value) for value in values]
    if unknown := [i for i, text in enumerate(texts) if text not in numbers]:
        raise InputError(
            f"{what}[{unknown[0]}] is {texts[unknown[0]]!r}, which is not among labels: {', '.join(names)}"
        )
    return np.array([numbers[text] for text in texts], dtype=np.int64), names


def as_clients(client: Any, samples: int) -> tuple[Indices, tuple[str, ...]]:
    """Return which client each sample belongs to, and the clients' names in order of first appearance."""
    values = _as_array(client, "client")
    if values.shape != (samples,):
        raise InputError(f"client has shape {values.shape} for {samples} samples; give the client of each")
    texts = [str(value) for value in values.tolist()]
    names = list(dict.fromkeys(texts)) if values.dtype.kind not in "bui" else sorted(set(texts), key=int)
    numbers = {name: i for i, name in enumerate(names)}
    return np.array([numbers[text] for text in texts], dtype=np.int64), tuple(names)


def pooled(clients: Mapping[Any, Any] | Sequence[Any]) -> tuple[Any, Any, list[str]]:
    """Return the samples of all clients one after the other: x, y, and the client of each.

    Every client is a pair (x, y), or a torch data set that yields such pairs.
    """
    named = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    xs: list[npt.NDArray[Any]] = []
    ys: list[npt.NDArray[Any]] = []
    owners: list[str] = []
    for name, part in named:
        x, y = part if isinstance(part, tuple | list) and len(part) == 2 else _collected(name, part)
        x, y = _as_array(x, f"x of client {name!r}"), _as_array(y, f"y of client {name!r}")
        if len(x) != len(y):
            raise InputError(f"client {name!r} has {len(x)} samples but {len(y)} labels; give a label each")
        if not len(x):
            raise InputError(f"client {name!r} has no samples; leave it out")
        if xs and x.shape[1:] != xs[0].shape[1:]:
            raise InputError(
                f"client {name!r} has samples of shape {x.shape[1:]}, others of {xs[0].shape[1:]}; give all the same"
            )
        xs.append(x)
        ys.append(y)
        owners += [str(name)] * len(y)
    if not xs:
        raise InputError("there are no clients; give at least one with samples")
    return np.concatenate(xs), np.concatenate(ys), owners


def _collected(name: object, dataset: Any) -> tuple[Any, Any]:
    try:
        pairs = [dataset[i] for i in range(len(dataset))]
        xs, ys = [np.asarray(x) for x, _ in pairs], [np.asarray(y) for _, y in pairs]
        return np.stack(xs) if xs else np.empty((0, 1)), np.stack(ys) if ys else np.empty(0)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise InputError(
            f"client {name!r} is neither a pair (x, y) nor a data set of such pairs ({error}); give one of them"
        ) from None


def _as_array(values: Any, what: str) -> npt.NDArray[Any]:
    if hasattr(values, "detach"):  # a torch tensor
        values = values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} cannot be read as an array ({error}); give rows of the same length") from None
