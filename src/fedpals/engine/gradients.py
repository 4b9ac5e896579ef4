"""The loss of a batch and its gradient, by the fastest way that computes what the network and the rule say.

The paper's CNN is computed by a compiled kernel (`fedpals.models.compiled`), logistic regression by its closed form,
every other network by torch's autograd.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpals.engine.flat_model import FlatModel
from fedpals.methods import ClientRule

LossAndGradient = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From samples, labels and the rows of a batch to the loss and the flat gradient, which the next call overwrites."""


def fastest(model: FlatModel, rule: ClientRule, marginal: Tensor, x: Tensor) -> LossAndGradient:
    """Return the fastest way for samples like ``x`` of a client with the label marginal S_i, (K,)."""
    kernel, linear, logit_map = model.kernel(x), _logistic_layer(model), rule.logit_map(marginal)
    if kernel is not None:
        if logit_map is None:
            return lambda x, y, rows: kernel.differentiate(
                model.vector, x, rows, lambda logits: cross_entropy(rule.adjust_logits(logits, marginal), y[rows])
            )
        adjustment = torch.cat(logit_map).numpy()
        return lambda x, y, rows: kernel.loss_and_gradient(model.vector, x, rows, y, adjustment)
    if linear is not None and logit_map is not None:
        return _closed_form(linear, *logit_map)
    return _by_autograd(model, rule, marginal)


def _by_autograd(model: FlatModel, rule: ClientRule, marginal: Tensor) -> LossAndGradient:
    def compute(x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        loss = cross_entropy(rule.adjust_logits(model.network(x[rows]), marginal), y[rows])
        return loss.detach(), model.gradient(loss)

    return compute


def _closed_form(layer: nn.Linear, factor: Tensor, offset: Tensor) -> LossAndGradient:
    """Return loss and gradient of logistic regression.

    With adjusted logits z = f · (W x + b) + o and errors e = f · (softmax(z) − [label]) / n, the gradient
    of W is Σ e xᵀ, and that of b is Σ e.
    """
    weight, bias = layer.weight.detach(), layer.bias.detach()
    gradient = torch.empty(weight.numel() + bias.numel(), dtype=weight.dtype, device=weight.device)
    weight_gradient, bias_gradient = gradient[: weight.numel()].view(weight.shape), gradient[weight.numel() :]

    def compute(x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        samples, labels = x[rows].flatten(1), y[rows, None]
        log_shares = torch.addmm(bias, samples, weight.T).mul_(factor).add_(offset).log_softmax(1)
        loss = -log_shares.gather(1, labels).mean()
        errors = log_shares.exp_().scatter_add_(1, labels, -torch.ones_like(labels, dtype=weight.dtype))
        errors.mul_(factor / len(rows))
        torch.mm(errors.T, samples, out=weight_gradient)
        torch.sum(errors, 0, out=bias_gradient)
        return loss, gradient

    return compute


def _logistic_layer(model: FlatModel) -> nn.Linear | None:
    """Return the only layer of a network that is logistic regression and trained whole, None of another."""
    layers = list(model.network.modules())
    kinds = [type(layer) for layer in layers]
    linear = layers[-1]
    if kinds not in ([nn.Linear], [nn.Sequential, nn.Flatten, nn.Linear]) or model.trained < len(model.vector):
        return None
    assert isinstance(linear, nn.Linear)
    hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)  # noqa: SLF001
    return None if hooked or linear.bias is None else linear
