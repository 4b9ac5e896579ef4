"""The fused convolutions against torch's own layers in float64."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpals.engine.client import local_update
from fedpals.engine.flat_model import FlatModel
from fedpals.engine.plan import Plan
from fedpals.methods import ClientRule
from fedpals.models import build, prepare

Shape = tuple[int, int, int]
SHAPES = [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 17, 23), (1, 4, 4)]
"""The paper's two, the padded ones with their smallest, and odd sides."""


def images(n: int, shape: Shape, seed: int = 0) -> Tensor:
    # No bytes, whose equal neighbours would tie in the pools: gradients then differ with the rounding.
    x = torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))
    return x.contiguous(memory_format=torch.channels_last)


def plain(model: nn.Module) -> nn.Sequential:
    """The same layers, one after the other, in float64."""
    convolutions, *rest = model.children()
    first, second = convolutions.children()
    layers = nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2), *rest)
    with torch.random.fork_rng(devices=[]):
        return nn.Sequential(*(_double(layer) for layer in layers))


def _double(layer: nn.Module) -> nn.Module:
    match layer:
        case nn.Conv2d():
            copy: nn.Module = nn.Conv2d(layer.in_channels, layer.out_channels, 5, padding=layer.padding[0])
        case nn.Linear():
            copy = nn.Linear(layer.in_features, layer.out_features)
        case _:
            return layer
    copy.load_state_dict(layer.state_dict())
    return copy.double()


@pytest.mark.parametrize("n", [1, 7, 32, 33, 50])
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_gradients_are_those_of_torch(n: int, shape: Shape) -> None:
    model = build("cnn", shape=shape, classes=10, seed=0)
    reference = plain(model)
    x = images(n, shape)
    outputs, expected = model(x), reference(x.double())
    assert torch.allclose(outputs.double(), expected, rtol=0, atol=1e-6)
    direction = torch.randn(n, 10, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad(outputs, list(model.parameters()), direction)
    theirs = torch.autograd.grad(expected, list(reference.parameters()), direction.double())
    for found, wanted in zip(ours, theirs, strict=True):
        assert torch.allclose(found.double(), wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("shape", SHAPES)
def test_samples_do_not_depend_on_their_neighbours_nor_on_the_layout(shape: Shape) -> None:
    convolutions = build("cnn", shape=shape, classes=10, seed=0).get_submodule("0")
    x = images(9, shape)
    together = convolutions(x)
    assert torch.equal(together, torch.cat([convolutions(x[i : i + 1]) for i in range(9)]))
    assert torch.equal(together, convolutions(x.contiguous()))
    with torch.inference_mode():
        assert torch.equal(together, convolutions(x))


def test_equal_pixels_pass_their_gradient_to_the_first_as_in_torch() -> None:
    model = build("cnn", shape=(1, 28, 28), classes=10, seed=0)
    x = torch.full((2, 1, 28, 28), 0.5)  # every pool ties
    first = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    reference = plain(model)
    second = torch.autograd.grad(reference(x.double()).square().sum(), list(reference.parameters()))
    for found, wanted in zip(first, second, strict=True):
        assert torch.allclose(found.double(), wanted, rtol=1e-4, atol=1e-6)


def test_a_diverged_network_says_so() -> None:
    model = build("cnn", shape=(1, 28, 28), classes=10, seed=0)
    for name, parameter in model.named_parameters():
        if name.startswith("0."):
            nn.init.constant_(parameter, float("nan"))
    assert model(images(2, (1, 28, 28))).isnan().all()


@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("batch_size", [7, 32])
def test_training_follows_torch_and_repeats_to_the_bit(shape: Shape, batch_size: int) -> None:
    """A client's round of SGD against the same steps by torch's optimiser in float64."""
    rng = np.random.default_rng(0)
    x = prepare(rng.integers(256, size=(90, *shape), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(10, size=90))
    network = build("cnn", shape=shape, classes=10, seed=0)
    reference = plain(network)
    model = FlatModel(network)
    start = model.vector.clone()
    plan = Plan(batch_size=batch_size, learning_rate=0.02)
    one, other = (
        local_update(model, start, x, y, torch.ones(10, dtype=torch.bool), ClientRule(), plan, np.random.default_rng(1))
        for _ in range(2)
    )
    assert torch.equal(one.vector, other.vector)
    assert one.loss == other.loss

    optimizer = torch.optim.SGD(reference.parameters(), lr=0.02)
    order = np.random.default_rng(1).permutation(90)
    for at in range(0, 90, batch_size):
        batch = order[at : at + batch_size]
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(reference(x[batch].double()), y[batch]))
        optimizer.step()
    for found, wanted in zip(network.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(found.double(), wanted, rtol=0, atol=1e-5)


def test_where_the_images_need_gradients_torch_computes_them() -> None:
    model = build("cnn", shape=(1, 28, 28), classes=10, seed=0)
    x = images(3, (1, 28, 28))
    assert torch.allclose(model(x), model(x.clone().requires_grad_()), atol=1e-6)
    wanted = x.double().requires_grad_()
    found = x.clone().requires_grad_()
    (ours,) = torch.autograd.grad(model(found).sum(), found)
    (theirs,) = torch.autograd.grad(plain(model)(wanted).sum(), wanted)
    assert torch.allclose(ours.double(), theirs, atol=1e-6)


def test_saved_models_keep_their_names() -> None:
    model = build("cnn", shape=(1, 28, 28), classes=10, seed=0)
    names = [f"{layer}.{kind}" for layer in ("0.0", "0.1", "2", "4", "6") for kind in ("weight", "bias")]
    assert list(model.state_dict()) == names


def test_the_compiler_is_imported_only_for_the_network_that_needs_it() -> None:
    code = (
        "import sys; from fedpals.models import build; build('logistic', shape=(1, 8, 8), classes=2, seed=0); "
        "assert 'numba' not in sys.modules; build('cnn', shape=(1, 8, 8), classes=2, seed=0); "
        "assert 'numba' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
