"""The compiled step as torch's side sees it: tensors in, tensors out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedpals.models.compiled.layout import UNITS4, Layout, layout, work_arrays
from fedpals.models.compiled.step import BACKWARD, FORWARD, LOSS, run

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_LARGEST = 256
"""Samples of a step that are computed together: more would take more memory than caches have."""
_EVALUATED = 64
"""Samples whose outputs are computed together."""
_NO_LABELS: Integers = np.empty(0, np.int64)
_NO_ADJUSTMENT: Floats = np.empty(0, np.float32)


class Kernel:
    """Computes the network for one shape of images, (C, H, W), and number of labels.

    It has memory of its own for what is computed on the way, and so must not be used by two threads at once;
    `kernel` returns one for each. The parameters are a flat vector, as `FlatModel` has it.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        self._shape, self._classes = shape, classes
        self._reserve(_EVALUATED)

    def _reserve(self, batch: int) -> None:
        """Make room for batches of this size."""
        self._batch = batch
        self._sizes: Layout = layout(self._shape, self._classes, batch)
        self._table = np.array(self._sizes, np.int64)
        self._work, self._indices = work_arrays(self._sizes)
        s = self._sizes
        self._gradient = torch.from_numpy(self._work[s.gradient : s.gradient + s.size])

    def loss_and_gradient(
        self, vector: Tensor, x: Tensor, rows: Tensor, y: Tensor, adjustment: Floats
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss of the samples x[rows], and its gradient, which the next call overwrites.

        The loss is the cross-entropy of factor · logits + offset, times the weight of the label; ``adjustment`` is
        the factors of all labels, then their offsets, then their weights.
        """
        assert len(adjustment) == 3 * self._classes  # compiled code does not look
        images, labels, chosen = _images(x), _integers(y), _integers(rows)
        share = 1 / len(chosen)

        def step(part: slice) -> float:
            return self._run(FORWARD | LOSS | BACKWARD, images, chosen[part], vector, labels, adjustment, share)

        loss, gradient = self._sum(step, _parts(len(chosen), _LARGEST))
        return torch.scalar_tensor(loss, dtype=torch.float64), gradient

    def differentiate(
        self, vector: Tensor, x: Tensor, rows: Tensor, loss_of: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss that torch makes of the logits of x[rows], and its gradient, which the next call reuses."""
        images, chosen = _images(x), _integers(rows)
        parts = _parts(len(chosen), _LARGEST)
        logits = torch.from_numpy(np.concatenate([self._outputs(vector, images, chosen[part]) for part in parts]))
        loss = loss_of(logits.requires_grad_())
        given = torch.autograd.grad(loss, logits)[0].numpy()

        def backward(part: slice) -> float:
            if len(parts) > 1:  # what the forward pass kept is that of the last part
                self._run(FORWARD, images, chosen[part], vector)
            self._matrix("gradient5", len(chosen[part]), self._sizes.row5, self._classes)[:] = given[part]
            return self._run(BACKWARD, images, chosen[part], vector)

        return loss.detach(), self._sum(backward, parts)[1]

    def _sum(self, step: Callable[[slice], float], parts: list[slice]) -> tuple[float, Tensor]:
        """Return the sums of the steps' losses and gradients."""
        if len(parts) == 1:
            return step(parts[0]), self._gradient
        loss, gradient = 0.0, torch.zeros_like(self._gradient)
        for part in parts:
            loss += step(part)
            gradient += self._gradient
        return loss, gradient

    def logits(self, vector: Tensor, x: Tensor) -> Tensor:
        """Return the network's outputs, (n, K)."""
        return self._evaluate(vector, x, "logits")

    def features(self, vector: Tensor, x: Tensor) -> Tensor:
        """Return what the last layer sees, (n, 84)."""
        return self._evaluate(vector, x, "features")

    def _evaluate(self, vector: Tensor, x: Tensor, wanted: Literal["logits", "features"]) -> Tensor:
        images, rows = _images(x), np.arange(len(x))
        parts = [self._outputs(vector, images, rows[part], wanted) for part in _parts(len(x), _EVALUATED)]
        return torch.from_numpy(np.concatenate(parts))

    def _outputs(
        self, vector: Tensor, images: Floats, rows: Integers, wanted: Literal["logits", "features"] = "logits"
    ) -> Floats:
        self._run(FORWARD, images, rows, vector)
        if wanted == "features":
            return self._matrix("outputs4", len(rows), self._sizes.row4, UNITS4).copy()
        return self._matrix("logits", len(rows), self._sizes.row5, self._classes).copy()

    def _matrix(self, part: str, rows: int, step: int, columns: int) -> Floats:
        """Return a view of a part of the work array, (rows, columns)."""
        start: int = getattr(self._sizes, part)
        return self._work[start : start + rows * step].reshape(rows, step)[:, :columns]

    def _run(
        self,
        parts: int,
        images: Floats,
        rows: Integers,
        vector: Tensor,
        labels: Integers = _NO_LABELS,
        adjustment: Floats = _NO_ADJUSTMENT,
        share: float = 0.0,
    ) -> float:
        if len(rows) > self._batch:
            self._reserve(len(rows))
        memory = self._table, self._work, self._indices
        loss: float = run(parts, images, rows, vector.numpy(), labels, adjustment, share, *memory)
        return loss


def _images(x: Tensor) -> Floats:
    """Return images, flat, as they are in memory if their channels are last, else a copy in that order."""
    images: Floats = x.permute(0, 2, 3, 1).reshape(-1).numpy()
    return images


def _integers(values: Tensor) -> Integers:
    # Of one type always: numba would compile the step again for every other.
    return np.ascontiguousarray(values.numpy(), np.int64)


def _parts(n: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


class _Kernels(threading.local):
    def __init__(self) -> None:
        self.by_size: dict[tuple[tuple[int, int, int], int], Kernel] = {}


_kernels = _Kernels()


def kernel(shape: tuple[int, int, int], classes: int) -> Kernel:
    """Return this thread's kernel for a shape and a number of labels."""
    key = shape, classes
    if key not in _kernels.by_size:
        _kernels.by_size[key] = Kernel(shape, classes)
    return _kernels.by_size[key]
