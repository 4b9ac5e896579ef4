"""Loss and gradient of a step: every way against torch's autograd in double precision."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpals.engine.flat_model import FlatModel
from fedpals.engine.gradients import fastest
from fedpals.methods import ClientRule
from fedpals.methods.logit_adjusted import LogitAdjusted
from fedpals.methods.restricted_softmax import GradedSoftmax
from fedpals.models import build

LABELS = 5
COUNTS = torch.tensor([4, 0, 3, 2, 1])
WEIGHTS = torch.tensor([0.3, 2.0, 0.0, 1.0, 1.7])


def no_bias() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, LABELS, bias=False))


def shared() -> nn.Module:
    network = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, LABELS))
    network[2].weight = network[0].weight
    return network


def tanh() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, LABELS))


def frozen() -> nn.Module:
    network = nn.Sequential(nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, LABELS))
    network[0].requires_grad_(False)
    return network


def relu_first() -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Linear(12, LABELS))


def relu_last() -> nn.Module:
    return nn.Sequential(nn.Linear(12, LABELS), nn.ReLU())


def ours(name: str) -> Callable[[], nn.Module]:
    return lambda: build(name, shape=(12,), classes=LABELS, seed=0)


def step(
    network: nn.Module, x: Tensor, rule: ClientRule, weights: Tensor | None = None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], bool]:
    """Loss and gradient, ours and autograd's, and whether ours called the network."""
    calls: list[bool] = []
    model, reference = FlatModel(network), copy.deepcopy(network).double()
    forward = network.forward
    network.forward = lambda *inputs: calls.append(True) or forward(*inputs)  # type: ignore[func-returns-value]
    y, rows = torch.arange(len(x)) % LABELS, torch.tensor([3, 0, 5])
    compute = fastest(model, rule, COUNTS, x, weights)
    compute(x, y, torch.tensor([1, 2]))  # whatever it leaves behind must not matter
    calls.clear()
    loss_of_ours, gradient = compute(x, y, rows)
    losses = cross_entropy(rule.adjust_logits(reference(x[rows].double()), COUNTS), y[rows], reduction="none")
    loss = (losses if weights is None else losses * weights.double()[y[rows]]).mean()
    gradients = torch.autograd.grad(loss, [p for p in reference.parameters() if p.requires_grad])
    found = torch.as_tensor(loss_of_ours), gradient
    return found, (loss.detach(), torch.cat([g.reshape(-1) for g in gradients])), bool(calls)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("rule", [ClientRule(), GradedSoftmax(absent_factor=0.3), LogitAdjusted(adjustment=0.7)])
@pytest.mark.parametrize(
    ("make", "called"),
    [
        (ours("logistic"), False), (ours("linear"), False), (ours("mlp"), False), (ours("head"), False),
        (lambda: nn.Linear(12, LABELS), False), (no_bias, True), (shared, True), (tanh, True), (frozen, True),
        (relu_first, True), (relu_last, True),
    ],
)  # fmt: skip
def test_gradients_are_those_of_autograd(
    make: Callable[[], nn.Module], called: bool, rule: ClientRule, weights: Tensor | None
) -> None:
    torch.manual_seed(0)
    found, wanted, network_called = step(make(), torch.randn(6, 12), rule, weights)
    assert network_called == called
    assert torch.allclose(found[0].double(), wanted[0], rtol=1e-6)
    assert torch.allclose(found[1].double(), wanted[1], atol=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_images_are_flattened_as_the_layers_do(layout: torch.memory_format) -> None:
    x = torch.randn(6, 3, 2, 2, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=layout)
    found, wanted, called = step(build("mlp", shape=(3, 2, 2), classes=LABELS, seed=0), x, ClientRule())
    assert not called
    assert torch.allclose(found[1].double(), wanted[1], atol=1e-6)


def test_hooks_are_called() -> None:
    network, seen = build("logistic", shape=(12,), classes=LABELS, seed=0), []
    with list(network.children())[-1].register_forward_hook(lambda *given: seen.append(given)):
        fastest(FlatModel(network), ClientRule(), COUNTS, torch.zeros(2, 12))(
            torch.zeros(2, 12), torch.tensor([0, 1]), torch.tensor([0, 1])
        )
    assert len(seen) == 1


def test_what_is_not_finite_stays_so() -> None:
    x = torch.randn(6, 12, generator=torch.Generator().manual_seed(0))
    x[0, 4] = float("nan")
    (loss, gradient), _, _ = step(build("mlp", shape=(12,), classes=LABELS, seed=0), x, ClientRule())
    assert bool(loss.isnan())
    assert bool(gradient.isnan().any())
