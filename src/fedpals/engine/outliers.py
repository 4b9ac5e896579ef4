"""Updates that are far longer than the others': named whatever is done to them.

Honest clients differ: in their numbers of samples, hence of steps, and in their labels; and a client that has learned
all it can stands still. So an update is far only if it is longer than three limits (docs/privacy.md says what they were
tried on): a multiple of the round's median; the same with regard to its samples; and what this client has sent before,
when it was in line with the others. How much the round's updates differ is no limit: among three, one lie and one short
update make any spread. Who was far once has less room from then on.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedpals.engine.aggregation import length, shortened
from fedpals.engine.client import Update
from fedpals.engine.round import Outlier
from fedpals.labels import Vector

_UPDATE, _VECTOR, _FAR = "update", "rule's vector", "far "
_FACTOR = 10.0
"""How many times the median each may be long."""
_ANYBODY = 100.0
"""How many times the median a vector of the rule may be long, however few samples its client claims."""
_GROWTH = 5.0
"""How many times the longest that it has sent in line with the others a client's may be long in any round."""
_AGAIN = 3.0
"""How many times the median that of a client may be long that was far before; it may not grow beyond what it sent."""

Lengths = dict[str, dict[int, float]]
"""The longest update, and vector of the rule, that clients have sent in line with the others, by client; and the last
that was far, of those that have sent such."""


def outliers(
    updates: Mapping[int, Update], start: Tensor, sizes: Vector, usual: Lengths
) -> tuple[list[Outlier], Lengths]:
    """Return the clients whose update, or vector of the rule, is far, in their order; and ``usual`` after the round.

    ``sizes`` are the numbers of samples of all clients.
    """
    moves = {i: length(u.vector.double() - start.double()) for i, u in sorted(updates.items())}
    vectors = {i: length(u.state) for i, u in sorted(updates.items()) if u.state is not None}
    far, lengths = [], Lengths()
    for what, norms in ((_UPDATE, moves), (_VECTOR, vectors)):
        before, caught, median = usual.get(what, {}), usual.get(_FAR + what, {}), _median(norms)
        if median is not None:  # alone, nobody is in line with others
            # Who has more samples moves further, and its mean gradient is shorter, as it is one over more steps.
            unit = sizes if what == _UPDATE else 1.0 / np.maximum(sizes, 1.0)
            long = _long(norms, caught, np.ones_like(sizes)) & _long(norms, caught, unit)
            if what == _VECTOR:
                long |= {i for i, norm in norms.items() if norm > _ANYBODY * median}
            growth = {i: 1.0 if i in caught else _GROWTH for i in norms}
            beyond = [i for i in norms if i in long and norms[i] > growth[i] * before.get(i, 0.0)]
            far += [Outlier(i, norms[i], median, what) for i in beyond]
            before = before | {i: max(norms[i], before.get(i, 0.0)) for i in norms if i not in long}
            caught = caught | {i: norms[i] for i in beyond}
        lengths |= {what: before, _FAR + what: caught}
    return far, lengths


def with_far(usual: Lengths, after: Lengths) -> Lengths:
    """Return ``usual`` with the clients that were far in a round after which it is ``after``."""
    return usual | {what: norms for what, norms in after.items() if what.startswith(_FAR)}


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


def _long(norms: Mapping[int, float], caught: Collection[int], unit: Vector) -> set[int]:
    """Return the clients whose norm, each in its ``unit``, is far above the others'."""
    relative = {i: norm / unit[i] for i, norm in norms.items()}
    if (median := _median(relative)) is None:
        return set()
    return {i for i, norm in relative.items() if norm > (_AGAIN if i in caught else _FACTOR) * median}
