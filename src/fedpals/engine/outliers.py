"""Updates that are far longer than the others': named whatever is done to them.

Honest clients differ: in their numbers of samples, hence of steps, and in their labels; and a client that has learned
all it can stands still. So an update is far only if it is longer than three limits (docs/privacy.md says what they were
tried on): that of the round's updates, which grows where half of them differ much among themselves; the same for
updates by sample; and what this client has sent before, when it was in line with the others.
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
from fedpals.labels import Vector

_UPDATE, _VECTOR = "update", "rule's vector"
_FACTORS = {_UPDATE: 10.0, _VECTOR: 100.0}
"""How many times the median each may be long, at least; mean gradients of honest clients differ more than moves."""
_SPREAD = 6.0
"""How many times the median deviation of log norms from their median an update's may deviate."""
_GROWTH = 5.0
"""How many times the longest that it has sent in line with the others a client's may be long in any round."""

Lengths = dict[str, dict[int, float]]
"""The longest update, and vector of the rule, that clients have sent in line with the others, by client."""


def outliers(
    updates: Mapping[int, Update], start: Tensor, sizes: Vector, usual: Lengths
) -> tuple[list[Outlier], Lengths]:
    """Return the clients whose update, or vector of the rule, is far, in their order; and ``usual`` after the round.

    ``sizes`` are the numbers of samples of all clients.
    """
    moves = {i: length(u.vector.double() - start.double()) for i, u in sorted(updates.items())}
    vectors = {i: length(u.state) for i, u in sorted(updates.items()) if u.state is not None}
    by_sample = {i: norm / sizes[i] for i, norm in moves.items()}
    far, lengths = [], Lengths()
    for what, norms, long in (
        (_UPDATE, moves, _long(moves, _UPDATE) & _long(by_sample, _UPDATE)),
        (_VECTOR, vectors, _long(vectors, _VECTOR)),
    ):
        before, median = usual.get(what, {}), _median(norms)
        if median is not None:  # alone, nobody is in line with others
            beyond = (i for i in norms if i in long and norms[i] > _GROWTH * before.get(i, 0.0))
            far += [Outlier(i, norms[i], median, what) for i in beyond]
            before = before | {i: max(norms[i], before.get(i, 0.0)) for i in norms if i not in long}
        lengths[what] = before
    return far, lengths


def shortened_update(update: Update, start: Tensor, far: Outlier) -> Update:
    """Return an update whose part that is too long has the median length."""
    if far.what == _UPDATE:
        return replace(update, vector=shortened(update.vector, start, far.median))
    assert update.state is not None
    return replace(update, state=shortened(update.state, torch.zeros_like(update.state), far.median))


def _median(norms: Mapping[int, float]) -> float | None:
    """Return the median of those above zero; None if there are fewer than two.

    A client whose samples have no weight stands still. Of two it is the smaller, since the larger may be the lie.
    """
    moving = [norm for norm in norms.values() if norm > 0]
    return statistics.median_low(moving) if len(moving) > 1 else None


def _long(norms: Mapping[int, float], what: str) -> set[int]:
    """Return the clients whose norm is far above the others'."""
    if (median := _median(norms)) is None:
        return set()
    deviations = [abs(math.log(norm / median)) for norm in norms.values() if norm > 0]
    limit = median * max(_FACTORS[what], math.exp(min(_SPREAD * statistics.median_low(deviations), 700.0)))
    return {i for i, norm in norms.items() if norm > limit}
