"""The target's label marginal T, K probabilities, checked against the labels of the clients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedpals.config import did_you_mean
from fedpals.errors import InputError
from fedpals.labels.counts import LabelCounts, Vector

_SUM_TOLERANCE = 1e-6
"""Largest difference of the sum of probabilities from 1, unless given."""


def as_target(target: npt.ArrayLike, counts: LabelCounts, *, tolerance: float = _SUM_TOLERANCE) -> Vector:
    """Validate T against ``counts`` and normalise it.

    ``tolerance`` is the largest difference of its sum from 1 that counts as rounding.
    """
    _, columns = counts.shape
    try:
        values = np.array(target, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"target must be {columns} probabilities, one per label") from None
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
    """Align counts and target on the same labels, by name if ``target`` is a mapping.

    A label of the target that no client has becomes a column of zeros, so T is not covered. A label of
    the clients that the target does not name is an error unless ``missing_is_zero``.
    """
    if not isinstance(target, Mapping):
        return counts, as_target(target, counts, tolerance=tolerance)
    if counts.labels is None:
        raise InputError("target is given by label name, but counts has no label names: LabelCounts.of(…, labels=…)")
    missing = [label for label in counts.labels if label not in target]
    absent = [label for label in target if label not in set(counts.labels)]
    for label in absent:
        if hint := did_you_mean(label, missing):
            raise InputError(f"target names the label {label!r}, which no client has{hint}")
    if missing and not missing_is_zero:
        raise InputError(
            f"target does not name the label {missing[0]!r} that clients have"
            + (f" (nor {len(missing) - 1} more)" if len(missing) > 1 else "")
            + "; add it with its probability, or say that missing labels mean 0"
        )
    if absent:
        counts = counts.with_labels(absent)
    values = [target.get(label, 0.0) for label in counts.labels or ()]
    return counts, as_target(values, counts, tolerance=tolerance)
