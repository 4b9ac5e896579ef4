"""The two convolutions of the paper's small network as one step, several times faster on a CPU than torch.

Each sample passes both layers while it is in the processor's first-level cache. Convolution, 2×2 max-pooling
and ReLU are one loop, and the backward pass visits only the pixels that won their pool and passed the ReLU.
There is one thread and a fixed order of sums: the same bits every time on one machine.

In the forward pass, the vectors of the first layer contain neighbouring outputs, because it has few channels.
Columns and rows of the image are split into even and odd ones (four `planes` per channel), so that the outputs
of neighbouring pools read neighbouring numbers. The vectors of the second layer contain its 16 channels. In the
backward pass, a vector is a part of one row of a kernel, 5·C numbers that are contiguous in the image and in
the weights.
"""

# Numba infers the types of the compiled functions; annotations would only repeat "array" and "integer".
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedpals.models.compiled.lanes import LANES, add_product, load, repeat, splat, store, where_greater

_CHANNELS1, _CHANNELS2 = 6, 16
"""Numbers of channels of the two layers."""

_compile: Any = njit(cache=True, nogil=True, error_model="numpy")
_inline: Any = njit(forceinline=True, error_model="numpy")


class FusedConvolutions(nn.Sequential):
    """Two 5×5 convolutions, C → 6 → 16, each followed by 2×2 max-pooling and ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, C, H, W) to (n, 16, H', W')."""
        first, second = self
        assert isinstance(first, nn.Conv2d)
        assert isinstance(second, nn.Conv2d)
        if x.device.type == "cpu" and x.dtype == torch.float32 and not x.requires_grad:
            padding = first.padding[0]
            fused: Tensor = _Fused.apply(x, padding, first.weight, first.bias, second.weight, second.bias)
            return fused
        for layer in (first, second):
            x = nn.functional.max_pool2d(
                layer(x), 2
            ).relu()  # they commute, and ReLU after the pool has a quarter of the work
        return x


class _Sizes(NamedTuple):
    """Sizes of all arrays between the layers, for one size of image; in pixels unless noted."""

    channels: int
    padding: int
    width: int
    """Width of the padded image."""
    image: int
    """Number of values of the padded image."""
    height1: int
    width1: int
    """Width after the first pool."""
    padded_width1: int
    hidden: int
    """Number of values of the padded maps between the layers."""
    height2: int
    width2: int
    pitch: int
    """Step from one row of a plane to the next."""
    plane: int
    """Number of pixels of one plane of a channel."""
    map1: int
    """Number of values of one map after the first pool, with rows ``pitch`` apart."""


