"""Differential privacy: ε against other mathematics, noise as measured, an attack, and every way around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedpals.engine import summary
from fedpals.engine.aggregation import length
from fedpals.engine.client import Update
from fedpals.engine.privacy import change_of_weights, epsilon
from fedpals.engine.server import Server
from fedpals.engine.state import ServerState
from fedpals.errors import InputError
from fedpals.labels import LabelCounts
from fedpals.weights import solve
from tests.engine.servers import COUNTS, advance, no_losses, server

pytest.importorskip("dp_accounting", reason="needs the extra privacy")

PRIVATE: dict[str, Any] = {"clip_update": 1.0, "noise_multiplier": 1.0}
WITHOUT_NOISE: dict[str, Any] = {"clip_update": 1.0, "noise_multiplier": 1e-9}
"""So that clipping can be seen."""
DELTA = 1e-5


# ε


def independent_epsilon(mu: float, delta: float) -> float:
    """δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), solved in 60 digits (Balle and Wang, 2018)."""
    with mpmath.workdps(60):
        m = mpmath.mpf(mu)

        def surplus(e: Any) -> Any:
            return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m) - mpmath.mpf(delta)

        low, high = mpmath.mpf(0), mpmath.mpf(mu * mu + 20 * mu + 1)
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if surplus(middle) > 0 else (low, middle)
        return float(high)


@pytest.mark.parametrize("mu", [0.01, 0.2, 1.0, 1 / 0.18, 8.0, 30.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_epsilon_is_that_of_an_independent_computation(mu: float, delta: float) -> None:
    assert epsilon(mu, delta) == pytest.approx(independent_epsilon(mu, delta), rel=1e-6, abs=1e-9)


def test_epsilon_after_rounds_is_below_another_accountants_bound() -> None:
    from dp_accounting import GaussianDpEvent
    from dp_accounting.rdp import RdpAccountant

    own, renyi = server(**PRIVATE), RdpAccountant()
    for number in range(1, 6):
        spent = advance(own, {}).privacy
        renyi.compose(GaussianDpEvent(1.0))
        assert spent is not None
        assert spent.epsilon == pytest.approx(independent_epsilon(math.sqrt(number), DELTA), rel=1e-6)
        assert 0.8 * renyi.get_epsilon(DELTA) < spent.epsilon < renyi.get_epsilon(DELTA)


def test_what_the_issue_is_about() -> None:
    """One of ten clients has α = 0.555: noise of z·C/M protects it with 0.18 instead of z."""
    assert COUNTS.sizes[0] / COUNTS.total == pytest.approx(0.555, abs=1e-3)
    assert epsilon(1.0, DELTA) == pytest.approx(4.38, abs=0.01)
    assert epsilon(0.555 * 10, DELTA) == pytest.approx(38, abs=0.5)


def test_clients_spend_only_in_rounds_in_which_they_have_weight() -> None:
    own = server(participation=0.3, **PRIVATE)
    turns = np.zeros(10)
    for _ in range(6):
        done = advance(own, {})
        turns[done.participants] += np.square(done.alpha / done.alpha.max())
        assert done.privacy is not None
        assert done.privacy.epsilon == pytest.approx(independent_epsilon(math.sqrt(turns.max()), DELTA), rel=1e-6)
        assert done.privacy.client == turns.argmax()
    assert turns.max() < 6  # somebody else's turn


@pytest.mark.parametrize(
    ("old", "new", "begins_with"),
    [
        (range(10), True, 0.0),  # another number is another client
        (range(1, 10), True, 1.0),  # the first may have got its number only now
        (range(10), False, 1.0),
        ((), False, 1.0),
    ],
)
def test_newcomers_have_spent_as_much_as_whoever_they_may_be(old: Sequence[int], new: bool, begins_with: float) -> None:
    """Also while everybody is there: a node that was killed looks present until its heartbeats are missed."""
    own = server(**PRIVATE)
    advance(own, {})
    numbered = np.array([*old, *([10] if new else [])], dtype=np.int64)
    own.admit(LabelCounts.of(np.vstack([np.asarray(COUNTS.table), [[600, 0]]])), np.arange(11), numbered)
    assert own.state.spent is not None
    assert own.state.spent[-1] == pytest.approx(begins_with)
    advance(own, {})
    assert own.state.spent[-1] == pytest.approx(begins_with + 1.0)


def test_who_comes_back_under_another_name_has_not_spent_less() -> None:
    """Without a number nobody can tell a restarted client from a new one: ε must not begin again."""
    rows, rounds = 4, 6
    own, known = (server(counts=LabelCounts.of([[10, 10]] * rows), **PRIVATE) for _ in range(2))
    for number in range(rounds):
        if number:
            table = LabelCounts.of([[10, 10]] * (rows * (number + 1)))
            own.admit(table, np.arange(rows * number, rows * (number + 1)))
        present = np.arange(rows * number, rows * (number + 1))
        done = own.advance(
            own.participants(number + 1, present), lambda clients: [still(own)] * len(clients), no_losses
        )
        expected = advance(known, {}).privacy
        assert done.privacy is not None
        assert expected is not None
        assert done.privacy.epsilon == pytest.approx(expected.epsilon)


def still(own: Server) -> Update:
    return Update(own.state.vector.clone(), 0.5, 1)


# Noise


@pytest.mark.parametrize(("lost", "largest"), [((), 555 / 1000), ((0,), 53 / 445)])
def test_noise_in_the_aggregate_is_z_c_max_alpha(lost: tuple[int, ...], largest: float) -> None:
    """Also where the weights are solved again, for clients that answered."""
    own = server(200_000, clip_update=0.5, noise_multiplier=2.0, key="k")
    done = advance(own, dict.fromkeys(lost, "no reply"))
    sigma = 2.0 * 0.5 * largest
    assert done.privacy is not None
    assert done.privacy.sigma == pytest.approx(sigma)
    noise = own.state.vector.double().numpy()
    assert noise.std() == pytest.approx(sigma, rel=0.01)
    assert stats.kstest(noise / sigma, "norm").pvalue > 1e-3


def test_a_cap_on_the_weights_makes_the_noise_smaller() -> None:
    counts = LabelCounts.of([[80, 0], [0, 40], [0, 30], [0, 30]])
    for cap in (None, 0.4):
        own = server(4, "fedpals", counts=counts, lam=0.0, max_weight=cap, **PRIVATE)
        done = advance(own, {})
        assert done.privacy is not None
        assert done.privacy.sigma == pytest.approx(0.5 if cap is None else 0.4)


def test_with_a_cap_noise_does_not_tell_who_is_there() -> None:
    """Without one, its size alone does: it follows max α, which follows from everybody's counts."""
    counts = np.array([[80, 0], [0, 40], [0, 30], [30, 30], [20, 20]])
    sizes: dict[float | None, set[float]] = {}
    for cap in (None, 0.5):
        for left_out in (None, *range(5)):
            some = counts if left_out is None else np.delete(counts, left_out, axis=0)
            own = server(2, "fedpals", counts=LabelCounts.of(some), lam=0.0, max_weight=cap, **PRIVATE)
            done = advance(own, {})
            assert done.privacy is not None
            sizes.setdefault(cap, set()).add(round(done.privacy.sigma, 9))
            spent = np.square(done.alpha / done.privacy.sigma).max()
            assert done.privacy.epsilon == pytest.approx(independent_epsilon(math.sqrt(spent), DELTA), rel=1e-6)
    assert len(sizes[None]) > 1
    assert sizes[0.5] == {0.5}


