"""The backward pass of the two convolutions with vectors of 16 numbers.

As in `gradients`, a pool passes its gradient to its winner alone. With 32 registers, more of what is added up stays in
them: the gradient of a whole kernel of the second layer, or of all pixels that one of its pools sees. A vector is two
neighbouring pixels, the first of which has an even number, so that none crosses a cache line: a row of a window that
starts at an even pixel is [0 1] [2 3] [4 ·], of one that starts at an odd pixel [· 0] [1 2] [3 4]. Winners are listed
without a branch, 16 at a time.
"""

# Numba infers the types of the compiled functions; annotations would only repeat "array" and "integer".
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types

from fedpals.models.compiled.compiling import compiled
from fedpals.models.compiled.convolutions import fetch
from fedpals.models.compiled.gradients import add_bias, no_bias
from fedpals.models.compiled.lanes import Block, Code, get_index, intrinsic, put, put_index, stay_apart, transpose8
from fedpals.models.compiled.layout import CHANNELS1, CHANNELS2, PIXEL, PLACED, PLACED_ROW
from fedpals.models.compiled.matrix import transpose

_PAIR = 2 * PIXEL
"""Numbers of a vector of two pixels."""
_VECTORS = 3
"""Vectors of a row of a window."""


def _window(odd: int) -> list[tuple[int, int]]:
    """Return the pixels (y, x) of the halves of a window's vectors, where x is outside of 0 to 4 if there is none."""
    return [(y, x - odd) for y in range(5) for x in range(2 * _VECTORS)]


# The gradient of the pixels: pool by pool, since those that a pool sees fit into registers.


@compiled
def place_kernels(work, s):
    """Put the kernels of the second layer into the vectors of windows that start at even, and at odd pixels.

    They are (2, 16 kernels, 1 + 5 rows), and one row more. The first is of zeros: six rows from it are what a pool's
    pixels get from a winner in its lower row, and six rows from the next are for a winner in its upper row.
    """
    stay_apart()
    for o in range(CHANNELS2):
        kernel, place = s.vector + s.weights2 + o * 25 * CHANNELS1, s.placed2 + (o * 6 + 1) * PLACED_ROW
        _place_even(work, kernel, place)
        _place_odd(work, kernel, place + PLACED)


def _placing(odd: int) -> Any:
    @intrinsic()
    def place(code: Code, work: Any, kernel: Any, out: Any) -> None:
        # The last two numbers of a pixel are of the next one; where they are added, nobody looks.
        for i, (y, x) in enumerate(_window(odd)):
            if 0 <= x < 5:
                weights = code.load(work, code.at(kernel, (y * 5 + x) * CHANNELS1), PIXEL)
                code.store(work, code.at(out, i * PIXEL), weights)

    return place


_place_even, _place_odd = _placing(0), _placing(1)


@compiled
def pixels_gradient(work, indices, s, sample):
    """Add what the pools of a sample pass on to the gradient of its pixels, ``pixels_gradient``."""
    row, gradients, places, channels = s.pitch * PIXEL, s.winner_gradients, s.winner_places, np.int64(CHANNELS2)
    transpose(work, s.gradient2 + sample * s.features_row, s.pools, s.pooled, channels, channels, s.pools)
    for q in range(s.pools):
        winners = s.winners2 + (sample * s.pools + q) * CHANNELS2
        n = _list_channels(work, indices, winners, s.pooled + q * CHANNELS2, s.placed2, gradients, places)
        start = s.pixels_gradient + get_index(indices, s.bases + q)
        pixels = _load_pixels(work, start, row)
        for i in range(n):
            pixels = _add_kernel(pixels, work, gradients + i, get_index(indices, places + i))
        _store_pixels(pixels, work, start, row)


@intrinsic(types.intp)
def _list_channels(
    code: Code, work: Any, indices: Any, winners: Any, pool: Any, placed: Any, gradients: Any, places: Any
) -> Any:
    """List the gradients of the channels whose winner ReLU let pass, and where their kernels are placed; return n."""
    there, right, below = _outputs(code, work, winners)
    build = code.builder
    kernels = code.integers([o * 6 * PLACED_ROW for o in range(CHANNELS2)])
    kernels = build.add(kernels, code.splat_index(placed, CHANNELS2))
    kernels = build.add(kernels, build.select(right, code.integer(PLACED, CHANNELS2), code.integer(0, CHANNELS2)))
    kernels = build.add(kernels, build.select(below, code.integer(0, CHANNELS2), code.integer(PLACED_ROW, CHANNELS2)))
    code.pack(work, gradients, code.load(work, pool, CHANNELS2), there)
    code.pack(indices, places, kernels, there)
    return code.count(there)


def _outputs(code: Code, work: Any, winners: Any) -> tuple[Any, Any, Any]:
    """Return which of 16 pools have a winner, in which it is on the right, and in which below."""
    build, numbers = code.builder, code.load(work, winners, 16)
    equal = [build.fcmp_ordered("==", numbers, code.constant(float(i), 16)) for i in range(4)]
    right, below = build.or_(equal[1], equal[3]), build.or_(equal[2], equal[3])
    return build.or_(build.or_(equal[0], equal[1]), below), right, below


