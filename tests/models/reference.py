"""The paper's small network by torch's own layers, to compare with."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedpals.models.compiled.network import SmallCNN

Shape = tuple[int, int, int]


def images(n: int, shape: Shape, seed: int = 0) -> Tensor:
    # No bytes, whose equal neighbours would tie in the pools: gradients then differ with the rounding.
    x = torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))
    return x.contiguous(memory_format=torch.channels_last)


def plain(model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Return a copy of the layers, one after the other, in the order that everyone writes."""
    assert isinstance(model, SmallCNN)
    convolutions, *rest = copy.deepcopy(model).children()
    first, second = convolutions.children()
    layers = nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2), *rest)
    return layers.to(dtype)


def flat(tensors: list[Tensor]) -> Tensor:
    """Return tensors as one vector, as `FlatModel` has it."""
    return torch.cat([(t.permute(0, 2, 3, 1) if t.dim() == 4 else t).reshape(-1) for t in tensors])


@dataclass(frozen=True)
class Step:
    """A loss, its gradient by parameter, and the network's outputs."""

    loss: float
    gradient: list[Tensor]
    logits: Tensor


def torch_step(layers: nn.Sequential, x: Tensor, y: Tensor, factor: Tensor, offset: Tensor, weights: Tensor) -> Step:
    dtype = next(layers.parameters()).dtype
    logits = layers(x.to(dtype))
    losses = nn.functional.cross_entropy(logits * factor.to(dtype) + offset.to(dtype), y, reduction="none")
    loss = (losses * weights.to(dtype)[y]).mean()
    gradient = list(torch.autograd.grad(loss, list(layers.parameters())))
    return Step(float(loss.detach()), gradient, logits.detach())


def error(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference by the largest number."""
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).abs().max() / wanted.abs().max())
