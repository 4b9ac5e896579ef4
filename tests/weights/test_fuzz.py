"""Families of problems that were hard once, a few of each: `benchmarks/solver_fuzz.py` draws thousands."""

from __future__ import annotations

import pytest

from tests.weights.check import Verdict, answer_to, check
from tests.weights.families import (
    FAMILIES,
    Family,
    Member,
    every_kind,
    lognormal,
    near_duplicates,
    near_the_hull,
    wide_sizes,
)

TRIES = dict(zip([family.name for family in FAMILIES], [4, 2, 30, 30, 30, 30, 15, 15, 3, 40, 120, 25, 25], strict=True))
"""How many members of each family are drawn here."""
COMPARED = 2
"""How many answers of each family are compared with the optimum in 500 bits, if the table is small."""
FEW_LABELS, FEW_ENTRIES = 25, 4000


def is_small(member: Member) -> bool:
    clients, labels = member.counts.shape
    return bool(labels <= FEW_LABELS and clients * labels <= FEW_ENTRIES)


def verdict_on(member: Member, *, in_high_precision: bool) -> tuple[Verdict, str]:
    return check(member, answer_to(member), in_high_precision=in_high_precision)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_member_is_refused_or_wrong(family: Family) -> None:
    compared = 0
    for seed in range(TRIES[family.name]):
        member = family.make(seed)
        in_high_precision = compared < COMPARED and is_small(member)
        compared += in_high_precision
        verdict, reason = verdict_on(member, in_high_precision=in_high_precision)
        allowed = {Verdict.RIGHT, Verdict.REFUSED} if family.may_refuse else {Verdict.RIGHT}
        assert verdict in allowed, f"{family.name} {seed}: {reason}"


@pytest.mark.parametrize("seed", [18, 45])
def test_a_covered_target_that_least_squares_misses_by_ten_digits(seed: int) -> None:
    """The nearest mix that least squares finds is 10⁻¹⁰ away, too far for rounding and too close for a proof."""
    assert verdict_on(lognormal(seed, 3000), in_high_precision=True) == (Verdict.RIGHT, "")


@pytest.mark.parametrize("seed", [23, 189, 278, 912])
def test_a_dual_point_with_more_digits_than_float64(seed: int) -> None:
    """Sizes from 1 to 10¹², and labels with 10⁻¹⁴ and less of the target."""
    member = wide_sizes(seed)
    assert verdict_on(member, in_high_precision=is_small(member)) == (Verdict.RIGHT, "")


def test_the_rounding_of_the_projection_is_part_of_the_certificate() -> None:
    assert verdict_on(wide_sizes(265), in_high_precision=True) == (Verdict.RIGHT, "")


@pytest.mark.parametrize("seed", [105, 229, 446, 557, 858])
def test_a_target_that_rounding_has_moved_across_the_boundary(seed: int) -> None:
    assert verdict_on(near_the_hull(seed), in_high_precision=False) == (Verdict.RIGHT, "")


@pytest.mark.parametrize("seed", [255, 277, 300])
def test_a_miss_that_only_clients_with_nearly_the_same_labels_can_make_up_for(seed: int) -> None:
    """Weights that reproduce T up to 10⁻¹² have an ESS that is percents too large."""
    verdict, reason = verdict_on(near_duplicates(seed), in_high_precision=True)
    assert verdict in {Verdict.RIGHT, Verdict.REFUSED}, reason


def test_three_clients_of_which_two_agree_in_eight_digits() -> None:
    assert verdict_on(every_kind(3099), in_high_precision=True) == (Verdict.RIGHT, "")