def test_fewer_clients_than_a_cap_needs_get_equal_weights_and_noise_that_covers_them() -> None:
    own = server(2, "fedpals", counts=LabelCounts.of([[10, 10]] * 6), lam=0.0, max_weight=0.17, **PRIVATE)
    done = advance(own, {0: "no reply"})
    assert done.alpha.tolist() == pytest.approx([0.2] * 5)
    assert done.privacy is not None
    assert done.privacy.sigma == pytest.approx(0.2)
    (line, refusal) = summary.warnings(own, done, str)
    assert "only 5 clients are left" in line
    assert "max_weight = 0.17: each has 0.2" in line
    assert "no reply" in refusal
    with pytest.raises(InputError, match=r"max_weight is 0\.16.*at least 0\.1666"):
        server(2, "fedpals", counts=LabelCounts.of([[10, 10]] * 6), lam=0.0, max_weight=0.16)


def test_noise_is_unpredictable_unless_its_key_is_known() -> None:
    first, second, known, again = (
        server(**PRIVATE),
        server(**PRIVATE),
        server(key="k", **PRIVATE),
        server(key="k", **PRIVATE),
    )
    for own in (first, second, known, again):
        advance(own, {})
    assert not torch.equal(first.state.vector, second.state.vector)
    assert torch.equal(known.state.vector, again.state.vector)
    assert len(first.state.noise_key or "") == 64


def test_a_round_that_is_computed_again_with_other_updates_has_other_noise() -> None:
    """Otherwise the difference of the two models would be the difference of the updates, without any noise."""
    once, again = server(key="k", **PRIVATE), server(key="k", **PRIVATE)
    advance(once, {0: [0.3, 0.0, 0.0]})
    advance(again, {0: [0.0, 0.3, 0.0]})
    plain = 0.555 * torch.tensor([0.3, -0.3, 0.0])
    assert length(once.state.vector - again.state.vector - plain) > 0.1