@lru_cache
def _sizes(channels: int, height: int, width: int, padding: int) -> _Sizes:
    height, width = height + 2 * padding, width + 2 * padding
    height1, width1 = (height - 4) // 2, (width - 4) // 2
    padded_height1, padded_width1 = height1 + 2 * padding, width1 + 2 * padding
    pitch = (width + 1) // 2
    return _Sizes(
        channels=channels,
        padding=padding,
        width=width,
        image=height * width * channels,
        height1=height1,
        width1=width1,
        padded_width1=padded_width1,
        hidden=padded_height1 * padded_width1 * _CHANNELS1,
        height2=(padded_height1 - 4) // 2,
        width2=(padded_width1 - 4) // 2,
        pitch=pitch,
        plane=(height + 1) // 2 * pitch,
        map1=-(-height1 * pitch // LANES) * LANES,
    )


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, padding: int, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor
    ) -> Tensor:
        n, channels, height, width = x.shape
        sizes = _sizes(channels, height, width, padding)
        rows = n if any(ctx.needs_input_grad) else 1
        # Whole vectors are read and written, some beyond the last pixel.
        margin = 2 * LANES + 4 * _CHANNELS1
        images = x.permute(0, 2, 3, 1).reshape(n, height, width * channels).numpy()
        hidden = np.zeros((rows, sizes.hidden + margin), np.float32)
        shifts1 = np.empty((rows, _CHANNELS1 * sizes.map1), np.float32)
        shifts2 = np.empty((rows, sizes.height2 * sizes.width2 * _CHANNELS2), np.float32)
        kernels = weight2.permute(0, 2, 3, 1).reshape(_CHANNELS2, -1)
        flat_weights1 = weight1.reshape(-1).numpy()
        lane_weights2 = kernels.view(_CHANNELS2 // LANES, LANES, -1).transpose(1, 2).reshape(-1).numpy()
        out = x.new_empty(n, _CHANNELS2, sizes.height2, sizes.width2)
        results = hidden, shifts1, shifts2, out.view(n, -1).numpy()
        _forward(images, sizes, flat_weights1, bias1.numpy(), lane_weights2, bias2.numpy(), *results)
        ctx.arrays = images, sizes, hidden, shifts1, shifts2
        ctx.kernels = kernels
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        channels = ctx.arrays[1].channels
        row1, row2 = 5 * channels, 5 * _CHANNELS1
        kernels = nn.functional.pad(ctx.kernels.view(_CHANNELS2, 5, row2), (0, _pitch(row2) - row2))
        rows1, bias1 = gradient.new_zeros(_CHANNELS1, 5, _pitch(row1)), gradient.new_zeros(_CHANNELS1)
        rows2, bias2 = torch.zeros_like(kernels), gradient.new_zeros(_CHANNELS2)
        results = rows1.view(-1).numpy(), bias1.numpy(), rows2.view(-1).numpy(), bias2.numpy()
        _backward(*ctx.arrays, kernels.view(-1).numpy(), gradient.reshape(len(gradient), -1).numpy(), *results)
        weight1 = rows1[..., :row1].reshape(_CHANNELS1, 5, 5, channels).permute(0, 3, 1, 2)
        weight2 = rows2[..., :row2].reshape(_CHANNELS2, 5, 5, _CHANNELS1).permute(0, 3, 1, 2)
        return None, None, weight1, bias1, weight2, bias2


def _pitch(row: int) -> int:
    """Return the length of a row of a kernel, rounded up to whole vectors."""
    return -(-row // LANES) * LANES


@_compile
def _forward(images, sizes, weights1, bias1, weights2, bias2, hidden, shifts1, shifts2, out):
    """Fill ``out``, (n, 16·H'·W'), and the arrays for the backward pass.

    ``hidden`` contains the padded maps between the layers, pixel by pixel. ``shifts`` are, for each pool, the
    offset of its winner from its first pixel in the layer's input; −1 if ReLU gave 0. If ``hidden`` has a single
    row, it is overwritten by each sample. The weights of the first layer are (6, C, 5, 5), those of the second
    (16 / lanes, 5, 5, 6, lanes).
    """
    planes = np.zeros(4 * sizes.channels * sizes.plane + sizes.pitch + LANES + 8, np.float32)
    maps1 = np.empty(_CHANNELS1 * sizes.map1, np.float32)
    maps2 = np.empty(shifts2.shape[1], np.float32)
    pools2 = sizes.height2 * sizes.width2
    for i in range(len(images)):
        k = i % len(hidden)
        _split_planes(images[i], sizes, planes)
        _first_layer(planes, sizes, weights1, bias1, maps1, shifts1[k])
        _interleave(maps1, sizes, hidden[k])
        _second_layer(hidden[k], sizes, weights2, bias2, maps2, shifts2[k])
        for o in range(_CHANNELS2):
            for q in range(pools2):
                out[i, o * pools2 + q] = maps2[q * _CHANNELS2 + o]


@_compile
def _backward(images, sizes, hidden, shifts1, shifts2, kernels2, gradient, rows1, bias1, rows2, bias2):
    """Add to the gradients of kernels and biases; kernels are (out, 5, pitch), flat."""
    C, p = sizes.channels, sizes.padding
    pitch1, pitch2 = len(rows1) // (_CHANNELS1 * 5), len(rows2) // (_CHANNELS2 * 5)
    image = np.zeros(sizes.image + pitch1 + LANES, np.float32)
    max_winners = max(_CHANNELS1 * sizes.height1 * sizes.width1, _CHANNELS2 * sizes.height2 * sizes.width2)
    starts = np.empty(_CHANNELS2 + 1, np.int64)
    values = np.empty(max_winners + 1, np.float32)
    places = np.empty(max_winners + 1, np.int64)
    at_hidden = np.empty(hidden.shape[1], np.float32)
    row, row1 = sizes.width * C, sizes.padded_width1 * _CHANNELS1
    pools2 = sizes.height2 * sizes.width2
    for i in range(len(images)):
        strides = (0, pools2, sizes.width2, 1)
        shift_strides = (0, 1, sizes.width2 * _CHANNELS2, _CHANNELS2)
        size = (_CHANNELS2, sizes.height2, sizes.width2)
        _list_winners(gradient[i], strides, shifts2[i], shift_strides, size, row1, _CHANNELS1, starts, values, places)
        _add_kernel_gradients(hidden[i], row1, pitch2, _CHANNELS2, starts, values, places, rows2, bias2)
        at_hidden[:] = 0
        _add_input_gradients(kernels2, row1, pitch2, starts, values, places, at_hidden)
        strides = (p * row1 + p * _CHANNELS1, 1, row1, _CHANNELS1)
        shift_strides = (0, sizes.map1, sizes.pitch, 1)
        size = (_CHANNELS1, sizes.height1, sizes.width1)
        _list_winners(at_hidden, strides, shifts1[i], shift_strides, size, row, C, starts, values, places)
        _pad(images[i], sizes, image)
        _add_kernel_gradients(image, row, pitch1, _CHANNELS1, starts, values, places, rows1, bias1)


@_inline
def _pool(a, b, c, d, down, right, out, shifts, index):
    """Store the largest of four, or 0, and its offset; the first of equal values wins."""
    zero = splat(np.float32(0.0))
    best, shift = a, zero
    shift = where_greater(b, best, splat(right), shift)
    best = where_greater(b, best, b, best)
    shift = where_greater(c, best, splat(down), shift)
    best = where_greater(c, best, c, best)
    shift = where_greater(d, best, splat(down + right), shift)
    best = where_greater(d, best, d, best)
    store(shifts, index, where_greater(best, zero, shift, splat(np.float32(-1.0))))
    store(out, index, where_greater(zero, best, zero, best))


@_inline
def _add_row(even, odd, x, index, plane, weights, t):
    """Add one row of a kernel at even and at odd columns."""
    x0, x1, x2 = load(x, index), load(x, index + plane), load(x, index + 1)
    x3, x4, x5 = load(x, index + plane + 1), load(x, index + 2), load(x, index + plane + 2)
    w0, w1, w2 = repeat(weights, t), repeat(weights, t + 1), repeat(weights, t + 2)
    w3, w4 = repeat(weights, t + 3), repeat(weights, t + 4)
    even, odd = add_product(even, w0, x0), add_product(odd, w0, x1)
    even, odd = add_product(even, w1, x1), add_product(odd, w1, x2)
    even, odd = add_product(even, w2, x2), add_product(odd, w2, x3)
    even, odd = add_product(even, w3, x3), add_product(odd, w3, x4)
    even, odd = add_product(even, w4, x4), add_product(odd, w4, x5)
    return even, odd


@_inline
def _first_layer(planes, sizes, weights, bias, out, shifts):
    """Compute two channels at a time: eight independent sums."""
    C, plane, pitch = sizes.channels, sizes.plane, sizes.pitch
    down, right = np.float32(sizes.width * C), np.float32(C)
    for v in range(0, sizes.map1, LANES):
        for o in range(0, _CHANNELS1, 2):
            a0 = a1 = a2 = a3 = repeat(bias, o)
            b0 = b1 = b2 = b3 = repeat(bias, o + 1)
            t = o * C * 25
            for c in range(C):
                for ky in range(5):
                    upper = v + (c * 4 + 2 * (ky & 1)) * plane + (ky >> 1) * pitch
                    lower = v + (c * 4 + 2 * (~ky & 1)) * plane + ((ky + 1) >> 1) * pitch
                    a0, a1 = _add_row(a0, a1, planes, upper, plane, weights, t)
                    b0, b1 = _add_row(b0, b1, planes, upper, plane, weights, t + C * 25)
                    a2, a3 = _add_row(a2, a3, planes, lower, plane, weights, t)
                    b2, b3 = _add_row(b2, b3, planes, lower, plane, weights, t + C * 25)
                    t += 5
            _pool(a0, a1, a2, a3, down, right, out, shifts, o * sizes.map1 + v)
            _pool(b0, b1, b2, b3, down, right, out, shifts, (o + 1) * sizes.map1 + v)


@_inline
def _second_layer(x, sizes, weights, bias, out, shifts):
    """Compute two pools at a time: eight independent sums."""
    C, row, width = _CHANNELS1, sizes.padded_width1 * _CHANNELS1, sizes.width2
    down, right = np.float32(row), np.float32(C)
    for group in range(0, _CHANNELS2, LANES):
        for py in range(sizes.height2):
            for px in range(0, width, 2):
                a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = load(bias, group)
                t = group * 25 * C
                for ky in range(5):
                    start = (2 * py + ky) * row + 2 * px * C
                    for u in range(start, start + 5 * C):
                        w = load(weights, t)
                        t += LANES
                        a0 = add_product(a0, w, repeat(x, u))
                        a1 = add_product(a1, w, repeat(x, u + C))
                        a2 = add_product(a2, w, repeat(x, u + 2 * C))
                        a3 = add_product(a3, w, repeat(x, u + 3 * C))
                        b0 = add_product(b0, w, repeat(x, u + row))
                        b1 = add_product(b1, w, repeat(x, u + row + C))
                        b2 = add_product(b2, w, repeat(x, u + row + 2 * C))
                        b3 = add_product(b3, w, repeat(x, u + row + 3 * C))
                index = (py * width + px) * _CHANNELS2 + group
                _pool(a0, a1, b0, b1, down, right, out, shifts, index)
                if px + 1 < width:
                    _pool(a2, a3, b2, b3, down, right, out, shifts, index + _CHANNELS2)


@_inline
def _split_planes(image, sizes, planes):
    """Split an image into its planes: even and odd rows, even and odd columns; borders stay 0."""
    C = sizes.channels
    height, width = len(image), image.shape[1] // C
    half = sizes.padding // 2  # the padding is even, so what was even stays even
    for y in range(height):
        for c in range(C):
            start = (c * 4 + 2 * (y & 1)) * sizes.plane + (y // 2 + half) * sizes.pitch + half
            for x in range(width // 2):
                planes[start + x] = image[y, 2 * x * C + c]
                planes[start + sizes.plane + x] = image[y, (2 * x + 1) * C + c]
            if width % 2:
                planes[start + width // 2] = image[y, (width - 1) * C + c]


@_inline
def _interleave(maps, sizes, hidden):
    """Interleave the maps after the first pool, pixel by pixel; borders stay 0."""
    for y in range(sizes.height1):
        start = ((y + sizes.padding) * sizes.padded_width1 + sizes.padding) * _CHANNELS1
        for o in range(_CHANNELS1):
            for x in range(sizes.width1):
                hidden[start + x * _CHANNELS1 + o] = maps[o * sizes.map1 + y * sizes.pitch + x]


@_inline
def _pad(image, sizes, out):
    """Copy an image into its padded array; borders stay 0."""
    height, row = image.shape
    for y in range(height):
        start = ((y + sizes.padding) * sizes.width + sizes.padding) * sizes.channels
        for x in range(row):
            out[start + x] = image[y, x]


@_inline
def _list_winners(gradient, strides, shifts, shift_strides, size, row, C, starts, values, places):
    """List the gradients that reach the layer's input, channel by channel, and where their windows start."""
    channels, height, width = size
    n = 0
    for o in range(channels):
        starts[o] = n
        for y in range(height):
            g = strides[0] + o * strides[1] + y * strides[2]
            s = shift_strides[0] + o * shift_strides[1] + y * shift_strides[2]
            for x in range(width):
                shift = shifts[s + x * shift_strides[3]]
                values[n] = gradient[g + x * strides[3]]
                places[n] = 2 * y * row + 2 * x * C + np.int64(shift)
                n += shift >= 0  # a loser is overwritten by the next; a branch would be unpredictable
    starts[channels] = n


@_inline
def _add_kernel_gradients(x, row, pitch, channels, starts, values, places, rows, bias):
    """Add Σ gradient · window to the gradient of each channel's kernel, five rows at a time."""
    for o in range(channels):
        total = np.float32(0.0)
        for k in range(0, pitch, LANES):
            t = o * 5 * pitch + k
            r0, r1, r2 = load(rows, t), load(rows, t + pitch), load(rows, t + 2 * pitch)
            r3, r4 = load(rows, t + 3 * pitch), load(rows, t + 4 * pitch)
            total = np.float32(0.0)  # summed again for every part of the row, at no cost beside the products
            for i in range(starts[o], starts[o + 1]):
                g = repeat(values, i)
                total += values[i]
                u = places[i] + k
                r0 = add_product(r0, g, load(x, u))
                r1 = add_product(r1, g, load(x, u + row))
                r2 = add_product(r2, g, load(x, u + 2 * row))
                r3 = add_product(r3, g, load(x, u + 3 * row))
                r4 = add_product(r4, g, load(x, u + 4 * row))
            store(rows, t, r0)
            store(rows, t + pitch, r1)
            store(rows, t + 2 * pitch, r2)
            store(rows, t + 3 * pitch, r3)
            store(rows, t + 4 * pitch, r4)
        bias[o] += total


@_inline
def _add_input_gradients(kernels, row, pitch, starts, values, places, out):
    """Add gradient · kernel to the window of each winner; beyond the window the kernel is 0."""
    for o in range(_CHANNELS2):
        for i in range(starts[o], starts[o + 1]):
            g = repeat(values, i)
            for ky in range(5):
                u, t = places[i] + ky * row, (o * 5 + ky) * pitch
                for k in range(0, pitch, LANES):
                    store(out, u + k, add_product(load(out, u + k), g, load(kernels, t + k)))
