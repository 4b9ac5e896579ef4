"""Updates that are far longer than the others': named whatever is done to them.

Honest clients differ: in their numbers of samples, hence of steps, and in their labels. On honest runs the longest
update was at most four times the median (docs/privacy.md), so that ten times is far; where half of the clients differ
by more among themselves, the limit grows with them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedpals.engine.aggregation import length, shortened
from fedpals.engine.client import Update
from fedpals.engine.round import Outlier

_UPDATE, _VECTOR = "update", "rule's vector"
_FACTORS = {_UPDATE: 10.0, _VECTOR: 100.0}
"""How many times the median each may be long, at least; mean gradients of honest clients differ more than moves."""
_SPREAD = 6.0
"""How many times the median deviation of log norms from their median an update's may deviate."""


def outliers(updates: Mapping[int, Update], start: Tensor) -> list[Outlier]:
    """Return the clients whose update, or vector of the rule, is far longer than the others', in their order."""
    moves = {i: length(u.vector.double() - start.double()) for i, u in sorted(updates.items())}
    states = {i: length(u.state) for i, u in sorted(updates.items()) if u.state is not None}
    return [*_far(moves, _UPDATE), *_far(states, _VECTOR)]


def shortened_update(update: Update, start: Tensor, far: Outlier) -> Update:
    """Return an update whose part that is too long has the median length."""
    if far.what == _UPDATE:
        return replace(update, vector=shortened(update.vector, start, far.median))
    assert update.state is not None
    return replace(update, state=shortened(update.state, torch.zeros_like(update.state), far.median))


def _far(norms: Mapping[int, float], what: str) -> list[Outlier]:
    if len(norms) < 2:
        return []
    median = statistics.median_low(norms.values())  # of two, the smaller: the larger may be the lie
    if median == 0.0:
        return []
    deviations = [abs(math.log(norm / median)) if norm > 0 else math.inf for norm in norms.values()]
    limit = median * max(_FACTORS[what], math.exp(min(_SPREAD * statistics.median_low(deviations), 700.0)))
    return [Outlier(i, norm, median, what) for i, norm in norms.items() if norm > limit]
