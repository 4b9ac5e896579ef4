"""The compiled step as torch's side sees it: tensors in, tensors out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedpals.models.compiled.layout import UNITS4, Layout, layout, work_arrays
from fedpals.models.compiled.native import BACKWARD, FORWARD, LOSS, NO_IMAGE, PACKED, step

Floats = npt.NDArray[np.float32]

_LARGEST = 256
"""Samples of a step that are computed together: more would take more memory than caches have."""
_EVALUATED = 64
"""Samples whose outputs are computed together."""
_STEP = FORWARD | LOSS | BACKWARD
_NO_LABELS, _NO_ADJUSTMENT = torch.empty(0, dtype=torch.int64), torch.empty(0)

Step = Callable[[Tensor, Tensor, Tensor], tuple[float, Tensor]]
"""From samples, labels and the rows of a batch to the mean loss and the gradient, which the next call overwrites."""


class _Samples(NamedTuple):
    """Samples as compiled code reads them."""

    images: Tensor
    """(rows, H, W, C)"""
    labels: Tensor
    rows: int


class Kernel:
    """Computes the network for one shape of images, (C, H, W), and number of labels.

    It has memory of its own for what is computed on the way, and so must not be used by two threads at once;
    `kernel` returns one for each. The parameters are a flat vector, as `FlatModel` has it.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        self._shape, self._classes = shape, classes
        self._step, self._loss = step(), np.zeros(1)
        self._problem, self._exception = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._results = self._problem.ctypes.data, self._exception.ctypes.data
        self._reserve(_EVALUATED)

    def _reserve(self, batch: int) -> None:
        """Make room for batches of this size."""
        self._batch = batch
        self._sizes: Layout = layout(self._shape, self._classes, batch)
        self._table = np.array(self._sizes, np.int64)
        self._work, self._indices = work_arrays(self._sizes)
        self._memory = [array.ctypes.data for array in (self._table, self._work, self._indices, self._loss)]
        s = self._sizes
        self._gradient = torch.from_numpy(self._work[s.gradient : s.gradient + s.size])

    def loss_and_gradient(self, vector: Tensor, adjustment: Tensor) -> Step:
        """Return what computes the steps of a client, whose parameters ``vector`` change in place.

        The loss is the cross-entropy of factor · logits + offset, times the weight of the label; ``adjustment`` is
        the factors of all labels, then their offsets, then their weights. Samples must stay as they are.
        """
        assert adjustment.shape == (3 * self._classes,)  # compiled code does not look
        assert adjustment.dtype == torch.float32
        assert adjustment.is_contiguous()
        self._check(vector)
        x_seen: Tensor | None = None
        y_seen: Tensor | None = None
        samples = self._samples(torch.empty(0, *self._shape))

        def compute(x: Tensor, y: Tensor, rows: Tensor) -> tuple[float, Tensor]:
            nonlocal x_seen, y_seen, samples
            if x is not x_seen or y is not y_seen:  # to look at them in each step would take long
                x_seen, y_seen, samples = x, y, self._samples(x, y)
            share = 1 / len(rows)

            def step_of(part: Tensor) -> float:
                return self._run(_STEP, samples, part, vector, adjustment, share)

            return self._sum(step_of, _parts(rows, _LARGEST))

        return compute

    def differentiate(
        self, vector: Tensor, x: Tensor, rows: Tensor, loss_of: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss that torch makes of the logits of x[rows], and its gradient, which the next call reuses."""
        self._check(vector)
        samples, parts = self._samples(x), _parts(rows, _LARGEST)
        logits = torch.from_numpy(np.concatenate([self._outputs(vector, samples, part) for part in parts]))
        loss = loss_of(logits.requires_grad_())
        given = iter(_parts(torch.autograd.grad(loss, logits)[0], _LARGEST))

        def backward(part: Tensor) -> float:
            if len(parts) > 1:  # what the forward pass kept is that of the last part
                self._run(FORWARD, samples, part, vector)
            self._matrix("gradient5", len(part), self._sizes.row5, self._classes)[:] = next(given).numpy()
            return self._run(BACKWARD, samples, part, vector)

        return loss.detach(), self._sum(backward, parts)[1]

    def _sum(self, compute: Callable[[Tensor], float], parts: list[Tensor]) -> tuple[float, Tensor]:
        """Return the sums of the losses and gradients of parts of a batch."""
        if len(parts) == 1:
            return compute(parts[0]), self._gradient
        loss, gradient = 0.0, torch.zeros_like(self._gradient)
        for part in parts:
            loss += compute(part)
            gradient += self._gradient
        return loss, gradient

    def logits(self, vector: Tensor, x: Tensor) -> Tensor:
        """Return the network's outputs, (n, K)."""
        return self._evaluate(vector, x, "logits")

    def features(self, vector: Tensor, x: Tensor) -> Tensor:
        """Return what the last layer sees, (n, 84)."""
        return self._evaluate(vector, x, "features")

    def _evaluate(self, vector: Tensor, x: Tensor, wanted: Literal["logits", "features"]) -> Tensor:
        self._check(vector)
        samples, parts = self._samples(x), _parts(torch.arange(len(x)), _EVALUATED)
        outputs = [self._outputs(vector, samples, part, wanted, packed=i > 0) for i, part in enumerate(parts)]
        return torch.from_numpy(np.concatenate(outputs))

    def _outputs(
        self,
        vector: Tensor,
        samples: _Samples,
        rows: Tensor,
        wanted: Literal["logits", "features"] = "logits",
        *,
        packed: bool = False,
    ) -> Floats:
        self._run(FORWARD | PACKED if packed else FORWARD, samples, rows, vector)
        if wanted == "features":
            return self._matrix("outputs4", len(rows), self._sizes.row4, UNITS4).copy()
        return self._matrix("logits", len(rows), self._sizes.row5, self._classes).copy()

    def _matrix(self, part: str, rows: int, step: int, columns: int) -> Floats:
        """Return a view of a part of the work array, (rows, columns)."""
        start: int = getattr(self._sizes, part)
        return self._work[start : start + rows * step].reshape(rows, step)[:, :columns]

    def _samples(self, x: Tensor, y: Tensor = _NO_LABELS) -> _Samples:
        """Return images as they are in memory if their channels are last, else a copy in that order, with labels."""
        assert x.dtype == torch.float32
        assert x.shape[1:] == self._shape
        count = len(x) if y is _NO_LABELS else min(len(x), len(y))
        return _Samples(x.permute(0, 2, 3, 1).contiguous(), _integers(y), count)

    def _check(self, vector: Tensor) -> None:
        """Stop where an address would not be enough."""
        assert vector.dtype == torch.float32
        assert vector.shape == (self._sizes.size,)
        assert vector.is_contiguous()

    def _run(
        self,
        parts: int,
        samples: _Samples,
        rows: Tensor,
        vector: Tensor,
        adjustment: Tensor = _NO_ADJUSTMENT,
        share: float = 0.0,
    ) -> float:
        """Compute parts of a step, and return the loss if it is one of them.

        Tensors are turned into addresses here and nowhere else, while this function holds them.
        """
        n = len(rows)
        if n > self._batch:
            self._reserve(n)
        images, labels, count = samples
        rows = _integers(rows)
        raised = self._step(
            *self._results, parts, images.data_ptr(), count, rows.data_ptr(), n, vector.data_ptr(), labels.data_ptr(),
            adjustment.data_ptr(), share, *self._memory,
        )  # fmt: skip
        assert not raised
        if problem := self._problem[0]:
            what = "row is not one of the images" if problem == NO_IMAGE else "label is not one of the network's"
            raise IndexError(f"a {what}")
        return float(self._loss[0])


def _integers(values: Tensor) -> Tensor:
    return values.to(torch.int64).contiguous()


def _parts(rows: Tensor, size: int) -> list[Tensor]:
    return [rows] if len(rows) <= size else list(torch.split(rows, size))


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
