"""Images changed at random while training: the one remedy for labels of which clients have few samples."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedpals.engine.plan import Augmentation

_PIXELS = 2


def augmented(x: Tensor, kind: Augmentation, rng: np.random.Generator) -> Tensor:
    """Return images, (n, C, H, W), each moved (and mirrored) at random; what comes in at an edge mirrors the inside."""
    n, _, height, width = x.shape
    if kind == "flip":
        mirrored = torch.from_numpy(rng.random(n) < 0.5).to(x.device)
        x = torch.where(mirrored[:, None, None, None], x.flip(3), x)
    down, right = (torch.from_numpy(rng.integers(0, 2 * _PIXELS + 1, n)).to(x.device) for _ in range(2))
    last = pad(x, (_PIXELS,) * 4, mode="reflect").permute(0, 2, 3, 1)  # channels last, as convolutions read them
    rows = (down[:, None] + torch.arange(height, device=x.device))[:, :, None]
    columns = (right[:, None] + torch.arange(width, device=x.device))[:, None, :]
    each = torch.arange(n, device=x.device)[:, None, None]
    return last[each, rows, columns].permute(0, 3, 1, 2)
