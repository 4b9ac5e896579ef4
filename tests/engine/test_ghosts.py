"""Clients that left for good: rows of theirs stay, and have no share in anything."""

from __future__ import annotations

import numpy as np
import pytest

from fedpals.engine.client import Update
from fedpals.labels import LabelCounts
from tests.engine.servers import advance, no_losses, server

FOUR = [[40, 0], [10, 0], [10, 0], [20, 0]]
GHOSTS = [[100, 20]] * 9


def test_the_prior_correction_does_not_count_ghosts() -> None:
    """A label that nobody has counts as half a sample of those that are there."""
    own = server(counts=LabelCounts.of([*GHOSTS, *FOUR]))
    plain = server(counts=LabelCounts.of(FOUR))
    still = Update(own.state.vector, 0.5, 1)
    for one, present in ((own, np.arange(9, 13)), (plain, np.arange(4))):
        one.advance(one.participants(1, present), lambda rows: [still] * len(rows), no_losses)
    assert own.prior_shift.tolist() == plain.prior_shift.tolist()


@pytest.mark.parametrize("of_the_ghost", [0.0, 0.3, 0.9])
def test_newcomers_get_their_share_of_the_clients_that_are_there(of_the_ghost: float) -> None:
    own = server(method="afl", counts=LabelCounts.of([[100, 20], [40, 0], [20, 0]]))
    here = 1.0 - of_the_ghost
    own.state.weighting = np.array([of_the_ghost, here * 0.25, here * 0.75])
    own.admit(LabelCounts.of([[100, 20], [40, 0], [20, 0], [20, 0], [0, 20]]), np.arange(1, 5))
    alpha = own.weigh(own.participants(1, np.arange(1, 5)))
    assert alpha.tolist() == pytest.approx([0.6 * 0.25, 0.6 * 0.75, 0.2, 0.2])
    assert own.state.weighting.sum() == pytest.approx(1.0)


def test_newcomers_when_everybody_else_is_gone() -> None:
    own = server(method="afl", counts=LabelCounts.of([[100, 20], [40, 0]]))
    own.admit(LabelCounts.of([[100, 20], [40, 0], [30, 0], [0, 10]]), np.array([2, 3]))
    assert own.weigh(own.participants(1, np.array([2, 3]))).tolist() == pytest.approx([0.75, 0.25])


def test_while_everybody_is_there_newcomers_get_the_same_bits_as_ever() -> None:
    own, table = server(method="afl"), [[7, 5]] * 10
    mixture = np.full(10, 0.1)
    own.state.weighting = mixture
    counts = LabelCounts.of([*table, [3, 1], [2, 2]])
    own.admit(counts, np.arange(12))
    share = (counts.sizes / counts.total)[10:]
    assert own.state.weighting.tolist() == [*(mixture * (1.0 - share.sum())), *share]
    advance(own, {})
