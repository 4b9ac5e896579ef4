"""Stored and re-trained metrics: which differences rounding explains."""

from __future__ import annotations

import pytest

from fedpals.experiments.verify import Comparison
from fedpals.shift.evaluation import Evaluation


def verdict(evaluation: Evaluation, *differences: float, same_platform: bool = False) -> str:
    n = len(differences)
    seeds, stored, retrained = tuple(range(n)), (0.5,) * n, tuple(0.5 + each for each in differences)
    return Comparison("row", "method", "", evaluation, seeds, stored, retrained, same_platform).verdict


@pytest.mark.parametrize(
    ("evaluation", "difference", "expected"),
    [
        # Re-trained on another processor by another version of the arithmetic, from scratch:
        (Evaluation.RAW, 0.064, "close"),
        (Evaluation.RAW_BY_ESTIMATE, 0.0605, "close"),
        (Evaluation.PRIOR, 0.0485, "close"),
        (Evaluation.PRIOR, -0.0325, "close"),
        (Evaluation.CALIBRATED_BY_ESTIMATE, -0.047, "close"),
        (Evaluation.GAUSSIAN, 0.0349, "close"),
        (Evaluation.RAW, 0.12, "differs"),
        (Evaluation.PRIOR_BY_ESTIMATE, -0.12, "differs"),
        (Evaluation.RECOMMENDED, 0.06, "differs"),
        (Evaluation.GAUSSIAN_BY_ESTIMATE, -0.06, "differs"),
    ],
)
def test_what_other_processors_and_versions_of_the_arithmetic_change_is_close(
    evaluation: Evaluation, difference: float, expected: str
) -> None:
    assert verdict(evaluation, difference) == expected


def test_a_mean_of_n_seeds_may_differ_by_less_than_a_single_one() -> None:
    assert verdict(Evaluation.RAW, *[0.064] * 2) == "differs"
    assert verdict(Evaluation.RAW, 0.064, -0.02, 0.01, 0.0) == "close"


def test_where_bits_are_the_same_every_difference_counts() -> None:
    assert verdict(Evaluation.RAW, 0.001, same_platform=True) == "differs"
    assert verdict(Evaluation.RAW, 0.0, same_platform=True) == "same"
