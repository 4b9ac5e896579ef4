from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpals import rng
from fedpals.errors import InputError
from fedpals.models import build, prepare
from fedpals.models.networks import Layers, cnn, head, logistic


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("cnn", (3, 32, 32), 10, 62_006),
        ("cnn", (1, 28, 28), 10, 44_426),
        ("logistic", (1, 28, 28), 10, 7_850),
        ("logistic", (2,), 3, 9),
        ("head", (2048,), 7, 2048 * 2049 + 2049 * 7),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, count: int) -> None:
    assert parameters(build(name, shape=shape, classes=classes, seed=0)) == count


@pytest.mark.parametrize("name", ["logistic", "cnn", "head"])
@pytest.mark.parametrize(
    "shape", [(1, 4, 4), (1, 8, 8), (1, 15, 40), (3, 16, 16), (1, 17, 23), (1, 28, 28), (3, 32, 32), (4, 64, 48)]
)
def test_images_of_any_size_give_one_row_of_logits_each(name: str, shape: tuple[int, ...]) -> None:
    # A head on large images would have hundreds of millions of parameters.
    if name == "head" and math.prod(shape) > 1000:
        shape = (1, 5, 5)
    model = build(name, shape=shape, classes=5, seed=0)
    assert model.training
    assert model(torch.zeros(2, *shape)).shape == (2, 5)


@pytest.mark.parametrize("name", ["logistic", "head"])
def test_vectors_give_one_row_of_logits_each(name: str) -> None:
    assert build(name, shape=(12,), classes=4, seed=0)(torch.zeros(3, 12)).shape == (3, 4)


def test_the_cnn_is_the_papers_network() -> None:
    model = build("cnn", shape=(3, 32, 32), classes=10, seed=3)
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    w = list(model.parameters())
    hidden = functional.max_pool2d(functional.relu(functional.conv2d(x, w[0], w[1])), 2)
    hidden = functional.max_pool2d(functional.relu(functional.conv2d(hidden, w[2], w[3])), 2).flatten(1)
    hidden = functional.relu(functional.linear(hidden, w[4], w[5]))
    hidden = functional.relu(functional.linear(hidden, w[6], w[7]))
    assert torch.allclose(model(x), functional.linear(hidden, w[8], w[9]), atol=1e-6)


@pytest.mark.parametrize("shape", [(64,), (1, 3, 28), (3, 32)])
def test_the_cnn_refuses_what_is_no_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"at least 4×4.*use logistic or head"):
        build("cnn", shape=shape, classes=10, seed=0)


@pytest.mark.parametrize("name", ["logistic", "cnn", "head"])
def test_the_seed_decides_and_nothing_else(name: str) -> None:
    one, other, changed = (build(name, shape=(1, 8, 8), classes=10, seed=seed) for seed in (5, 5, 6))
    assert equal(one, other)
    assert not equal(one, changed)


@pytest.mark.parametrize(("name", "layers"), [("logistic", logistic), ("cnn", cnn), ("head", head)])
def test_initial_values_are_those_that_torch_draws_from_the_same_seed(name: str, layers: Layers) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.integer_seed(9, "model"))
        expected = layers((1, 16, 16), 10)
    assert equal(build(name, shape=(1, 16, 16), classes=10, seed=9), expected)


def test_initial_values_fill_the_interval_of_one_over_the_root_of_the_inputs() -> None:
    for module in build("cnn", shape=(3, 32, 32), classes=10, seed=1).children():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(module.weight[0].numel())
            for values in (module.weight, module.bias):
                assert values is not None
                assert values.abs().max() <= bound
            assert module.weight.abs().max() > 0.9 * bound
            assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(
        InputError, match=r"'resnet18'; it is one of logistic, linear, mlp, cnn, head, resnet50, mobilenet_v2, .*, or"
    ):
        build("resnet18", shape=(3, 32, 32), classes=10, seed=0)


def test_weights_are_for_backbones() -> None:
    with pytest.raises(InputError, match="only a backbone takes weights: resnet50, mobilenet_v2, resnet50_blocks"):
        build("cnn", shape=(3, 32, 32), classes=10, seed=0, weights=Path("w.pth"))
    with pytest.raises(InputError, match="load its weights in the function"):
        build("a:b", shape=(3, 32, 32), classes=10, seed=0, weights=Path("w.pth"))


