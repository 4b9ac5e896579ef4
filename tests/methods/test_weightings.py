from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import fedpals
from fedpals import InputError, LabelCounts
from fedpals.methods import METHODS, build_method, option_keys, options_of
from fedpals.methods.agnostic import Agnostic, project_to_simplex
from fedpals.methods.pals import Pals
from fedpals.methods.weighting import Weighting

COUNTS = LabelCounts.of([[80, 20, 0], [10, 60, 30], [5, 5, 40], [100, 100, 100]])
TARGET = np.array([0.2, 0.3, 0.5])
ALL = np.arange(4)


def test_by_size() -> None:
    assert Weighting().weigh(COUNTS, TARGET, np.array([0, 3]), None).tolist() == [0.25, 0.75]


def test_pals_is_solved_for_the_participants() -> None:
    some = np.array([3, 1])
    expected = fedpals.solve(COUNTS.subset(some), TARGET, ess=0.9).alpha
    assert (Pals(ess=0.9).weigh(COUNTS, TARGET, some, None) == expected).all()


def test_pals_keeps_to_a_cap() -> None:
    some = np.array([3, 1, 0])
    expected = fedpals.solve(COUNTS.subset(some), TARGET, ess=0.9, max_weight=0.4).alpha
    capped = build_method("fedpals", {"ess": 0.9, "max_weight": 0.4})
    assert (capped.weighting.weigh(COUNTS, TARGET, some, None) == expected).all()
    assert expected.max() == 0.4 < Pals(ess=0.9).weigh(COUNTS, TARGET, some, None).max()
    with pytest.raises(InputError, match=r"at least 0\.5"):
        capped.weighting.check(2)
    # Where clients were refused, and too few are left, the round goes on with equal weights.
    assert capped.weighting.weigh(COUNTS, TARGET, np.array([3, 1]), None).tolist() == [0.5, 0.5]
    assert capped.weighting.largest_weight(2) == 0.5


def test_without_a_cap_a_method_has_the_name_and_options_it_had() -> None:
    assert dict(build_method("fedpals", {"ess": 0.9}).options) == {"ess": 0.9}
    assert build_method("fedpals", {"ess": 0.9, "max_weight": 0.4}).options["max_weight"] == 0.4


def test_pals_at_infinite_lambda_is_by_size_bit_for_bit() -> None:
    assert (Pals(lam=math.inf).weigh(COUNTS, TARGET, ALL, None) == Weighting().weigh(COUNTS, TARGET, ALL, None)).all()


def test_agnostic_goes_to_the_worst_client() -> None:
    weighting = Agnostic(mixture_step=0.05)
    state = weighting.start(COUNTS)
    for _ in range(200):
        state = weighting.learn(state, ALL, np.array([0.1, 0.2, 0.9, 0.3]))
    assert state is not None
    assert state.tolist() == pytest.approx([0, 0, 1, 0])
    assert weighting.weigh(COUNTS, TARGET, np.array([1, 2]), state).tolist() == [0, 1]
    # Participants without any share of the mixture still have to be weighed somehow.
    assert weighting.weigh(COUNTS, TARGET, np.array([0, 3]), state).tolist() == [0.25, 0.75]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
def test_projection_to_the_simplex_is_the_closest_point(values: list[float]) -> None:
    point = np.array(values)
    found = project_to_simplex(point)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    start = np.full(point.size, 1 / point.size)
    constraint: Any = {"type": "eq", "fun": lambda x: x.sum() - 1}
    bounds = [(0, 1)] * point.size

    def distance(x: Any) -> float:
        return float(((x - point) ** 2).sum())

    other = minimize(distance, start, bounds=bounds, constraints=constraint).x
    assert ((found - point) ** 2).sum() <= ((other - point) ** 2).sum() + 1e-6


def test_names_compose() -> None:
    both = build_method("fedprox+fedpals", {"ess": 0.5, "proximal_weight": 0.1})
    assert (both.rule.name, both.weighting.name, both.title) == ("proximal", "pals", "FedProx+FedPALS")
    assert build_method("fedavg").rule.name == "sgd"
    assert build_method("oracle").oracle
    assert options_of("scaffold+afl") == ["server_step", "mixture_step"]
    assert option_keys().keys() >= {"lam", "ess", "proximal_weight", "absent_factor"}
    paper = {"fedavg", "fedsgd", "fedprox", "scaffold", "fedrs_graded", "afl", "fedpals", "oracle"}
    assert set(METHODS) == {*paper, "logit_adjusted", "fedrs_binary", "fedlc", "iwerm", "feddisco", "pooled"}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedprx", {}, "did you mean 'fedprox'"),
        ("fedprox+scaffold", {}, "two client rules"),
        ("afl+fedpals", {"ess": 0.5}, "two weightings"),
        ("fedavg", {"ess": 0.5}, "ess is no option of the method 'fedavg', which takes no options"),
        ("fedprox", {"ess": 0.5}, "which takes proximal_weight"),
    ],
)
def test_bad_names_and_options(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_method(name, options)
