"""Dishonest updates: named, refused or clipped, and a mean that they move little."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedpals.engine.aggregation import median_weights, weighted_median
from fedpals.engine.client import Update
from fedpals.engine.outliers import outliers
from fedpals.engine.server import DivergedError
from fedpals.engine.state import ServerState
from fedpals.labels import LabelCounts
from tests.engine.servers import advance, equal_models, no_losses, server

HONEST = {i: [1.0 + 0.1 * i, 0.2 * (-1) ** i, 0.0] for i in range(10)}


# The geometric median


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31))
def test_median_is_where_a_general_minimiser_finds_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, alpha = rng.standard_normal((6, 3)), rng.dirichlet(np.ones(6))

    def distance(w: np.ndarray) -> float:
        return float(alpha @ np.linalg.norm(points - w, axis=1))

    vectors = [torch.from_numpy(point) for point in points]
    beta = median_weights(torch.zeros(3, dtype=torch.float64), vectors, alpha)
    assert beta.sum() == pytest.approx(1.0)
    best = min(minimize(distance, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).fun
                for start in (alpha @ points, points[alpha.argmax()]))  # fmt: skip
    assert distance(beta @ points) <= best * (1 + 2e-3)  # smoothing where it falls on a point


@pytest.mark.parametrize("factor", [-1.0, -50.0, 1e30])
def test_a_liar_moves_the_median_little(factor: float) -> None:
    honest = server(aggregation="geometric_median")
    advance(honest, HONEST)
    lied, mean = server(aggregation="geometric_median"), server()
    lie = {**HONEST, 3: [factor * value for value in HONEST[3]]}
    done = advance(lied, lie)
    moved = float(torch.linalg.vector_norm(lied.state.vector - honest.state.vector))
    assert moved < 0.2
    assert done.alpha[3] < 0.05
    advance(mean, lie)
    plain = server()
    advance(plain, HONEST)
    assert float(torch.linalg.vector_norm(mean.state.vector - plain.state.vector)) > (0.1 if factor == -1 else 2.0)


def test_without_liars_near_each_other_the_median_is_the_mean() -> None:
    same = {i: [1.0, 2.0, 3.0] for i in range(10)}
    median = server(aggregation="geometric_median")
    done = advance(median, same)
    assert median.state.vector.tolist() == pytest.approx([1.0, 2.0, 3.0])
    assert done.alpha[0] == pytest.approx(0.555)


def test_weighted_median() -> None:
    assert weighted_median(np.array([3.0, 1.0, 2.0]), np.array([0.2, 0.4, 0.4])) == 2.0
    assert weighted_median(np.array([5.0, 1.0]), np.array([0.5, 0.5])) == 1.0


def test_the_ess_of_candidates_is_that_of_the_weights_that_the_median_gives() -> None:
    counts = LabelCounts.of(np.array([[10, 0], [0, 10], [8, 2], [5, 5]]))
    own = server(method="fedpals", ess="auto", aggregation="geometric_median", counts=counts, target=[0.9, 0.1])
    moves = {0: [0.0, 0.0, 4.0], 1: [0.0, 4.0, 0.0]}
    done = advance(own, moves, compare=lambda _, models: equal_models(2, len(models)))
    assert done.choice is not None
    assert len(done.choice.candidates) == len(done.choice.losses) == 4
    assert done.choice.ess == done.choice.candidates[-1] == pytest.approx(own.achieved(done)[1])
    assert done.choice.ess < 0.9, "FedAvg's own is 1"


# Far updates


def moves_of(norms: list[float], states: list[float] | None = None) -> dict[int, Update]:
    vectors = [torch.tensor([norm, 0.0]) for norm in norms]
    extra = [None] * len(norms) if states is None else [torch.tensor([value]) for value in states]
    return {i: Update(v, 0.5, 1, s) for i, (v, s) in enumerate(zip(vectors, extra, strict=True))}


@pytest.mark.parametrize(
    ("norms", "far"),
    [
        ([1.0, 1.2, 0.9, 50.0], [3]),
        ([1.0, 50.0], [1]),  # of two, the longer one
        ([50.0], []),  # nobody to compare with
        ([1.0, 1e30, 1.1], [1]),
        ([0.0, 0.0, 0.0, 1.0], []),  # most stand still: no scale
        ([0.1, 0.4, 1.0, 3.0, 9.0], []),  # very different, all of them
        ([0.1, 0.3, 1.0, 2.0, 50.0], [4]),  # one lie among them
        ([15.2, 0.447, 0.254], [0]),
        ([16.5, 0.458, 0.249], [0]),  # of three, ratio and lie are no spread
        ([1e-6, 1.0, 1e30], [2]),
        ([1.0] * 6 + [9.0], []),
        ([0.0, 0.0, 0.0, 1.0, 1.1, 1e30], [5]),  # those that stand still give no scale, and take none away
    ],
)
def test_which_updates_are_far(norms: list[float], far: list[int]) -> None:
    assert [o.client for o in outliers(moves_of(norms), torch.zeros(2), np.ones(len(norms)), {})[0]] == far


def test_of_three_a_client_that_lies_in_every_round_is_refused_in_every_round() -> None:
    """Also while what it sends gets shorter, as honest updates do: who was far once has less room."""
    own = server(counts=LabelCounts.of([[10, 10]] * 3), outliers="refuse")
    for lie, honest in ((15.2, 0.447), (16.5, 0.458), (6.0, 0.5), (3.0, 0.5), (1.6, 0.5)):
        moves = {0: [-lie, 0.0, 0.0], 1: [honest, 0.0, 0.0], 2: [0.55 * honest, 0.0, 0.0]}
        assert [r.client for r in advance(own, moves).refused] == [0]
    assert not own.state.lengths["update"].keys() - {1, 2}
    assert 0 in advance(own, {**moves, 0: [1.2, 0.0, 0.0]}).participants, "in line, it counts again"


def test_who_was_far_once_may_still_move_on_as_it_did() -> None:
    own = server(outliers="refuse")
    advance(own, {4: [4.0, 0.0, 0.0]}, others=[1.0, 0.0, 0.0])
    assert advance(own, {4: [40.0, 0.0, 0.0]}, others=[1.0, 0.0, 0.0]).refused
    assert not advance(own, {4: [4.0, 0.0, 0.0]}, others=[0.1, 0.0, 0.0]).refused
    assert advance(own, {4: [4.5, 0.0, 0.0]}, others=[0.1, 0.0, 0.0]).refused


def test_a_control_variate_can_be_far_too() -> None:
    (found,), _ = outliers(moves_of([1.0, 1.0, 1.0], [0.5, 0.4, 1e9]), torch.zeros(2), np.ones(3), {})
    assert (found.client, found.what) == (2, "rule's vector")


@pytest.mark.parametrize(("sizes", "far"), [([10, 10, 10], [2]), ([1000, 1000, 10], []), ([10, 10, 1000], [2])])
def test_a_mean_gradient_of_few_samples_may_be_longer(sizes: list[int], far: list[int]) -> None:
    found, _ = outliers(moves_of([1.0, 1.0, 1.0], [0.5, 0.4, 25.0]), torch.zeros(2), np.array(sizes, dtype=float), {})
    assert [o.client for o in found] == far
    found, _ = outliers(moves_of([1.0, 1.0, 1.0], [0.5, 0.4, 60.0]), torch.zeros(2), np.array(sizes, dtype=float), {})
    assert [o.client for o in found] == [2], "but not if it is as long as no claim of samples explains"


@pytest.mark.parametrize("spoilt", ["far", "nan", "lost"])
def test_the_vector_of_a_client_that_is_refused_counts_no_more_until_it_is_in_line(spoilt: str) -> None:
    """A client that is only lost keeps its part."""

    kind = ""

    def answer(client: int) -> Update | str:
        if client != 1 or kind != "":
            lie = own.state.vector + {"far": 1e6, "nan": float("nan")}.get(kind, 1.0) * torch.ones(3)
            good = Update(own.state.vector + 1.0, 0.5, 1, torch.ones(3))
            return good if client != 1 else "no reply" if kind == "lost" else Update(lie, 0.5, 1, torch.ones(3))
        return Update(own.state.vector + 1.0, 0.5, 1, 8.0 * torch.ones(3))

    def train(clients: Sequence[int]) -> list[Update | str]:
        return [answer(i) for i in clients]

    own = server(method="scaffold", outliers="refuse")
    part = 49 / 1000
    for kind, expected in (("", 1.0 + 7.0 * part), (spoilt, 1.0 + (7.0 if spoilt == "lost" else -1.0) * part)):  # noqa: B007
        own.advance(own.participants(1), train, no_losses)
        assert own.rule_vector is not None
        assert own.rule_vector.tolist() == pytest.approx([expected] * 3)
    kind = ""
    own.advance(own.participants(1), train, no_losses)
    assert own.rule_vector is not None
    assert own.rule_vector.tolist() == pytest.approx([1.0 + 7.0 * part] * 3)


@pytest.mark.parametrize(("sizes", "far"), [([10, 10], [1]), ([10, 1000], []), ([1000, 10], [1])])
def test_a_long_update_of_a_large_client_is_not_far(sizes: list[int], far: list[int]) -> None:
    found, _ = outliers(moves_of([1.0, 50.0]), torch.zeros(2), np.array(sizes, dtype=float), {})
    assert [o.client for o in found] == far


def test_a_client_that_moves_on_while_the_others_stand_still_is_not_far() -> None:
    own = server(outliers="refuse")
    for scale in (1.0, 0.1, 1e-3, 1e-9):
        assert not advance(own, {4: [1.5, 0.0, 0.0]}, others=[scale, 0.0, 0.0]).refused


@pytest.mark.parametrize("growth", [3.0, 9.0, 60.0])
def test_whoever_grows_little_by_little_is_far_in_the_end(growth: float) -> None:
    own, sent = server(outliers="refuse"), []
    for number in range(6):
        norm = growth**number
        sent.append((norm, [r.client for r in advance(own, {4: [norm, 0.0, 0.0]}, others=[1.0, 0.0, 0.0]).refused]))
    assert all(refused == ([4] if norm > 50.0 else []) for norm, refused in sent)
    assert sent[-1][1] == [4]


def test_whoever_was_alone_in_a_round_is_no_measure_of_itself() -> None:
    own = server(outliers="refuse")
    everyone = own.participants(1)
    alone = lambda clients: [Update(torch.full((3,), 1e3), 0.5, 1) for _ in clients]  # noqa: E731
    own.advance(everyone[4:5], alone, no_losses)
    assert not own.state.lengths["update"]
    done = advance(own, {4: [1e3, 0.0, 0.0]}, others=[1.0, 0.0, 0.0])
    assert [refusal.client for refusal in done.refused] == [4]


def test_what_is_usual_is_in_the_checkpoint(tmp_path: Path) -> None:
    own = server(outliers="refuse")
    advance(own, {4: [1.5, 0.0, 0.0]}, others=[1.0, 0.0, 0.0])
    own.state.save(tmp_path / "state")
    resumed = server(state=ServerState.load(tmp_path / "state"), outliers="refuse")
    assert resumed.state.lengths == own.state.lengths
    assert not advance(resumed, {4: [1.5, 0.0, 0.0]}, others=[1e-6, 0.0, 0.0]).refused


def test_the_first_client_does_not_decide_how_long_the_rules_vectors_are() -> None:
    def train(clients: Sequence[int]) -> list[Update]:
        states = [torch.ones(1 if i == 0 else 2) for i in clients]
        return [Update(torch.ones(3), 0.5, 1, None if i == 7 else s) for i, s in zip(clients, states, strict=True)]

    own = server(method="scaffold")
    refused = own.advance(own.participants(1), train, no_losses).refused
    assert [(r.client, r.reason) for r in refused] == [
        (0, "the rule's vector has shape (1,) instead of (2,)"),
        (7, "it sends no vector of the rule"),
    ]
    assert sorted(own.state.clients) == [1, 2, 3, 4, 5, 6, 8, 9]


LIE: dict[int, Any] = {**HONEST, 4: [-50.0, 0.0, 0.0]}


def test_far_updates_are_kept_and_named() -> None:
    own, other = server(), server(outliers="keep")
    for one in (own, other):
        done = advance(one, LIE)
        assert [o.client for o in done.outliers] == [4]
        assert "times the median of the round's clients" in str(done.outliers[0])
        assert not done.refused
    assert torch.equal(own.state.vector, other.state.vector)


def test_far_updates_are_refused_and_the_others_weighed_afresh() -> None:
    own, without = server(outliers="refuse"), server()
    done = advance(own, LIE)
    advance(without, {**HONEST, 4: "no reply"})
    assert [refusal.client for refusal in done.refused] == [4]
    assert 4 not in done.participants
    assert torch.equal(own.state.vector, without.state.vector)


def test_far_updates_are_clipped_to_the_median() -> None:
    own = server(outliers="clip")
    done = advance(own, LIE)
    (far,) = done.outliers
    short = server()
    advance(short, {**HONEST, 4: [-far.median, 0.0, 0.0]})
    assert own.state.vector.tolist() == pytest.approx(short.state.vector.tolist(), abs=1e-6)


def test_a_model_that_overflows_never_becomes_the_state() -> None:
    own = server(momentum=0.9)
    advance(own, {}, others=[1.5e38, 0.0, 0.0])
    before = own.state.vector.clone()
    with pytest.raises(DivergedError, match=r"not finite; the longest is client \d's, of norm 1e\+38"):
        advance(own, {}, others=[1e38, 0.0, 0.0])
    assert own.state.round == 1
    assert torch.equal(own.state.vector, before)


def test_a_client_whose_update_and_vector_are_both_far() -> None:
    def train(clients: Sequence[int]) -> list[Update]:
        honest = [Update(torch.full((3,), 1.0 + 0.1 * i), 0.5, 1, torch.ones(3)) for i in clients]
        return [Update(1e6 * u.vector, 0.5, 1, 1e6 * torch.ones(3)) if i == 2 else u for i, u in enumerate(honest)]

    refusing, clipping = server(method="scaffold", outliers="refuse"), server(method="scaffold", outliers="clip")
    for own in (refusing, clipping):
        done = own.advance(own.participants(1), train, no_losses)
        assert [o.client for o in done.outliers] == [2, 2]
    assert 2 not in refusing.state.clients
    assert clipping.state.clients[2].tolist() == pytest.approx([1.0] * 3)
    assert float(clipping.state.vector.abs().max()) < 3.0
