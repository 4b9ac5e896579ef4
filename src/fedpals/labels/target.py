"""The target's label marginal T, K probabilities, checked against the labels of the clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpals.config import did_you_mean
from fedpals.errors import InputError
from fedpals.labels.counts import LabelCounts, Vector, is_numbered

_SUM_TOLERANCE = 1e-6
"""Largest difference of the sum of probabilities from 1, unless given."""


def as_target(target: npt.ArrayLike, counts: LabelCounts, *, tolerance: float = _SUM_TOLERANCE) -> Vector:
    """Validate T, in the order of the labels of ``counts``, and normalise it.

    ``tolerance`` is the largest difference of its sum from 1 that counts as rounding.
    """
    _, columns = counts.shape
    values = _as_float64(target, columns)
    if values.shape != (columns,):
        raise InputError(
            f"target has shape {values.shape} but the clients have {columns} labels; it needs one probability per label"
        )
    # argmin and argmax are several times as fast as min and max, and find a NaN first.
    if not (values[values.argmin()] >= 0 and values[values.argmax()] < 1e300):  # a sum of larger ones could overflow
        index = int(np.argmax(~((values >= 0) & (values < 1e300))))
        raise InputError(f"target: label {counts.label(index)!r}: {values[index]:g} is not a probability")
    total = float(np.add.reduce(values))
    if abs(total - 1.0) > tolerance:
        raise InputError(f"target sums to {total:.9g}, not 1; divide it by its sum if it holds counts")
    return values / total


def match(
    counts: LabelCounts,
    target: npt.ArrayLike | Mapping[str, float],
    *,
    missing_is_zero: bool = False,
    tolerance: float = _SUM_TOLERANCE,
) -> tuple[LabelCounts, Vector]:
    """Align counts and target on the same labels, by name if ``target`` is a mapping or a pandas Series with names.

    A label of the target that no client has becomes a column of zeros, so T is not covered. A label of
    the clients that the target does not name is an error unless ``missing_is_zero``.
    """
    given = with_names(target, counts.labels)
    if not isinstance(given, Mapping):
        return counts, as_target(given, counts, tolerance=tolerance)
    if counts.labels is None:
        raise InputError(
            "target is given by label name, but counts has no label names: LabelCounts.of(…, labels=…); or give the "
            "probabilities alone, in the order of counts"
        )
    missing = [label for label in counts.labels if label not in given]
    absent = [label for label in given if label not in set(counts.labels)]
    for label in absent:
        if not isinstance(label, str):
            name = str(label) if str(label) in counts.labels else counts.labels[0]
            raise InputError(f"target names the label {label!r}, which is not text; write names such as {name!r}")
        if hint := did_you_mean(label, [str(name) for name in missing]):
            raise InputError(f"target names the label {label!r}, which no client has{hint}")
    if missing and not missing_is_zero:
        raise InputError(
            f"target does not name the label {missing[0]!r} that clients have"
            + (f" (nor {len(missing) - 1} more)" if len(missing) > 1 else "")
            + "; add it with its probability, or say that missing labels mean 0"
        )
    if absent:
        counts = counts.with_labels(absent)
    values = [given.get(label, 0.0) for label in counts.labels or ()]
    return counts, as_target(values, counts, tolerance=tolerance)


def with_names(target: Any, labels: Sequence[str] | None) -> Any:
    """Return a pandas Series as a mapping if its index names labels; anything else as it is.

    An index 0 … K−1 in this order is what a Series has without names, unless these are the names of the labels.
    """
    if not (hasattr(target, "index") and hasattr(target, "items") and hasattr(target, "dtype")):
        return target
    known = {str(label): label for label in labels or ()}  # nobody checks that they are text
    names = [str(name) for name in target.index]
    if is_numbered(target.index) and set(names) != set(known):
        return target
    shares: dict[str, float] = {}
    for name, share in zip(names, target, strict=True):
        if known.get(name, name) in shares:
            raise InputError(f"target names the label {name!r} twice; give every label once")
        shares[known.get(name, name)] = share
    return shares


def _as_float64(target: Any, columns: int) -> Vector:
    """Return what should be probabilities in the order of the labels as float64."""
    if isinstance(with_names(target, None), Mapping) and not isinstance(target, Mapping):
        raise InputError(
            "target is a Series with label names, which are not known here; give target.to_numpy() if it is in the "
            "order of the labels"
        )
    if isinstance(target, np.ma.MaskedArray) and np.ma.is_masked(target):
        raise InputError("target has masked entries; fill them, for instance with target.filled(0)")
    expected = f"target must be {columns} probabilities, one per label"
    try:
        values = np.asarray(target)
        real = values.dtype.kind != "c"
        numbers = values.astype(np.float64) if real else np.zeros(0)
    except OverflowError:
        raise InputError(f"{expected}; one of the numbers is too large") from None
    except (TypeError, ValueError):
        raise InputError(expected) from None
    if not real:
        raise InputError(f"{expected}, not {values.dtype}; give its real part")
    return numbers
