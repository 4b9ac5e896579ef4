"""The backward pass of the two convolutions, with vectors of 8 numbers; `gradients_wide` has that with 16.

A pool passes its gradient to its winner alone, so only a quarter of the outputs is visited. The gradient of a kernel is
the sum of the windows that its winners saw, each times the winner's gradient; that of the layer's input is the sum
of kernels, added where the windows were. A vector is one pixel of a window (second layer), or a row of a window, or a
part of it (first layer).
"""

# Numba infers the types of the compiled functions; annotations would only repeat "array" and "integer".
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

from fedpals.models.compiled.compiling import compiled, inlined
from fedpals.models.compiled.convolutions import fetch
from fedpals.models.compiled.lanes import Block, Code, get, get_index, intrinsic, put, put_index
from fedpals.models.compiled.layout import CHANNELS1, CHANNELS2, PIXEL

_WIDTH = 8
_TOGETHER = 2
"""Channels of the first layer whose sums are in registers together, five rows of each: 10 of 16."""


@compiled
def list_winners(work, indices, s, first, count, o):
    """List the gradients that reach channel o of the second layer in some samples, and where their windows start."""
    # What is read from the table in a loop would be read again each time: the compiler cannot know that the loop
    # does not write there.
    pools, gradients, places, n = s.pools, s.winner_gradients, s.winner_places, 0
    for i in range(count):
        gradient = s.gradient2 + (first + i) * s.features_row + o * pools
        place, sample = s.places2 + (first + i) * s.features + o, i * s.sample
        for _ in range(pools):
            start = get_index(indices, place)
            put(work, gradients + n, get(work, gradient))
            put_index(indices, places + n, sample + start)
            n += 1 + (start >> 63)  # a loser is overwritten by the next; a branch would be unpredictable
            gradient += 1
            place += CHANNELS2
    return n


def _window_functions(first: int, last: int) -> tuple[Any, Any]:
    """Return functions for the pixels first to last, excluding it, of the 25 of a window.

    The first adds the winners' windows to the gradient of a kernel, the second adds the kernel to the windows.
    """
    window = [divmod(i, 5) for i in range(first, last)]

    @intrinsic(Block(last - first, PIXEL))
    def load(code: Code, work: Any, kernel: Any) -> list[Any]:
        return [code.load(work, code.at(kernel, i * CHANNELS1), PIXEL) for i in range(first, last)]

    @intrinsic(Block(last - first, PIXEL))
    def zeros(code: Code) -> list[Any]:
        return [code.constant(0.0, PIXEL)] * (last - first)

    @intrinsic()
    def add(code: Code, sums: list[Any], work: Any, kernel: Any) -> None:
        for i, total in zip(range(first, last), sums, strict=True):
            code.add_to(work, code.at(kernel, i * PIXEL), total)

    @intrinsic(Block(last - first, PIXEL))
    def gather(code: Code, sums: list[Any], work: Any, gradient: Any, start: Any, row: Any) -> list[Any]:
        g = code.repeat(work, gradient, PIXEL)
        pixels = [code.load(work, code.at(start, (row, ky), kx * PIXEL), PIXEL) for ky, kx in window]
        return [code.add_product(total, g, pixel) for total, pixel in zip(sums, pixels, strict=True)]

    @intrinsic()
    def scatter(code: Code, kernel: list[Any], work: Any, gradient: Any, start: Any, row: Any) -> None:
        g = code.repeat(work, gradient, PIXEL)
        for weights, (ky, kx) in zip(kernel, window, strict=True):
            at = code.at(start, (row, ky), kx * PIXEL)
            code.store(work, at, code.add_product(code.load(work, at, PIXEL), g, weights))

    @compiled
    def add_windows(work, indices, s, n, pixels, kernel):
        gradients, places, row = s.winner_gradients, s.winner_places, s.pitch * PIXEL
        sums = zeros()  # a sum over all samples at once would lose digits
        for i in range(n):
            sums = gather(sums, work, gradients + i, pixels + get_index(indices, places + i), row)
        add(sums, work, kernel)

    @compiled
    def add_kernels(work, indices, s, n, pixels, kernel):
        gradients, places, row = s.winner_gradients, s.winner_places, s.pitch * PIXEL
        # The last two numbers of these vectors are not of their pixels; where they are added, nobody looks.
        weights = load(work, kernel)
        for i in range(n):
            scatter(weights, work, gradients + i, pixels + get_index(indices, places + i), row)

    return add_windows, add_kernels


