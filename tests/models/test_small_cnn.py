"""The paper's small network as a torch module and in the engine: where it is compiled, and where torch computes it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpals.engine.client import local_update
from fedpals.engine.flat_model import FlatModel
from fedpals.engine.plan import Plan
from fedpals.methods import ClientRule
from fedpals.methods.full_batch import FullBatch
from fedpals.methods.logit_adjusted import LogitAdjusted
from fedpals.methods.proximal import Proximal
from fedpals.methods.restricted_softmax import GradedSoftmax
from fedpals.methods.scaffold import Scaffold
from fedpals.models import build, prepare
from fedpals.models.compiled.network import SmallCNN
from tests.models.reference import Shape, error, flat, images, plain

SHAPES = [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 17, 23)]


@pytest.mark.parametrize("n", [1, 7, 65, 300])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_torch_makes_of_the_logits_is_differentiated(n: int, shape: Shape) -> None:
    network = build("cnn", shape=shape, classes=10, seed=0)
    reference, x, rows = plain(network), images(n + 3, shape), torch.arange(n) + 2
    model = FlatModel(network)
    kernel = model.kernel(x)
    assert kernel is not None
    loss, gradient = kernel.differentiate(model.vector, x, rows, lambda logits: logits.sigmoid().square().mean())
    outputs = reference(x[rows].double())
    wanted = outputs.sigmoid().square().mean()
    assert float(loss) == pytest.approx(float(wanted.detach()), rel=1e-6)
    assert error(gradient, flat(list(torch.autograd.grad(wanted, list(reference.parameters()))))) < 3e-6
    assert error(model.logits(x[rows]), outputs) < 1e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_samples_do_not_depend_on_their_neighbours_nor_on_the_layout(shape: Shape) -> None:
    model = FlatModel(build("cnn", shape=shape, classes=10, seed=0))
    x = images(9, shape)
    together = model.logits(x)
    assert torch.equal(together, torch.cat([model.logits(x[i : i + 1]) for i in range(9)]))
    assert torch.equal(together, model.logits(x.contiguous()))
    assert torch.allclose(together, model.network(x), atol=1e-6)
    features, last = model.features(x), list(model.network.children())[-1]
    assert features is not None
    assert torch.allclose(last(features), together, atol=1e-6)


def test_a_diverged_network_says_so() -> None:
    network = build("cnn", shape=(1, 28, 28), classes=10, seed=0)
    for name, parameter in network.named_parameters():
        if name.startswith("0."):
            nn.init.constant_(parameter, float("nan"))
    assert FlatModel(network).logits(images(2, (1, 28, 28))).isnan().all()


class TestTorchComputes:
    """Whatever the kernel does not compute, or not as the layers would."""

    def compute(self, network: nn.Module, x: Tensor, *, compiled: bool = False) -> Tensor:
        model = FlatModel(network)
        assert (model.kernel(x) is not None) == compiled
        return model.logits(x)

    def test_double_precision_and_no_samples(self) -> None:
        network = build("cnn", shape=(1, 28, 28), classes=10, seed=0)
        assert network(torch.empty(0, 1, 28, 28)).shape == (0, 10)
        assert FlatModel(network).kernel(torch.empty(0, 1, 28, 28)) is None
        assert FlatModel(network).kernel(images(3, (1, 28, 28)).double()) is None

    def test_other_sizes_that_happen_to_fit(self) -> None:
        network = build("cnn", shape=(1, 28, 28), classes=10, seed=0)
        x = images(3, (1, 29, 29))  # as many features, as the pools leave a row out
        wanted = plain(network)(x.double())
        assert error(self.compute(network, x), wanted) < 1e-6

    def test_layers_that_were_exchanged(self) -> None:
        x = images(3, (1, 28, 28))
        network = build("cnn", shape=(1, 28, 28), classes=10, seed=0)
        assert isinstance(network, SmallCNN)
        before = self.compute(network, x, compiled=True)
        network[3] = nn.Tanh()
        assert not torch.allclose(self.compute(network, x), before)
        network[6] = nn.Linear(84, 4)
        assert self.compute(network, x).shape == (3, 4)

    @pytest.mark.parametrize("hooked", [0, -1])
    def test_hooks(self, hooked: int) -> None:
        x, seen = images(3, (1, 28, 28)), []
        network = build("cnn", shape=(1, 28, 28), classes=10, seed=0)
        with list(network.modules())[hooked].register_forward_hook(lambda *given: seen.append(given)):
            self.compute(network, x)
        assert len(seen) == 1
        self.compute(network, x, compiled=True)

    def test_frozen_layers_in_the_engine(self) -> None:
        network = build("cnn", shape=(1, 28, 28), classes=10, seed=0)
        next(network.parameters()).requires_grad_(False)
        x = images(20, (1, 28, 28))
        outputs = plain(network)(x.double())
        model = FlatModel(network)
        assert model.kernel(x) is None
        assert error(model.logits(x), outputs) < 1e-6
        rng = np.random.default_rng(0)
        before = model.vector.clone()
        y, counts = torch.zeros(20, dtype=torch.int64), torch.ones(10)
        after = local_update(model, before, x, y, counts, ClientRule(), Plan(), rng).vector
        assert torch.equal(before[model.trained :], after[model.trained :])
        assert not torch.equal(before, after)


def test_copies_and_pickles_compute_the_same() -> None:
    model = build("cnn", shape=(1, 28, 28), classes=10, seed=0)
    x = images(3, (1, 28, 28))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))


def test_saved_models_keep_their_names() -> None:
    model = build("cnn", shape=(1, 28, 28), classes=10, seed=0)
    names = [f"{layer}.{kind}" for layer in ("0.0", "0.1", "2", "4", "6") for kind in ("weight", "bias")]
    assert list(model.state_dict()) == names


def client(shape: Shape, n: int = 90) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of a client that lacks some labels, with its label counts."""
    rng = np.random.default_rng(0)
    x = prepare(rng.integers(256, size=(n, *shape), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(6, size=n))
    return x, y, torch.bincount(y, minlength=10)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch_size", [7, 32])
def test_training_follows_torch_and_repeats_to_the_bit(shape: Shape, batch_size: int) -> None:
    """A client's round of SGD against the same steps by torch's optimiser in float64."""
    x, y, counts = client(shape)
    network = build("cnn", shape=shape, classes=10, seed=0)
    reference = plain(network)
    model = FlatModel(network)
    start = model.vector.clone()
    plan = Plan(batch_size=batch_size, learning_rate=0.02)
    one, other = (
        local_update(model, start, x, y, counts, ClientRule(), plan, np.random.default_rng(1)) for _ in range(2)
    )
    assert torch.equal(one.vector, other.vector)
    assert one.loss == other.loss
    losses = _train(reference, x, y, batch_size)
    assert one.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    for found, wanted in zip(network.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(found.double(), wanted, rtol=0, atol=1e-5)


def _train(reference: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> list[float]:
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.02)
    order, losses = np.random.default_rng(1).permutation(len(y)), []
    for at in range(0, len(y), batch_size):
        batch = order[at : at + batch_size]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(reference(x[batch].double()), y[batch])
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@dataclass(frozen=True)
class SameLogits(GradedSoftmax):
    """The parent's logits, but it does not say that they are affine: torch computes with them."""

    def adjust_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        return super().adjust_logits(logits, counts)


@dataclass(frozen=True)
class SameAdjusted(LogitAdjusted):
    def adjust_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        return super().adjust_logits(logits, counts)


@dataclass(frozen=True)
class SamePlain(ClientRule):
    def adjust_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        return super().adjust_logits(logits, counts)


@dataclass(frozen=True)
class SameFullBatch(FullBatch):
    def adjust_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        return super().adjust_logits(logits, counts)


@pytest.mark.parametrize(
    ("rule", "by_torch"),
    [
        (ClientRule(), SamePlain()),
        (GradedSoftmax(absent_factor=0.3), SameLogits(absent_factor=0.3)),
        (LogitAdjusted(adjustment=0.7), SameAdjusted(adjustment=0.7)),
        (FullBatch(), SameFullBatch()),
    ],
)
@pytest.mark.parametrize("augment", [None, "flip"])
def test_rules_that_do_not_say_what_they_do_to_logits_give_the_same(
    rule: ClientRule, by_torch: ClientRule, augment: str | None
) -> None:
    x, y, counts = client((1, 28, 28))
    assert by_torch.logit_map(counts) is None
    model = FlatModel(build("cnn", shape=(1, 28, 28), classes=10, seed=0))
    start = model.vector.clone()
    plan = Plan.model_validate({"batch_size": 20, "epochs": 2, "augment": augment, "learning_rate": 0.02})
    ends = [
        local_update(model, start, x, y, counts, each, plan, np.random.default_rng(1)).vector - start
        for each in (rule, by_torch)
    ]
    assert error(ends[0], ends[1]) < 1e-4
    assert float(ends[0].abs().max()) > 0


@pytest.mark.parametrize("rule", [Proximal(proximal_weight=0.5), Scaffold(), LogitAdjusted(), GradedSoftmax()])
@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimizer": "adam"}, {"clip_norm": 0.5}])
def test_hooks_on_the_gradient_and_optimisers_work_as_ever(rule: ClientRule, settings: dict[str, object]) -> None:
    """The compiled gradient goes through them as torch's does; here that of the layers, one by one."""
    x, y, counts = client((1, 8, 8))
    plan = Plan.model_validate({"batch_size": 30, "epochs": 2, "learning_rate": 0.01, **settings})
    ends = []
    for hooked in (False, True):
        network = build("cnn", shape=(1, 8, 8), classes=10, seed=0)
        if hooked:
            list(network.children())[-1].register_forward_hook(lambda *_: None)
        model = FlatModel(network)
        start = model.vector.clone()
        server = torch.full_like(start, 0.01)
        update = local_update(model, start, x, y, counts, rule, plan, np.random.default_rng(1), server=server)
        ends.append(update.vector - start)
        assert (model.kernel(x) is None) == hooked
    assert error(ends[0], ends[1]) < 2e-3 if "optimizer" in settings else error(ends[0], ends[1]) < 1e-4


def test_threads_have_kernels_of_their_own() -> None:
    x, y, counts = client((1, 28, 28), 400)
    ends: dict[int, list[Tensor]] = {0: [], 1: []}

    def train(number: int) -> None:
        model = FlatModel(build("cnn", shape=(1, 28, 28), classes=10, seed=0))
        start = model.vector.clone()
        for _ in range(3):
            rng = np.random.default_rng(1)
            ends[number].append(local_update(model, start, x, y, counts, ClientRule(), Plan(), rng).vector)

    threads = [threading.Thread(target=train, args=(number,)) for number in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(vector, ends[0][0]) for vectors in ends.values() for vector in vectors)


def test_the_compiler_is_imported_only_to_compile() -> None:
    code = (
        "import sys, torch; from fedpals.engine.flat_model import FlatModel; from fedpals.models import build; "
        "model = FlatModel(build('cnn', shape=(1, 8, 8), classes=2, seed=0)); assert 'llvmlite' not in sys.modules; "
        "model.logits(torch.zeros(1, 1, 8, 8)); assert 'llvmlite' in sys.modules; assert 'numba' not in sys.modules"
    )
    FlatModel(build("cnn", shape=(1, 8, 8), classes=2, seed=0)).logits(torch.zeros(1, 1, 8, 8))  # compiled by now
    subprocess.run([sys.executable, "-c", code], check=True)
