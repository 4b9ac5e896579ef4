"""A network as one flat vector: what clients train, the server averages and checkpoints keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedpals.labels import Vector
from fedpals.models.compiled.network import SmallCNN

if TYPE_CHECKING:
    from fedpals.models.compiled.kernel import Kernel

_EVALUATION_BATCH = 512


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
        self._modules = list(network.modules())  # to walk through the network takes as long as a step of a few samples
        self._has_kernel = type(network) is SmallCNN and network.as_built and self.trained == len(self.vector)

    @property
    def normalises_batches(self) -> bool:
        """Whether a layer in training mode needs more than one sample at a time."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in self._modules)  # noqa: SLF001

    @property
    def hooked(self) -> bool:
        """Whether somebody wants to be called when a layer computes, so that the layers must."""
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        return any(getattr(module, name) for module in self._modules for name in hooks)

    def load(self, vector: Tensor) -> None:
        """Copy ``vector`` into the network."""
        self.vector.copy_(vector)

    def gradient(self, loss: Tensor) -> Tensor:
        """Return ∂loss/∂parameters as a flat vector in the order of ``vector``."""
        return torch.cat([_flat(g) for g in torch.autograd.grad(loss, self.parameters)])

    def kernel(self, x: Tensor) -> Kernel | None:
        """Return what computes the network faster than torch for samples like ``x``; None where nothing does."""
        network = self.network
        if not self._has_kernel or self.hooked or self.vector.device.type != "cpu":
            return None
        assert isinstance(network, SmallCNN)
        return network.kernel() if network.is_compiled_for(x) else None

    def logits(self, x: Tensor) -> Tensor:
        """Return the network's output for all samples, (n, K), without gradients."""
        self.network.eval()
        if kernel := self.kernel(x):
            return kernel.logits(self.vector, x)
        with torch.inference_mode():
            return torch.cat([self.network(part) for part in _parts(x)])

    def features(self, x: Tensor) -> Tensor | None:
        """Return what the last layer sees of all samples, (n, d); None where it is not linear with a bias."""
        if kernel := self.kernel(x):
            return kernel.features(self.vector, x)
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
