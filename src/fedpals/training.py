"""The one local loop: how a client turns the global parameters into its own.

The parameters of a network are one flat float32 vector, of which the layers hold views. A client's
round takes that vector and the client's samples and returns a new vector; methods differ only in the
hooks of a `ClientRule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpals.augmentation import Augmentation, augmented
from fedpals.labels import Vector
from fedpals.methods import ClientRule

Optimizer: TypeAlias = Literal["sgd", "adam"]

_EVALUATION_BATCH = 512


@dataclass(frozen=True)
class Plan:
    """How long and in which steps a client trains in one round; the optimiser is new each time."""

    epochs: int = 1
    steps: int | None = None
    """Stop after so many steps, within or across epochs, instead of after ``epochs``."""
    batch_size: int = 32
    optimizer: Optimizer = "sgd"
    learning_rate: float = 0.1
    augment: Augmentation | None = None
    """How images are changed at random in every epoch."""


@dataclass(frozen=True, eq=False)
class Update:
    """What a client sends back."""

    vector: Tensor
    loss: float
    """Mean loss over the steps."""
    steps: int
    state: Tensor | None = None
    """The rule's new vector of this client."""


class FlatModel:
    """A network whose parameters and float buffers are views of one vector.

    Weights of convolutions lie in channels_last order, which a CPU reads fastest. Integer buffers are
    no parameters: they stay as the network was built and are never averaged.
    """

    def __init__(self, network: nn.Module, device: str = "cpu") -> None:
        self.network = network.to(device)
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        frozen = [p for p in network.parameters() if not p.requires_grad]
        buffers = [b for b in network.buffers() if b.is_floating_point()]
        self.trained = sum(p.numel() for p in self.parameters)
        tensors: list[Tensor] = [*self.parameters, *frozen, *buffers]
        self.vector = torch.empty(sum(t.numel() for t in tensors), dtype=torch.float32, device=device)
        at = 0
        for tensor in tensors:
            view = _view(self.vector[at : at + tensor.numel()], tensor.shape)
            view.copy_(tensor.detach())
            tensor.data = view
            at += tensor.numel()

    def load(self, vector: Tensor) -> None:
        """Copy ``vector`` into the network."""
        self.vector.copy_(vector)

    def gradient(self, loss: Tensor) -> Tensor:
        """Return ∂loss/∂parameters as a flat vector in the order of ``vector``."""
        return torch.cat([_flat(g) for g in torch.autograd.grad(loss, self.parameters)])

    def logits(self, x: Tensor) -> Tensor:
        """Return the network's output for all samples, (n, K), without gradients."""
        self.network.eval()
        with torch.inference_mode():
            return torch.cat([self.network(part) for part in _parts(x)])

    def features(self, x: Tensor) -> Tensor | None:
        """Return what the last layer sees of all samples, (n, d); None where it is not linear with a bias."""
        found = self._last_linear()
        if found is None:
            return None
        seen: list[Tensor] = []
        outputs: list[Tensor] = []

        def see(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen.append(inputs[0])
            outputs.append(output)

        self.network.eval()
        with found[1].register_forward_hook(see), torch.inference_mode():
            ends = all(self.network(part) is outputs[-1] for part in _parts(x))
        return torch.cat(seen) if ends else None

    def last_layer(self, weight: Vector, bias: Vector) -> dict[str, Tensor]:
        """Return entries for the network's state that give its last layer other parameters."""
        found = self._last_linear()
        assert found is not None
        values = {"weight": weight, "bias": bias}
        return {f"{found[0]}.{key}".lstrip("."): torch.from_numpy(value).float() for key, value in values.items()}

    def last_parameters(self) -> tuple[Vector, Vector]:
        """Return weight, (K, d), and bias, (K,), of the network's last layer."""
        found = self._last_linear()
        assert found is not None
        weight, bias = (values.detach().double().cpu().numpy() for values in (found[1].weight, found[1].bias))
        return weight, bias

    def _last_linear(self) -> tuple[str, nn.Linear] | None:
        """Return the name of the last layer and the layer, where it is linear with a bias."""
        layers = [(name, m) for name, m in self.network.named_modules() if isinstance(m, nn.Linear)]
        return layers[-1] if layers and layers[-1][1].bias is not None else None


def _parts(x: Tensor) -> Iterator[Tensor]:
    """Yield as many samples at a time as are evaluated together."""
    return (x[i : i + _EVALUATION_BATCH] for i in range(0, len(x), _EVALUATION_BATCH))


def _view(flat: Tensor, shape: torch.Size) -> Tensor:
    if len(shape) == 4:
        out, inside, height, width = shape
        return flat.view(out, height, width, inside).permute(0, 3, 1, 2)
    return flat.view(shape)


def _flat(tensor: Tensor) -> Tensor:
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).reshape(-1)


