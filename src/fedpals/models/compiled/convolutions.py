"""The two convolutions of the paper's small network as one step, several times as fast on a CPU as torch.

Each sample goes through both layers while it is in the processor's nearest cache. Convolution, 2×2
max-pooling and ReLU are one loop, and the way back visits only the pixels that won their pool and
passed the ReLU. One thread, a fixed order of sums: the same bits every time on one machine.

Forward, the first layer fills its vectors with neighbouring outputs, since it has few channels: columns and
rows of the image are sorted into even and odd ones (four `planes` per channel), so that the outputs of
neighbouring pools read neighbouring numbers. The second fills them with its 16 channels. Backward, a vector
is a piece of one row of a kernel, 5·C numbers that lie together in the image as they do in the weights.
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

_FIRST, _SECOND = 6, 16
"""Channels of the two layers."""

_compiled: Any = njit(cache=True, nogil=True, error_model="numpy")
_inlined: Any = njit(forceinline=True, error_model="numpy")


class FusedConvolutions(nn.Sequential):
    """Two 5×5 convolutions, C → 6 → 16, each followed by 2×2 max-pooling and ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) → (n, 16, H', W')."""
        first, second = self
        assert isinstance(first, nn.Conv2d)
        assert isinstance(second, nn.Conv2d)
        if x.device.type == "cpu" and x.dtype == torch.float32 and not x.requires_grad:
            padding = first.padding[0]
            fused: Tensor = _Fused.apply(x, padding, first.weight, first.bias, second.weight, second.bias)
            return fused
        for layer in (first, second):
            x = nn.functional.max_pool2d(layer(x), 2).relu()  # they commute, and so ReLU has a quarter of the work
        return x


class _Sizes(NamedTuple):
    """Of everything between the layers, for one size of image; all counts of pixels unless said otherwise."""

    channels: int
    padding: int
    width: int
    """Of the padded image."""
    image: int
    """Numbers of the padded image."""
    height1: int
    width1: int
    """After the first pool."""
    padded_width1: int
    hidden: int
    """Numbers of the padded maps between the layers."""
    height2: int
    width2: int
    pitch: int
    """From one row of a plane to the next."""
    plane: int
    """Pixels of one of the planes of a channel."""
    map1: int
    """Places for one map after the first pool, rows ``pitch`` apart."""


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
        hidden=padded_height1 * padded_width1 * _FIRST,
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
        kept = n if any(ctx.needs_input_grad) else 1
        # Whole vectors are read and written, some of them beyond the last pixel.
        room = 2 * LANES + 4 * _FIRST
        images = x.permute(0, 2, 3, 1).reshape(n, height, width * channels).numpy()
        hidden = np.zeros((kept, sizes.hidden + room), np.float32)
        shifts1 = np.empty((kept, _FIRST * sizes.map1), np.float32)
        shifts2 = np.empty((kept, sizes.height2 * sizes.width2 * _SECOND), np.float32)
        kernels = weight2.permute(0, 2, 3, 1).reshape(_SECOND, -1)
        by_channel = weight1.reshape(-1).numpy()
        by_lanes = kernels.view(_SECOND // LANES, LANES, -1).transpose(1, 2).reshape(-1).numpy()
        out = x.new_empty(n, _SECOND, sizes.height2, sizes.width2)
        results = hidden, shifts1, shifts2, out.view(n, -1).numpy()
        _forward(images, sizes, by_channel, bias1.numpy(), by_lanes, bias2.numpy(), *results)
        ctx.kept = images, sizes, hidden, shifts1, shifts2
        ctx.kernels = kernels
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        channels = ctx.kept[1].channels
        row1, row2 = 5 * channels, 5 * _FIRST
        kernels = nn.functional.pad(ctx.kernels.view(_SECOND, 5, row2), (0, _pitch(row2) - row2))
        rows1, bias1 = gradient.new_zeros(_FIRST, 5, _pitch(row1)), gradient.new_zeros(_FIRST)
        rows2, bias2 = torch.zeros_like(kernels), gradient.new_zeros(_SECOND)
        results = rows1.view(-1).numpy(), bias1.numpy(), rows2.view(-1).numpy(), bias2.numpy()
        _backward(*ctx.kept, kernels.view(-1).numpy(), gradient.reshape(len(gradient), -1).numpy(), *results)
        weight1 = rows1[..., :row1].reshape(_FIRST, 5, 5, channels).permute(0, 3, 1, 2)
        weight2 = rows2[..., :row2].reshape(_SECOND, 5, 5, _FIRST).permute(0, 3, 1, 2)
        return None, None, weight1, bias1, weight2, bias2


def _pitch(row: int) -> int:
    """Return the numbers of a row of a kernel, filled up to whole vectors."""
    return -(-row // LANES) * LANES


@_compiled
def _forward(images, sizes, weights1, bias1, weights2, bias2, hidden, shifts1, shifts2, out):
    """Fill ``out``, (n, 16·H'·W'), and what the way back needs.

    ``hidden`` holds the padded maps between the layers, pixel by pixel. ``shifts`` tell for each pool
    by how many numbers its winner lies behind its first pixel in the layer's input; −1 where ReLU gave 0.
    With a single row in ``hidden`` nothing is kept. The weights of the first layer are (6, C, 5, 5), those of the
    second (16 / lanes, 5, 5, 6, lanes).
    """
    planes = np.zeros(4 * sizes.channels * sizes.plane + sizes.pitch + LANES + 8, np.float32)
    maps1 = np.empty(_FIRST * sizes.map1, np.float32)
    maps2 = np.empty(shifts2.shape[1], np.float32)
    pools2 = sizes.height2 * sizes.width2
    for i in range(len(images)):
        k = i % len(hidden)
        _sort(images[i], sizes, planes)
        _first_layer(planes, sizes, weights1, bias1, maps1, shifts1[k])
        _interleave(maps1, sizes, hidden[k])
        _second_layer(hidden[k], sizes, weights2, bias2, maps2, shifts2[k])
        for o in range(_SECOND):
            for q in range(pools2):
                out[i, o * pools2 + q] = maps2[q * _SECOND + o]


@_compiled
def _backward(images, sizes, hidden, shifts1, shifts2, kernels2, gradient, rows1, bias1, rows2, bias2):
    """Add to the gradients of kernels and biases; kernels are (out, 5, pitch), flat."""
    C, p = sizes.channels, sizes.padding
    pitch1, pitch2 = len(rows1) // (_FIRST * 5), len(rows2) // (_SECOND * 5)
    image = np.zeros(sizes.image + pitch1 + LANES, np.float32)
    most = max(_FIRST * sizes.height1 * sizes.width1, _SECOND * sizes.height2 * sizes.width2)
    starts = np.empty(_SECOND + 1, np.int64)
    values = np.empty(most + 1, np.float32)
    places = np.empty(most + 1, np.int64)
    at_hidden = np.empty(hidden.shape[1], np.float32)
    row, row1 = sizes.width * C, sizes.padded_width1 * _FIRST
    pools2 = sizes.height2 * sizes.width2
    for i in range(len(images)):
        strides = (0, pools2, sizes.width2, 1)
        shift_strides = (0, 1, sizes.width2 * _SECOND, _SECOND)
        size = (_SECOND, sizes.height2, sizes.width2)
        _winners(gradient[i], strides, shifts2[i], shift_strides, size, row1, _FIRST, starts, values, places)
        _add_kernels(hidden[i], row1, pitch2, _SECOND, starts, values, places, rows2, bias2)
        at_hidden[:] = 0
        _add_inputs(kernels2, row1, pitch2, starts, values, places, at_hidden)
        strides = (p * row1 + p * _FIRST, 1, row1, _FIRST)
        shift_strides = (0, sizes.map1, sizes.pitch, 1)
        size = (_FIRST, sizes.height1, sizes.width1)
        _winners(at_hidden, strides, shifts1[i], shift_strides, size, row, C, starts, values, places)
        _pad(images[i], sizes, image)
        _add_kernels(image, row, pitch1, _FIRST, starts, values, places, rows1, bias1)


@_inlined
def _pool(a, b, c, d, down, right, out, shifts, at):
    """Store the largest of four, or 0, and where it came from; the first of equals wins."""
    zero = splat(np.float32(0.0))
    best, shift = a, zero
    shift = where_greater(b, best, splat(right), shift)
    best = where_greater(b, best, b, best)
    shift = where_greater(c, best, splat(down), shift)
    best = where_greater(c, best, c, best)
    shift = where_greater(d, best, splat(down + right), shift)
    best = where_greater(d, best, d, best)
    store(shifts, at, where_greater(best, zero, shift, splat(np.float32(-1.0))))
    store(out, at, where_greater(zero, best, zero, best))


@_inlined
def _add_row(even, odd, x, at, plane, weights, t):
    """Add one row of a kernel at even and at odd columns."""
    x0, x1, x2 = load(x, at), load(x, at + plane), load(x, at + 1)
    x3, x4, x5 = load(x, at + plane + 1), load(x, at + 2), load(x, at + plane + 2)
    w0, w1, w2 = repeat(weights, t), repeat(weights, t + 1), repeat(weights, t + 2)
    w3, w4 = repeat(weights, t + 3), repeat(weights, t + 4)
    even, odd = add_product(even, w0, x0), add_product(odd, w0, x1)
    even, odd = add_product(even, w1, x1), add_product(odd, w1, x2)
    even, odd = add_product(even, w2, x2), add_product(odd, w2, x3)
    even, odd = add_product(even, w3, x3), add_product(odd, w3, x4)
    even, odd = add_product(even, w4, x4), add_product(odd, w4, x5)
    return even, odd


@_inlined
def _first_layer(planes, sizes, weights, bias, out, shifts):
    """Two channels at a time: eight sums that do not wait for each other."""
    C, plane, pitch = sizes.channels, sizes.plane, sizes.pitch
    down, right = np.float32(sizes.width * C), np.float32(C)
    for v in range(0, sizes.map1, LANES):
        for o in range(0, _FIRST, 2):
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


@_inlined
def _second_layer(x, sizes, weights, bias, out, shifts):
    """Two pools at a time: eight sums that do not wait for each other."""
    C, row, width = _FIRST, sizes.padded_width1 * _FIRST, sizes.width2
    down, right = np.float32(row), np.float32(C)
    for group in range(0, _SECOND, LANES):
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
                at = (py * width + px) * _SECOND + group
                _pool(a0, a1, b0, b1, down, right, out, shifts, at)
                if px + 1 < width:
                    _pool(a2, a3, b2, b3, down, right, out, shifts, at + _SECOND)


@_inlined
def _sort(image, sizes, planes):
    """Sort an image into its planes: even and odd rows, even and odd columns; borders stay 0."""
    C = sizes.channels
    height, width = len(image), image.shape[1] // C
    half = sizes.padding // 2  # the padding is even, so what was even stays even
    for y in range(height):
        for c in range(C):
            at = (c * 4 + 2 * (y & 1)) * sizes.plane + (y // 2 + half) * sizes.pitch + half
            for x in range(width // 2):
                planes[at + x] = image[y, 2 * x * C + c]
                planes[at + sizes.plane + x] = image[y, (2 * x + 1) * C + c]
            if width % 2:
                planes[at + width // 2] = image[y, (width - 1) * C + c]


@_inlined
def _interleave(maps, sizes, hidden):
    """Bring the maps after the first pool together, pixel by pixel; borders stay 0."""
    for y in range(sizes.height1):
        start = ((y + sizes.padding) * sizes.padded_width1 + sizes.padding) * _FIRST
        for o in range(_FIRST):
            for x in range(sizes.width1):
                hidden[start + x * _FIRST + o] = maps[o * sizes.map1 + y * sizes.pitch + x]


@_inlined
def _pad(image, sizes, out):
    """Copy an image; borders stay 0."""
    height, row = image.shape
    for y in range(height):
        start = ((y + sizes.padding) * sizes.width + sizes.padding) * sizes.channels
        for x in range(row):
            out[start + x] = image[y, x]


@_inlined
def _winners(gradient, strides, shifts, shift_strides, size, row, C, starts, values, places):
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
                n += shift >= 0  # the next overwrites a loser: a branch would be a coin toss
    starts[channels] = n


@_inlined
def _add_kernels(x, row, pitch, channels, starts, values, places, rows, bias):
    """Add Σ gradient · window to the gradient of each channel's kernel, five rows at a time."""
    for o in range(channels):
        total = np.float32(0.0)
        for k in range(0, pitch, LANES):
            t = o * 5 * pitch + k
            r0, r1, r2 = load(rows, t), load(rows, t + pitch), load(rows, t + 2 * pitch)
            r3, r4 = load(rows, t + 3 * pitch), load(rows, t + 4 * pitch)
            total = np.float32(0.0)  # anew with every piece of the row: beside the products it costs nothing
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


@_inlined
def _add_inputs(kernels, row, pitch, starts, values, places, out):
    """Add gradient · kernel to the window of each winner; beyond the window the kernel is 0."""
    for o in range(_SECOND):
        for i in range(starts[o], starts[o + 1]):
            g = repeat(values, i)
            for ky in range(5):
                u, t = places[i] + ky * row, (o * 5 + ky) * pitch
                for k in range(0, pitch, LANES):
                    store(out, u + k, add_product(load(out, u + k), g, load(kernels, t + k)))
