"""Client rules against autograd, closed forms and hand-computed numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpals import LabelCounts
from fedpals.engine.client import batches, local_update
from fedpals.engine.flat_model import FlatModel
from fedpals.engine.plan import Plan
from fedpals.methods import ClientRule
from fedpals.methods.calibrated_logits import CalibratedLogits
from fedpals.methods.full_batch import FullBatch
from fedpals.methods.importance_weighted import ImportanceWeighted
from fedpals.methods.logit_adjusted import LogitAdjusted
from fedpals.methods.proximal import Proximal
from fedpals.methods.restricted_softmax import BinarySoftmax, GradedSoftmax
from fedpals.methods.scaffold import Scaffold
from fedpals.rng import generator


def linear(features: int = 2, classes: int = 3, seed: int = 0) -> FlatModel:
    network = nn.Linear(features, classes)
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
    return FlatModel(network)


def samples(n: int = 12, features: int = 2, classes: int = 3, seed: int = 1) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, features))).float(), torch.from_numpy(rng.integers(classes, size=n))


def counts(y: Tensor, classes: int = 3) -> Tensor:
    return torch.bincount(y, minlength=classes)


def test_one_step_of_two_clients_by_hand() -> None:
    """At w = 0 both labels have probability ½; client A has x = 2 of label 0, client B x = 1 and 3 of label 1.

    ∂/∂w_0 of client A is (½ − 1)·2 = −1, of client B ½·(1 + 3)/2 = 1; with η = 0.1 the clients end at
    ±0.1, and FedAvg with sizes 1 and 2 at (0.1 − 2·0.1)/3.
    """
    model = FlatModel(nn.Linear(1, 2, bias=False))
    start = torch.zeros(2)
    ends = []
    for x, y in (([[2.0]], [0]), ([[1.0], [3.0]], [1, 1])):
        update = local_update(
            model,
            start,
            torch.tensor(x),
            torch.tensor(y),
            torch.tensor([1, 1]),
            FullBatch(),
            Plan(),
            generator(0),
        )
        ends.append(update.vector)
    assert ends[0].tolist() == pytest.approx([0.1, -0.1])
    assert ends[1].tolist() == pytest.approx([-0.1, 0.1])
    assert ((ends[0] + 2 * ends[1]) / 3).tolist() == pytest.approx([-0.1 / 3, 0.1 / 3])


def test_flat_gradient_is_autograd_s_and_convolutions_lie_channels_last() -> None:
    network = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 2))
    reference = [p.detach().clone() for p in network.parameters()]
    model = FlatModel(network)
    assert all(torch.equal(p, r) for p, r in zip(network.parameters(), reference, strict=True))
    assert model.parameters[0].is_contiguous(memory_format=torch.channels_last)
    x, y = torch.randn(5, 2, 3, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 1])
    flat = model.gradient(cross_entropy(network(x), y))
    cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
    model.vector.add_(torch.cat([flat, torch.zeros(len(model.vector) - len(flat))]))
    for parameter, before in zip(network.parameters(), reference, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter, before + parameter.grad, atol=1e-6)


def test_proximal_gradient_is_that_of_the_squared_penalty() -> None:
    start, vector = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 0.0, 3.5], requires_grad=True)
    gradient = torch.zeros(3)
    Proximal(proximal_weight=0.3).adjust_gradient(gradient, vector.detach(), start, None)
    penalty = 0.3 / 2 * ((vector - start) ** 2).sum()
    assert torch.allclose(gradient, torch.autograd.grad(penalty, vector)[0])


def test_a_strong_proximal_term_keeps_the_client_at_home() -> None:
    x, y = samples()
    ends = []
    for rule in (ClientRule(), Proximal(proximal_weight=9.0)):
        model = linear()
        start = model.vector.clone()
        update = local_update(model, start, x, y, counts(y), rule, Plan(epochs=10, batch_size=4), generator(0))
        ends.append(float((update.vector - start).norm()))
    assert ends[1] < 0.3 * ends[0]


def test_restricted_softmax_leaves_absent_labels_where_they_were() -> None:
    x, y = samples(classes=2)  # label 2 is absent
    for factor, moves in ((0.0, False), (0.5, True)):
        model = linear()
        start = model.vector.clone()
        rule = BinarySoftmax(absent_factor=factor)
        update = local_update(model, start, x, y, counts(y), rule, Plan(epochs=2), generator(0))
        weight = slice(4, 6)  # third row of the 3×2 weight
        assert torch.equal(update.vector[weight], start[weight]) != moves
        assert not torch.equal(update.vector[:4], start[:4])


def test_full_batch_takes_one_step_with_all_samples() -> None:
    x, y = samples()
    model = linear()
    start = model.vector.clone()
    model.load(start)
    gradient = model.gradient(cross_entropy(model.network(x), y))
    update = local_update(model, start, x, y, counts(y), FullBatch(), Plan(learning_rate=0.2), generator(0))
    assert update.steps == 1
    assert torch.allclose(update.vector, start - 0.2 * gradient)


def test_steps_and_epochs() -> None:
    x = y = torch.arange(10)

    def drawn(plan: Plan) -> list[list[int]]:
        steps = [(a[rows], b[rows]) for a, b, rows in batches(x, y, plan, generator(0))]
        assert all(torch.equal(inputs, labels) for inputs, labels in steps)
        return [labels.tolist() for _, labels in steps]

    assert [len(b) for b in drawn(Plan(epochs=2, batch_size=4))] == [4, 4, 2, 4, 4, 2]
    assert [len(b) for b in drawn(Plan(steps=4, batch_size=4))] == [4, 4, 2, 4]
    assert sorted(label for step in drawn(Plan(epochs=1, batch_size=3)) for label in step) == list(range(10))


def test_adam_is_torch_s() -> None:
    x, y = samples()
    model, other = linear(), linear()
    plan = Plan(epochs=1, batch_size=12, optimizer="adam", learning_rate=0.05)
    update = local_update(model, model.vector.clone(), x, y, counts(y), ClientRule(), plan, generator(0))
    optimizer = torch.optim.Adam(other.network.parameters(), lr=0.05)
    cross_entropy(other.network(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert torch.allclose(update.vector, other.vector, atol=1e-6)


def test_integer_buffers_are_not_averaged_and_float_buffers_are_part_of_the_vector() -> None:
    network = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model = FlatModel(network)
    x, y = samples(classes=2)
    start = model.vector.clone()
    update = local_update(model, start, x, y, torch.tensor([1, 1]), ClientRule(), Plan(), generator(0))
    assert network[1].num_batches_tracked.dtype == torch.int64
    buffers = slice(model.trained, None)
    assert not torch.equal(update.vector[buffers], start[buffers])
    model.load(start)
    assert not network[1].state_dict()["running_mean"].any()


class Quadratics:
    """Clients f_i(w) = ½ h_i (w − b_i)²; the optimum of Σ a_i f_i is Σ a_i h_i b_i / Σ a_i h_i."""

    def __init__(self, weights: list[float]) -> None:
        self.h = torch.tensor([1.0, 4.0, 9.0])
        self.b = torch.tensor([-3.0, 1.0, 5.0])
        self.a = torch.tensor(weights)

    @property
    def optimum(self) -> float:
        return float((self.a * self.h * self.b).sum() / (self.a * self.h).sum())

    def train(self, rule: ClientRule, rounds: int, participants: int, steps: int = 10, rate: float = 0.02) -> float:
        w, server, clients = torch.zeros(1), None, dict[int, Tensor]()
        for number in range(rounds):
            chosen = np.sort(generator(0, "round", number).permutation(3)[:participants]).tolist()
            share = self.a[chosen] / self.a[chosen].sum()
            average = torch.zeros(1)
            for weight, i in zip(share, chosen, strict=True):
                correction = rule.correction(server, clients.get(i), w)
                v, total = w.clone(), torch.zeros(1)
                for _ in range(steps):
                    gradient = self.h[i] * (v - self.b[i])
                    total += gradient
                    rule.adjust_gradient(gradient, v, w, correction)
                    v = v - rate * gradient
                new = rule.client_state(clients.get(i), w, v, total / steps)
                if new is not None:
                    clients[i] = new
                average = average + weight * v
            known = [(float(self.a[i]), vector) for i, vector in sorted(clients.items())]
            server = rule.server_vector(known, LabelCounts.of([[1]] * 3), np.ones(1))
            w = rule.step(w, average)
        return float(w)


@pytest.mark.parametrize("weights", [[1 / 3, 1 / 3, 1 / 3], [0.7, 0.2, 0.1]])
def test_scaffold_finds_the_optimum_where_fedavg_does_not(weights: list[float]) -> None:
    problem = Quadratics(weights)
    assert problem.train(Scaffold(), 300, participants=3) == pytest.approx(problem.optimum, abs=1e-3)
    assert abs(problem.train(ClientRule(), 300, participants=3) - problem.optimum) > 0.1


def test_scaffold_keeps_its_mean_under_partial_participation() -> None:
    problem = Quadratics([1 / 3, 1 / 3, 1 / 3])
    found = problem.train(Scaffold(), 1500, participants=2)
    assert found == pytest.approx(problem.optimum, abs=0.02)


def test_scaffold_server_step() -> None:
    start, average = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])
    assert Scaffold(server_step=0.5).step(start, average).tolist() == [2.0, 2.0]


def test_logit_adjustment_at_zero_is_plain_training_and_at_one_forgets_the_clients_marginal() -> None:
    """Labels 0 and 1 with odds 3:1 at both inputs: the best logits are log odds, adjusted they are 0."""
    x = torch.eye(2).repeat_interleave(4, dim=0)
    y = torch.tensor([0, 0, 0, 1] * 2)
    plan = Plan(epochs=400, batch_size=8, learning_rate=1.0)
    gaps = {}
    for adjustment in (0.0, 1.0):
        model = FlatModel(nn.Linear(2, 2))
        model.vector.zero_()
        rule = LogitAdjusted(adjustment=adjustment)
        update = local_update(model, model.vector.clone(), x, y, counts(y, 2), rule, plan, generator(0))
        model.load(update.vector)
        logits = model.logits(torch.eye(2))
        gaps[adjustment] = (logits[:, 0] - logits[:, 1]).tolist()
    assert gaps[0.0] == pytest.approx([np.log(3)] * 2, abs=1e-3)
    assert gaps[1.0] == pytest.approx([0.0] * 2, abs=1e-3)


def test_the_prior_that_a_logit_adjusted_model_has_built_in() -> None:
    mix = np.array([0.64, 0.36, 0.0])
    assert LogitAdjusted(adjustment=0.5).learned_prior(mix) == pytest.approx([0.8, 0.6, 0.0])
    assert LogitAdjusted().learned_prior(mix).tolist() == [1.0, 1.0, 0.0]


@dataclass(frozen=True)
class Squared(ClientRule):
    """Not affine."""

    def adjust_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        del counts
        return logits**2


@dataclass(frozen=True)
class OtherFactor(BinarySoftmax):
    """Affine, but the parent's map is not its own."""

    def adjust_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        return 2 * super().adjust_logits(logits, counts)