def batches(x: Tensor, y: Tensor, plan: Plan, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the samples of each step: shuffled epochs, cut into batches; the last of an epoch may be short."""
    step = 0
    for _ in range(plan.epochs) if plan.steps is None else count():
        order = torch.from_numpy(rng.permutation(len(y))).to(x.device)
        shuffled_x, shuffled_y = _seen(x[order], plan, rng), y[order]  # gathered once: a batch is a mere slice
        for start in range(0, len(y), plan.batch_size):
            if step == plan.steps:
                return
            end = start + plan.batch_size
            yield shuffled_x[start:end], shuffled_y[start:end]
            step += 1


def _seen(x: Tensor, plan: Plan, rng: np.random.Generator) -> Tensor:
    return x if plan.augment is None else augmented(x, plan.augment, rng)


def local_update(
    model: FlatModel,
    start: Tensor,
    x: Tensor,
    y: Tensor,
    marginal: Tensor,
    rule: ClientRule,
    plan: Plan,
    rng: np.random.Generator,
    *,
    server: Tensor | None = None,
    client: Tensor | None = None,
) -> Update:
    """Train one client for one round.

    Parameters
    ----------
    model
        The worker's network; what it held before does not matter.
    start
        The global parameters w_t, a flat vector.
    x, y
        The client's samples, prepared, and their labels.
    marginal
        (K,) the client's own label marginal S_i.
    rule, plan, rng
        How to train, how long, and the generator that shuffles.
    server, client
        The rule's vectors of the server and of this client, None where it keeps none.
    """
    model.load(start)
    model.network.train()
    weights = model.vector[: model.trained]
    anchor = start[: model.trained]
    correction = rule.correction(server, client, anchor)
    take_step = _OPTIMIZERS[plan.optimizer](weights, plan.learning_rate)
    losses = []
    for inputs, labels in [(_seen(x, plan, rng), y)] if rule.full_batch else batches(x, y, plan, rng):
        loss = cross_entropy(rule.adjust_logits(model.network(inputs), marginal), labels)
        gradient = model.gradient(loss)
        rule.adjust_gradient(gradient, weights, anchor, correction)
        take_step(gradient)
        losses.append(loss.detach())
    steps = len(losses)
    state = rule.client_state(correction, client, anchor, weights, steps, plan.learning_rate)
    return Update(model.vector.clone(), float(torch.stack(losses).double().mean()), steps, state)


def _sgd(weights: Tensor, learning_rate: float) -> Callable[[Tensor], None]:
    """Plain SGD; by hand, because torch's optimiser takes a tenth of a small network's step."""

    def take_step(gradient: Tensor) -> None:
        weights.sub_(gradient, alpha=learning_rate)

    return take_step


def _adam(weights: Tensor, learning_rate: float) -> Callable[[Tensor], None]:
    optimizer = torch.optim.Adam([weights], lr=learning_rate, fused=True)  # one pass instead of seven

    def take_step(gradient: Tensor) -> None:
        weights.grad = gradient
        optimizer.step()

    return take_step


_OPTIMIZERS = {"sgd": _sgd, "adam": _adam}


def mean_loss(model: FlatModel, vector: Tensor, x: Tensor, y: Tensor) -> float:
    """Return the mean cross-entropy of the parameters ``vector`` on a client's samples."""
    model.load(vector)
    return float(cross_entropy(model.logits(x), y))
