"""The loss of a batch and its gradient, by the fastest way that computes what the network and the rule say.

The paper's CNN is computed by a compiled kernel (`fedpals.models.compiled`), linear layers with ReLU between them by
their own few lines, every other network by torch's autograd.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from fedpals.engine.flat_model import FlatModel
from fedpals.methods import ClientRule

LossAndGradient = Callable[[Tensor, Tensor, Tensor], tuple[Tensor | float, Tensor]]
"""From samples, labels and the rows of a batch to the loss and the flat gradient, which the next call overwrites."""


def fastest(
    model: FlatModel, rule: ClientRule, counts: Tensor, x: Tensor, label_weights: Tensor | None = None
) -> LossAndGradient:
    """Return the fastest way for samples like ``x`` of a client with the label ``counts``, (K,).

    The loss of a batch is the mean of its samples' losses, each times the weight of its label, (K,), where there are
    ``label_weights``.
    """
    kernel, logit_map = model.kernel(x), rule.logit_map(counts)

    def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
        adjusted = rule.adjust_logits(logits, counts)
        if label_weights is None:
            return cross_entropy(adjusted, labels)
        return cross_entropy(adjusted, labels, label_weights, reduction="sum") / len(labels)

    if kernel is not None:
        if logit_map is None:
            return lambda x, y, rows: kernel.differentiate(
                model.vector, x, rows, lambda logits: loss_of(logits, y[rows])
            )
        weights = torch.ones_like(logit_map[0]) if label_weights is None else label_weights
        return kernel.loss_and_gradient(model.vector, torch.cat([*logit_map, weights]))
    if logit_map is not None and (layers := _linear_layers(model, x)):
        return _by_hand(layers, *logit_map, label_weights)
    return _by_autograd(model, loss_of)


def _by_autograd(model: FlatModel, loss_of: Callable[[Tensor, Tensor], Tensor]) -> LossAndGradient:
    def compute(x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        loss = loss_of(model.network(_select(x, rows)), y.index_select(0, rows))
        return loss.detach(), model.gradient(loss)

    return compute


def _select(x: Tensor, rows: Tensor) -> Tensor:
    """Return x[rows], images with their channels last in memory; torch's own indexing takes longer."""
    if x.dim() != 4:
        return x.index_select(0, rows)
    return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)


def _by_hand(layers: list[nn.Linear], factor: Tensor, offset: Tensor, label_weights: Tensor | None) -> LossAndGradient:
    """Return loss and gradient of linear layers with ReLU between them, without autograd.

    The inputs h of a layer are the samples or the outputs of the layer before it. With adjusted logits
    z = f · (W h + b) + o, the errors of the last layer are e = f · (softmax(z) − [label]) / n, times the label's
    weight. The gradient of a layer's W is Σ e hᵀ, that of its b is Σ e, and the errors of the layer before it are
    Wᵀ e where h > 0.
    """
    weights, biases = ([getattr(layer, name).detach() for layer in layers] for name in ("weight", "bias"))
    sizes = [p.numel() for layer in layers for p in (layer.weight, layer.bias)]
    gradient = factor.new_empty(sum(sizes))
    parts = torch.split(gradient, sizes)
    weight_gradients = [part.view(weight.shape) for part, weight in zip(parts[::2], weights, strict=True)]
    bias_gradients, is_label = parts[1::2], torch.eye(len(factor), out=factor.new_empty(0))

    def compute(x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        labels, inputs = y.index_select(0, rows), [_select(x, rows).flatten(1)]
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            inputs.append(torch.addmm(bias, inputs[-1], weight.T).relu_())
        logits = torch.addmm(biases[-1], inputs[-1], weights[-1].T).mul_(factor).add_(offset)
        log_shares = logits.log_softmax(1)
        if label_weights is None:
            loss = nll_loss(log_shares, labels)
        else:
            loss = nll_loss(log_shares, labels, label_weights, reduction="sum") / labels.numel()
        errors = log_shares.exp_().sub_(is_label.index_select(0, labels)).mul_(factor / labels.numel())
        if label_weights is not None:
            errors.mul_(label_weights.index_select(0, labels)[:, None])
        for i in reversed(range(len(layers))):
            torch.mm(errors.T, inputs[i], out=weight_gradients[i])
            torch.sum(errors, 0, out=bias_gradients[i])
            if i > 0:
                errors = torch.mm(errors, weights[i]).mul_(inputs[i] > 0)
        return loss, gradient

    return compute


def _linear_layers(model: FlatModel, x: Tensor) -> list[nn.Linear]:
    """Return the layers of a network that has only linear ones, with ReLU between them; none of another network."""
    network = model.network
    modules = list(network.children()) if type(network) is nn.Sequential and len(network) else [network]
    if type(modules[0]) is nn.Flatten and (modules[0].start_dim, modules[0].end_dim) == (1, -1):
        modules = modules[1:]
    elif x.dim() != 2:
        return []
    layers = [m for m in modules[::2] if type(m) is nn.Linear and m.bias is not None]
    between = [m for m in modules[1::2] if type(m) is nn.ReLU]
    complete = len(layers) + len(between) == len(modules) and len(between) == len(layers) - 1
    # Shared or frozen parameters are fewer than those of the layers.
    all_trained = sum(p.numel() for layer in layers for p in layer.parameters()) == model.trained == len(model.vector)
    return layers if complete and all_trained and not model.hooked else []