def test_a_resumed_run_has_the_same_bits_and_goes_on_counting(tmp_path: Path) -> None:
    moves = {i: [0.1 * i, 1.0, -2.0] for i in range(10)}
    unbroken = server(**PRIVATE, momentum=0.5, averaging=0.9)
    advance(unbroken, moves)
    unbroken.state.save(tmp_path / "state")
    after = advance(unbroken, moves)
    resumed = server(state=ServerState.load(tmp_path / "state"), momentum=0.5, averaging=0.9, **PRIVATE)
    assert advance(resumed, moves).privacy == after.privacy
    for name in ("vector", "velocity", "average"):
        assert torch.equal(getattr(resumed.state, name), getattr(unbroken.state, name))


def test_momentum_and_average_are_made_of_models_with_noise() -> None:
    own = server(momentum=0.5, averaging=0.9, **PRIVATE)
    advance(own, {})
    first = own.state.vector.clone()
    assert torch.equal(own.state.velocity, first)  # type: ignore[arg-type]
    assert torch.equal(own.state.average, first.double())  # type: ignore[arg-type]
    advance(own, {})
    assert torch.equal(own.state.velocity + first, own.state.vector)  # type: ignore[operator]


# The attack: was the client there? The likelihood ratio along its update is the best test there is.


def scores(present: bool, z: float, trials: int, rounds: int) -> np.ndarray:
    """The sum of how far the models moved along the client's update, in trainings with fresh noise."""
    update = np.array([0.0, 3.0, 4.0])  # of norm 5, which is clipped to 1
    values, own = np.zeros(trials), server(clip_update=1.0, noise_multiplier=z)
    for trial in range(trials):
        own.state = ServerState(0, torch.zeros(3), noise_key=f"{present} {trial}", spent=np.zeros(10))
        for _ in range(rounds):
            before = own.state.vector.double()
            advance(own, {0: update} if present else {}, others=[0.2, 0.0, 0.0])
            values[trial] += float((own.state.vector.double() - before) @ torch.from_numpy(update / 5))
    return values


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (3.0, 1), (3.0, 4)])
def test_an_attack_does_no_better_than_epsilon_allows(z: float, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every threshold: its power is at most that of the Gaussian mechanism that ε stands for, Φ(Φ⁻¹(alarms) + μ)."""
    told = advance(server(clip_update=1.0, noise_multiplier=z), {}).privacy
    assert told is not None
    assert told.epsilon == pytest.approx(independent_epsilon(1 / z, DELTA), rel=1e-6)
    monkeypatch.setattr("fedpals.engine.privacy.epsilon", lambda *_: 0.0)  # not in each of thousands of trainings
    trials = 3000
    slack = math.sqrt(math.log(2 / 1e-6) / (2 * trials))  # a rate is further off once in a million times
    there, absent = scores(True, z, trials, rounds), scores(False, z, trials, rounds)
    thresholds = np.concatenate([there, absent])
    hits, alarms = (1 - np.searchsorted(np.sort(of), thresholds) / trials for of in (there, absent))
    allowed = stats.norm.cdf(stats.norm.ppf(np.minimum(alarms + slack, 1.0)) + math.sqrt(rounds) / z)
    assert (hits - slack <= allowed).all()
    assert hits[np.abs(alarms - 0.3).argmin()] > 0.3 + slack, "the attack sees something"


def test_the_attack_finds_the_client_under_noise_of_z_c_over_m() -> None:
    """As Flower's wrappers draw it: the test above is able to fail."""
    compute_stdv = pytest.importorskip("flwr.supercore.differential_privacy").compute_stdv
    sigma, rng = compute_stdv(1.0, 1.0, len(COUNTS.sizes)), np.random.default_rng(0)
    there, absent = (mean + sigma * rng.standard_normal(2000) for mean in (0.555, 0.0))
    assert ((there >= 0.2775).mean() + (absent < 0.2775).mean()) / 2 > 0.99


# Ways around it


def test_every_update_is_clipped_also_of_a_client_that_is_trained_after_a_refusal() -> None:
    counts = LabelCounts.of([[80, 0, 0], [0, 40, 0], [30, 0, 30]])
    own = server(2, "fedpals", counts=counts, target=[0.5, 0.5, 0.0], lam=0.0, **WITHOUT_NOISE)
    assert own.weigh(np.arange(3))[2] == 0.0
    done = advance(own, {0: "no reply", 1: [30.0, 0.0], 2: [0.0, 949.0]})
    assert done.participants.tolist() == [1, 2]
    assert own.state.vector.tolist() == pytest.approx(done.alpha.tolist(), abs=1e-6)
    assert done.privacy is not None
    assert done.privacy.clipped == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_do_not_depend_on_values_that_cannot_be_used(bad: float) -> None:
    own = server(**WITHOUT_NOISE)
    done = advance(own, {0: [bad, 0.0, 0.0]}, others=[0.5, 0.0, 0.0])
    assert done.alpha[0] == pytest.approx(0.555)
    assert own.state.vector.tolist() == pytest.approx([0.445 * 0.5, 0.0, 0.0], abs=1e-6)
    assert [(r.client, "counts as no change" in r.reason) for r in done.refused] == [(0, True)]
    assert done.loss == pytest.approx(0.5)


def test_a_round_whose_updates_can_all_not_be_used_is_one_of_noise() -> None:
    """Whether a round takes place must not depend on samples either, nor on how many updates can be used."""
    own, zero = server(key="k", **PRIVATE), server(key="k", **PRIVATE)
    done = advance(own, {}, others=[math.nan, 0.0, 0.0])
    expected = advance(zero, {})
    assert torch.equal(own.state.vector, zero.state.vector)
    assert torch.count_nonzero(own.state.vector) == 3
    assert len(done.refused) == 10
    assert math.isnan(done.loss)
    assert done.privacy == expected.privacy
    assert own.state.round == 1


def test_a_huge_update_is_clipped_like_any_other() -> None:
    own = server(**WITHOUT_NOISE)
    advance(own, {0: [-1e30, 0.0, 0.0]})
    assert own.state.vector.tolist() == pytest.approx([-0.555, 0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("scaffold", {}, "control variates.*carries no noise"),
        ("scaffold+fedpals", {"ess": 0.5}, "control variates.*carries no noise"),
        ("afl", {}, "exact losses.*use weights that follow from label counts"),
        ("fedpals", {"ess": "auto"}, "ess is 'auto'.*give a number"),
    ],
)
def test_methods_that_noise_does_not_cover_are_refused(method: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        server(method=method, **options, **PRIVATE)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"clip_update": 1.0}, "noise_multiplier is not given"),
        ({"noise_multiplier": 1.0}, "clip_update is not given"),
        ({"privacy_delta": 1e-5}, "nothing is private"),
        ({**PRIVATE, "aggregation": "geometric_median"}, "weights must not depend on updates"),
        ({**PRIVATE, "outliers": "refuse"}, "weights must not depend on updates"),
        ({**PRIVATE, "clip_update": 0.0}, "greater than 0"),
        ({**PRIVATE, "noise_multiplier": math.inf}, "finite"),
    ],
)
def test_settings_that_do_not_belong_together(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        server(**keys)


def test_no_vector_of_a_client_is_kept() -> None:
    own = server(**PRIVATE)
    advance(own, {i: [1.0, 0.0, 0.0] for i in range(10)})
    assert own.state.clients == {}
    assert own.rule_vector is None


# A client that is left out altogether


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31))
def test_leaving_a_client_out_moves_the_aggregate_by_its_bound_at_most(seed: int) -> None:
    """In units of the same noise, z C max_weight, with and without the client."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 50, size=(5, 3))
    target, client = rng.dirichlet(np.ones(3)), int(rng.integers(5))
    alpha = solve(counts, target, ess=0.5, max_weight=0.3).alpha
    without = solve(np.delete(counts, client, axis=0), target, ess=0.5, max_weight=0.3).alpha
    moves = rng.standard_normal((5, 4))
    moves /= np.maximum(np.linalg.norm(moves, axis=1, keepdims=True), 1.0)
    moved = np.linalg.norm(alpha @ moves - without @ np.delete(moves, client, axis=0))
    assert moved <= change_of_weights(alpha, without, client) + 1e-12 <= 2 + 1e-9


def test_for_fedavg_the_bound_is_twice_the_weight() -> None:
    alpha = COUNTS.sizes / COUNTS.total
    for client in range(10):
        sizes = np.delete(COUNTS.sizes, client)
        assert change_of_weights(alpha, sizes / sizes.sum(), client) == pytest.approx(2 * alpha[client])


def test_for_the_stores_the_bound_is_at_most_twice_the_largest_weight() -> None:
    folder = Path(__file__).parents[2] / "examples" / "retail"
    counts, target = (np.loadtxt(folder / name, delimiter=",", skiprows=1, usecols=columns)
                      for name, columns in (("stores.csv", (1, 2, 3)), ("new-store.csv", 1)))  # fmt: skip
    alpha = solve(counts, target, ess=0.5).alpha
    changes = [
        change_of_weights(alpha, solve(np.delete(counts, i, axis=0), target, ess=0.5).alpha, i) for i in range(6)
    ]
    assert max(changes) == pytest.approx(2 * alpha.max())
    assert all(change >= 2 * a - 1e-9 for change, a in zip(changes, alpha, strict=True))
    assert any(change > 2.5 * a for change, a in zip(changes, alpha, strict=True))
