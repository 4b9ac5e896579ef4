"""The paper's small network as a torch module that knows for which samples there is a compiled kernel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from fedpals.models.compiled.kernel import Kernel

Shape = tuple[int, int, int]


class Convolutions(nn.Sequential):
    """Two 5×5 convolutions, each followed by 2×2 max-pooling and ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, C, H, W) to (n, 16, H', W')."""
        for layer in self:
            # They commute, and ReLU after the pool has a quarter of the work.
            x = nn.functional.max_pool2d(layer(x), 2).relu()
        return x


class SmallCNN(nn.Sequential):
    """Two 5×5 convolutions and three linear layers, C → 6 → 16 → 120 → 84 → K.

    Called as a module, torch computes it, layer by layer. The engine trains and evaluates it by its `kernel`, unless
    layers were exchanged.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        channels, *sides = shape
        padding = 2 if min(sides) < 16 else 0
        for _ in range(2):
            sides = [(side + 2 * padding - 4) // 2 for side in sides]
        super().__init__(
            Convolutions(nn.Conv2d(channels, 6, 5, padding=padding), nn.Conv2d(6, 16, 5, padding=padding)),
            nn.Flatten(),
            nn.Linear(16 * math.prod(sides), 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )
        self.shape, self.classes = shape, classes
        self._built = self._signature()

    def is_compiled_for(self, x: Tensor) -> bool:
        """Return whether the kernel takes samples like these: float32, on a CPU, and of the network's shape."""
        usual = x.device.type == "cpu" and x.dtype == torch.float32
        return usual and x.dim() == 4 and x.shape[1:] == self.shape and x.shape[0] > 0

    @property
    def as_built(self) -> bool:
        """Whether no layer was exchanged, so that the kernel computes what the layers would."""
        return self._signature() == self._built

    def _signature(self) -> list[Any]:
        """Return what a user may change: layers, and the shapes of their parameters."""
        return [(type(m), [p.shape for p in m.parameters(recurse=False)]) for m in self.modules()]

    def kernel(self) -> Kernel:
        """Return the kernel of this thread."""
        # Imported here, because a network that is only built, or has other layers, needs no machine code.
        from fedpals.models.compiled.kernel import kernel

        return kernel(self.shape, self.classes)