@dataclass(frozen=True)
class OtherFactorWithMap(OtherFactor):
    def logit_map(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        factor, offset = BinarySoftmax(absent_factor=self.absent_factor).logit_map(counts)
        return 2 * factor, offset


class Mixin:
    def adjust_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        del counts
        return -logits


@dataclass(frozen=True)
class Mixed(Mixin, BinarySoftmax):
    pass


@dataclass(frozen=True)
class Tuned(BinarySoftmax):
    """Changes nothing about logits."""


@pytest.mark.parametrize(
    "rule",
    [
        ClientRule(), FullBatch(), Proximal(), Scaffold(), BinarySoftmax(absent_factor=0.2), Tuned(),
        GradedSoftmax(absent_factor=0.2), LogitAdjusted(adjustment=0.4), CalibratedLogits(calibration=0.3),
        ImportanceWeighted(), OtherFactorWithMap(),
    ],
)  # fmt: skip
def test_the_map_of_logits_says_what_is_done_to_them(rule: ClientRule) -> None:
    logits = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    own = torch.tensor([50, 0, 30, 20])
    logit_map = rule.logit_map(own)
    assert logit_map is not None
    factor, offset = logit_map
    assert factor.dtype == offset.dtype == torch.float32
    assert torch.allclose(rule.adjust_logits(logits, own), factor * logits + offset)


@pytest.mark.parametrize("rule", [Squared(), OtherFactor(), Mixed()])
def test_a_rule_that_changes_logits_and_does_not_say_how_has_no_map(rule: ClientRule) -> None:
    assert rule.logit_map(torch.ones(3)) is None