add_kernels = _window_functions(0, 25)[1]
_add_upper, _add_lower = _window_functions(0, 13)[0], _window_functions(13, 25)[0]


@inlined
def add_windows(work, indices, s, n, pixels, kernel):
    """Add the winners' windows to the gradient of a kernel of the second layer, whose 25 sums take two turns."""
    _add_upper(work, indices, s, n, pixels, kernel)
    _add_lower(work, indices, s, n, pixels, kernel)


@compiled
def pixels_relu_gradient(work, gradient, pixels, size, bias_sums):
    """Set the gradient to 0 where ReLU gave 0, and add up what remains, the gradient of the first layer's bias."""
    totals = no_bias()
    for i in range(0, size, PIXEL):
        totals = _block_gradient(totals, work, gradient + i, pixels + i)
    add_bias(totals, work, bias_sums)


@intrinsic(Block(1, PIXEL))
def no_bias(code: Code) -> list[Any]:
    """Return the sum of no pixel's gradients."""
    return [code.constant(0.0, PIXEL)]


@intrinsic()
def add_bias(code: Code, totals: list[Any], work: Any, bias_sums: Any) -> None:
    """Add a sum of pixels' gradients to the gradient of the first layer's bias."""
    code.add_to(work, bias_sums, totals[0])


@intrinsic(Block(1, PIXEL))
def _block_gradient(code: Code, totals: list[Any], work: Any, gradient: Any, pixels: Any) -> list[Any]:
    arrived, zero = code.load(work, gradient, PIXEL), code.constant(0.0, PIXEL)
    passed = code.where_positive(code.load(work, pixels, PIXEL), arrived, zero)
    code.store(work, gradient, passed)
    return [code.builder.fadd(totals[0], passed)]


_Rows = Block(5 * _TOGETHER, _WIDTH)


@intrinsic(_Rows)
def _no_rows(code: Code) -> list[Any]:
    return [code.constant(0.0, _WIDTH)] * (5 * _TOGETHER)


@intrinsic()
def _add_rows(code: Code, sums: list[Any], work: Any, kernel: Any, row: Any) -> None:
    for i, total in enumerate(sums):
        code.add_to(work, code.at(kernel, (row, i)), total)


@intrinsic(_Rows)
def _add_window_rows(
    code: Code, sums: list[Any], work: Any, gradient: Any, indices: Any, shift: Any, map_: Any, start: Any, row: Any
) -> list[Any]:
    for o in range(_TOGETHER):
        g = code.repeat(work, code.at(gradient, o), _WIDTH)
        winner = code.at(start, code.index(indices, code.at(shift, (map_, o))))
        for ky in range(5):
            x = code.load(work, code.at(winner, (row, ky)), _WIDTH)
            sums[5 * o + ky] = code.add_product(sums[5 * o + ky], g, x)
    return sums


@compiled
def first_kernel_gradient(images, following, work, indices, s, gradient, shifts):
    """Add a sample's share to the gradient of the first layer's kernels; meanwhile the following image is fetched.

    All pools are visited, those that ReLU blocked with a gradient of 0: to list the others would take as long.
    """
    part = s.image // (CHANNELS1 // _TOGETHER * s.taps1 // _WIDTH * s.height1) + 1
    map_, row, step = s.map, s.padded_row, 2 * s.channels
    for o in range(0, CHANNELS1, _TOGETHER):
        for k in range(0, s.taps1, _WIDTH):
            sums = _no_rows()
            for y in range(s.height1):
                following = fetch(images, following, part)
                at = gradient + ((y + s.padding) * s.pitch + s.padding) * PIXEL + o
                shift = shifts + o * map_ + y * s.pitch
                start = s.padded + 2 * y * row + k
                for _ in range(s.width1):
                    sums = _add_window_rows(sums, work, at, indices, shift, map_, start, row)
                    at += PIXEL
                    shift += 1
                    start += step
            _add_rows(sums, work, s.sums1 + o * 5 * s.taps1 + k, s.taps1)