@intrinsic(Block(6 * _VECTORS, _PAIR))
def _load_pixels(code: Code, work: Any, start: Any, row: Any) -> list[Any]:
    return [code.load(work, code.at(start, (row, y), v * _PAIR), _PAIR) for y in range(6) for v in range(_VECTORS)]


@intrinsic(Block(6 * _VECTORS, _PAIR))
def _add_kernel(code: Code, pixels: list[Any], work: Any, gradient: Any, kernel: Any) -> list[Any]:
    g = code.repeat(work, gradient, _PAIR)
    return [
        code.add_product(total, g, code.load(work, code.at(kernel, i * _PAIR), _PAIR)) for i, total in enumerate(pixels)
    ]


@intrinsic()
def _store_pixels(code: Code, pixels: list[Any], work: Any, start: Any, row: Any) -> None:
    for i, pixel in enumerate(pixels):
        code.store(work, code.at(start, (row, i // _VECTORS), i % _VECTORS * _PAIR), pixel)


# The gradient of the second layer's kernels: channel by channel, since the sums of a kernel fit into registers.


def _of_windows(odd: int) -> tuple[Any, Any]:
    """Return functions that list winners whose windows start at even pixels, or odd ones, and add these windows up."""
    window = _window(odd)
    kind = Block(len(window) // 2, _PAIR)

    @intrinsic(types.intp)
    def list_winners(
        code: Code, work: Any, indices: Any, winners: Any, gradient: Any, bases: Any, sample: Any, row: Any,
        gradients: Any, places: Any,
    ) -> Any:  # fmt: skip
        """List the gradients of such winners in 16 pools of a channel, and where their windows start; return n."""
        there, right, below = _outputs(code, work, winners)
        build = code.builder
        wanted = build.and_(there, right if odd else build.not_(right))
        starts = build.add(code.load(indices, bases, 16), code.splat_index(sample, 16))
        starts = build.add(starts, build.select(below, code.splat_index(row, 16), code.integer(0, 16)))
        code.pack(work, gradients, code.load(work, gradient, 16), wanted)
        code.pack(indices, places, starts, wanted)
        return code.count(wanted)

    @intrinsic(kind)
    def zeros(code: Code) -> list[Any]:
        return [code.constant(0.0, _PAIR)] * kind.count

    @intrinsic(kind)
    def add_window(code: Code, sums: list[Any], work: Any, gradient: Any, start: Any, row: Any) -> list[Any]:
        g = code.repeat(work, gradient, _PAIR)
        places = [code.at(start, (row, y), v * _PAIR) for y in range(5) for v in range(_VECTORS)]
        return [code.add_product(total, g, code.load(work, at, _PAIR)) for total, at in zip(sums, places, strict=True)]

    @intrinsic()
    def add_sums(code: Code, sums: list[Any], work: Any, kernel: Any) -> None:
        for i, (y, x) in enumerate(window):
            if 0 <= x < 5:
                total = code.shuffle(sums[i // 2], sums[i // 2], list(range(PIXEL * (i % 2), PIXEL * (i % 2 + 1))))
                code.add_to(work, code.at(kernel, (y * 5 + x) * PIXEL), total)

    @compiled
    def add_windows(work, indices, n, gradients, places, pixels, row, kernel):
        stay_apart()
        sums = zeros()  # a sum over all samples at once would lose digits
        for i in range(n):
            sums = add_window(sums, work, gradients + i, pixels + get_index(indices, places + i), row)
        add_sums(sums, work, kernel)

    return list_winners, add_windows


_list_even, _add_even = _of_windows(0)
_list_odd, _add_odd = _of_windows(1)


@compiled
def second_kernel_gradient(work, indices, s, first, count):
    """Add the share of some samples to the gradient of the second layer's kernels."""
    channels, row, pixels = np.int64(CHANNELS2), s.pitch * PIXEL, s.pixels + first * s.sample
    gradients, places, odd_gradients, odd_places = s.winner_gradients, s.winner_places, s.odd_gradients, s.odd_places
    for i in range(count):
        winners = s.winners2 + (first + i) * s.pools * CHANNELS2
        transpose(
            work, winners, channels, s.channel_winners + i * CHANNELS2 * s.pools_row, s.pools_row, s.pools, channels
        )
    for o in range(CHANNELS2):
        even, odd = np.int64(0), np.int64(0)
        for i in range(count):
            gradient = s.gradient2 + (first + i) * s.features_row + o * s.pools
            winners, sample = s.channel_winners + (i * CHANNELS2 + o) * s.pools_row, i * s.sample
            for q in range(0, s.pools, 16):
                at, g, bases = winners + q, gradient + q, s.bases + q
                even += _list_even(work, indices, at, g, bases, sample, row, gradients + even, places + even)
                odd += _list_odd(work, indices, at, g, bases, sample, row, odd_gradients + odd, odd_places + odd)
        kernel = s.sums2 + o * 25 * PIXEL
        _add_even(work, indices, even, gradients, places, pixels, row, kernel)
        _add_odd(work, indices, odd, odd_gradients, odd_places, pixels, row, kernel)


# The first layer: those of its pools are listed that have a gradient, since ReLU lets only some pass.


@compiled
def map_gradients(work, s, pixels):
    """Put the pixels' gradient into maps, 0 where ReLU gave 0, and add it up, as the gradient of the bias."""
    totals = no_bias()
    for p in range(0, s.sample // PIXEL, 8):
        at = p * PIXEL
        totals = _to_maps(totals, work, s.pixels_gradient + at, pixels + at, s.map_gradients + p, s.pixels_row)
    add_bias(totals, work, s.bias_sums1)


@intrinsic(Block(1, PIXEL))
def _to_maps(code: Code, totals: list[Any], work: Any, gradient: Any, pixels: Any, maps: Any, map_: Any) -> list[Any]:
    rows, zero = [], code.constant(0.0, PIXEL)
    for i in range(8):
        arrived = code.load(work, code.at(gradient, i * PIXEL), PIXEL)
        rows.append(code.where_positive(code.load(work, code.at(pixels, i * PIXEL), PIXEL), arrived, zero))
        totals = [code.builder.fadd(totals[0], rows[-1])]
    for o, channel in enumerate(transpose8(code, rows)[:CHANNELS1]):
        code.store(work, code.at(maps, (map_, o)), channel)
    return totals


@intrinsic(types.intp)
def _list_places(
    code: Code, work: Any, indices: Any, gradient: Any, bases: Any, shifts: Any, gradients: Any, places: Any
) -> Any:
    """List which of 16 pools of the first layer have a gradient, and where their winners' windows start; return n."""
    build, g = code.builder, code.load(work, gradient, 16)
    wanted = build.fcmp_unordered("!=", g, code.constant(0.0, 16))  # NaN, too
    starts = build.add(code.load(indices, bases, 16), code.load(indices, shifts, 16))
    code.pack(work, gradients, g, wanted)
    code.pack(indices, places, starts, wanted)
    return code.count(wanted)


def _kernel_gradient(width: int) -> Any:
    """Return `first_kernel_gradient` by vectors of ``width`` numbers of a row of a kernel.

    It adds a sample's share to the gradient of the first layer's kernels; meanwhile the following image is fetched.
    Two winners take turns in two sets of sums, since a sum has to wait for the one before it.
    """
    kind = Block(10, width)

    @intrinsic(kind)
    def zeros(code: Code) -> list[Any]:
        return [code.constant(0.0, width)] * 10

    @intrinsic(kind)
    def add_windows(
        code: Code, sums: list[Any], work: Any, gradient: Any, start: Any, other_start: Any, row: Any
    ) -> list[Any]:
        both = [(code.repeat(work, code.at(gradient, i), width), at) for i, at in enumerate((start, other_start))]
        factors = [(g, code.load(work, code.at(at, (row, y)), width)) for g, at in both for y in range(5)]
        return [code.add_product(total, *pair) for total, pair in zip(sums, factors, strict=True)]

    @intrinsic()
    def add_sums(code: Code, sums: list[Any], work: Any, kernel: Any, row: Any) -> None:
        for y in range(5):
            code.add_to(work, code.at(kernel, (row, y)), code.builder.fadd(sums[y], sums[5 + y]))

    @compiled
    def add_samples(images, following, work, indices, s, shifts):
        part, row, gradients, places = s.image // CHANNELS1 + 1, s.padded_row, s.winner_gradients, s.winner_places
        first = s.map_gradients + s.padding * (s.pitch + 1)
        for o in range(CHANNELS1):
            following = fetch(images, following, part)
            n = np.int64(0)
            for p in range(0, s.map, 16):
                gradient = first + o * s.pixels_row + p
                n += _list_places(
                    work, indices, gradient, s.bases1 + p, shifts + o * s.map + p, gradients + n, places + n
                )
            put(work, gradients + n, 0.0)  # if the last is alone
            put_index(indices, places + n, 0)
            for k in range(0, s.taps1, width):
                sums = zeros()
                for i in range(0, n, 2):
                    start, other = get_index(indices, places + i), get_index(indices, places + i + 1)
                    padded = s.padded + k
                    sums = add_windows(sums, work, gradients + i, padded + start, padded + other, row)
                add_sums(sums, work, s.sums1 + o * 5 * s.taps1 + k, s.taps1)

    return add_samples


_by_eight, _by_sixteen = _kernel_gradient(8), _kernel_gradient(16)


@compiled
def first_kernel_gradient(images, following, work, indices, s, shifts):
    """Add a sample's share to the gradient of the first layer's kernels by the vectors that fit their rows."""
    if s.taps1 % 16 == 0:
        _by_sixteen(images, following, work, indices, s, shifts)
    else:
        _by_eight(images, following, work, indices, s, shifts)