def test_bytes_are_scaled_to_between_minus_one_and_one() -> None:
    x = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    expected = (x.astype(np.float64) / 255 - 0.5) / 0.5
    found = prepare(x).numpy()
    assert found.dtype == np.float32
    assert np.array_equal(found, expected.astype(np.float32))
    assert (found.min(), found.max()) == (-1, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_come_last_in_memory_and_stay_last(channels: int) -> None:
    x = np.random.default_rng(0).integers(256, size=(5, channels, 28, 20), dtype=np.uint8)
    x.setflags(write=False)
    images = prepare(x)
    assert images.shape == x.shape
    assert images.stride() == (channels * 560, 1, channels * 20, channels)
    assert torch.equal(images, prepare(np.asfortranarray(x)))
    convolution = build("cnn", shape=(channels, 28, 20), classes=3, seed=0).get_submodule("0.0")
    convolved = convolution(images)
    assert convolved.is_contiguous(memory_format=torch.channels_last)
    assert not convolved.is_contiguous()


def test_vectors_stay_as_they_are() -> None:
    x = np.array([[0.5, -300.0], [255.0, 1e-3]], dtype=np.float32)
    for given in (x, x.astype(np.float64), np.asfortranarray(x)):
        assert torch.equal(prepare(given), torch.tensor(x))
    x.setflags(write=False)
    assert torch.equal(prepare(x), torch.tensor(x))


@pytest.mark.parametrize("x", [np.zeros((2, 4), np.uint8), np.zeros((2, 3, 4), np.float32), np.zeros((2, 4), int)])
def test_samples_that_no_model_takes_are_refused(x: npt.NDArray[Any]) -> None:
    with pytest.raises(InputError, match=r"samples are .* of shape \(2, .*models take images, uint8"):
        prepare(x)


OWN = """
import torch
from torch import nn

def good(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.LazyLinear(classes))

def many(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes + 1))

def unfit(shape, classes):
    return nn.Linear(1000, classes)

def pair(shape, classes):
    class Pair(nn.Module):
        def forward(self, x):
            return x, x
    return Pair()

def text(shape, classes):
    return "a model"

def narrow(shape):
    return nn.Flatten()

number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_models", raising=False)


@pytest.mark.usefixtures("own")
def test_ones_own_function_is_a_model_like_any_other() -> None:
    one, other, changed = (build("own_models:good", shape=(1, 4, 4), classes=3, seed=seed) for seed in (1, 1, 2))
    assert one.training
    assert one(torch.zeros(2, 1, 4, 4)).shape == (2, 3)
    assert equal(one, other)
    assert not equal(one, changed)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_models:", "written package.module:function"),
        (":good", "written package.module:function"),
        ("own models:good", "written package.module:function"),
        ("own_models:good:better", "written package.module:function"),
        ("no_such_module:good", r"cannot import no_such_module .*PYTHONPATH"),
        ("own_models:absent", "own_models has no absent"),
        ("own_models:number", "number is a int, not a function"),
        ("own_models:narrow", r"narrow\(shape\) needs other arguments; let it take \(shape, classes\), or nothing"),
        ("own_models:text", "returned a str; return a torch.nn.Module"),
        ("own_models:many", r"gave \(1, 4\) for one sample, not \(1, 3\); .*samples of shape 1×4×4 to 3 numbers"),
        ("own_models:pair", "gave tuple for one sample"),
        ("own_models:unfit", r"failed on one sample \(RuntimeError: mat1 and mat2"),
    ],
)
def test_ones_own_function_fails_with_the_reason(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, shape=(1, 4, 4), classes=3, seed=0)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", ["logistic", "cnn", "head", "own_models:good", "own_models:many"])
def test_the_global_generator_is_left_alone(name: str) -> None:
    before = torch.get_rng_state()
    try:
        build(name, shape=(1, 8, 8), classes=3, seed=0)
    except InputError:
        assert name.endswith("many")
    assert torch.equal(torch.get_rng_state(), before)


def test_without_torch_the_extra_is_named() -> None:
    code = "import sys; sys.modules['torch'] = None; import fedpals.models"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "building models needs the optional packages: pip install 'fedpals[learn]'" in done.stderr
