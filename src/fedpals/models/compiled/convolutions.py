"""The forward pass of the two convolutions, each with its 2×2 max-pooling and ReLU, one sample at a time.

A layer computes the four outputs of a pool side by side and takes their maximum while they are in registers.
The vectors of the first layer are neighbouring pools, because it has few channels; those of the second are its
16 channels.
"""

# Numba infers the types of the compiled functions; annotations would only repeat "array" and "integer".
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np

from fedpals.models.compiled.compiling import compiled
from fedpals.models.compiled.lanes import Block, Code, get, intrinsic, prefetch, put, transpose8
from fedpals.models.compiled.layout import CHANNELS1, CHANNELS2, LINE, PIXEL, POOLS
from fedpals.models.compiled.matrix import transpose, transpose_square
from fedpals.models.compiled.processor import LANES

_TOGETHER = CHANNELS1 if LANES == 16 else 2
"""Channels of the first layer whose sums are in registers together: 24 of 32 registers, or 8 of 16."""


@compiled
def pad_image(images, image, work, s):
    """Copy an image into its padding, which stays 0."""
    row = s.width * s.channels
    for y in range(s.height):
        x = image + y * row
        out = s.padded + (y + s.padding) * s.padded_row + s.padding * s.channels
        if row < 8:
            for i in range(row):
                put(work, out + i, get(images, x + i))
        else:
            for i in range(0, row - 8, 8):
                _copy(images, x + i, work, out + i)
            _copy(images, x + row - 8, work, out + row - 8)  # it may overlap: behind the last image is no room


@intrinsic()
def _copy(code: Code, source: Any, x: Any, work: Any, out: Any) -> None:
    code.store(work, out, code.load(source, x, 8))


@compiled
def fetch(images, start, size):
    """Have a part of an image brought into the cache, and return its end."""
    for line in range(start, start + size, LINE):
        prefetch(images, line)
    return start + size


@compiled
def split_planes(work, s):
    """Split the padded image into planes, so that neighbouring pools read neighbouring numbers.

    Rows are written in vectors of 8 pairs of pixels, and what goes beyond the last pixel is overwritten by the next
    row. A square has eight columns, of which 2·C are wanted: those of an even row go on into the planes
    of odd rows, which the next row overwrites, and those of an odd row into room behind all planes.
    """
    C = s.channels
    for y in range(s.padded_height):
        x = s.padded + y * s.padded_row
        out = s.planes + (y & 1) * 2 * C * s.plane + (y >> 1) * s.pitch
        for pair in range(0, (s.padded_width + 1) >> 1, 8):
            if C == 1:
                _split(work, x + 2 * pair, out + pair, s.plane)
            else:
                for j in range(0, 2 * C, 8):
                    transpose_square(work, x + 2 * C * pair + j, 2 * C, out + j * s.plane + pair, s.plane)


@intrinsic()
def _split(code: Code, work: Any, x: Any, out: Any, plane: Any) -> None:
    """Split 16 numbers into even and odd places."""
    left, right = code.load(work, x, 8), code.load(work, code.at(x, 8), 8)
    code.store(work, out, code.shuffle(left, right, list(range(0, 16, 2))))
    code.store(work, code.at(out, plane), code.shuffle(left, right, list(range(1, 16, 2))))


@compiled
def first_layer(images, following, work, indices, s, pixels, shifts):
    """Compute ``pixels``, and the shifts of the pools' winners; meanwhile the following image is fetched."""
    inner = pixels + (s.padding * s.pitch + s.padding) * PIXEL
    odd_rows, odd_columns = 2 * s.channels * s.plane, s.channels * s.plane
    part = s.image * LANES // s.map
    for v in range(0, s.map, LANES):
        following = fetch(images, following, part)
        for o in range(0, CHANNELS1, _TOGETHER):
            sums = _start1(work, s.vector + s.bias1 + o)
            for c in range(s.channels):
                plane = s.planes + v + c * s.plane
                for ky in range(5):
                    weights = s.tap_weights1 + (ky * 5 * s.channels + c) * CHANNELS1 + o
                    upper = plane + (ky & 1) * odd_rows + (ky >> 1) * s.pitch
                    lower = plane + (~ky & 1) * odd_rows + ((ky + 1) >> 1) * s.pitch
                    sums = _add_row1(sums, work, upper, lower, odd_columns, weights, s.channels * CHANNELS1)
            maps, shift = s.maps + o * LANES, shifts + o * s.map + v
            _pool1(sums, work, maps, indices, shift, s.map, s.padded_row, s.channels)
        _interleave(work, s.maps, inner + v * PIXEL)
    if s.padding:
        # Between the ends of rows are pools that are none; padding is to be there.
        for y in range(s.height1):
            end = y * s.pitch + s.width1
            until = (y + 1) * s.pitch if y + 1 < s.height1 else s.map
            for i in range(inner + end * PIXEL, inner + until * PIXEL):
                put(work, i, 0.0)


@intrinsic(Block(4 * _TOGETHER))
def _start1(code: Code, work: Any, bias: Any) -> list[Any]:
    return [code.repeat(work, code.at(bias, o)) for o in range(_TOGETHER) for _ in range(4)]


@intrinsic(Block(4 * _TOGETHER))
def _add_row1(
    code: Code, sums: list[Any], work: Any, upper: Any, lower: Any, odd: Any, weights: Any, tap: Any
) -> list[Any]:
    """Add one row of the kernels to the upper and lower outputs of pools, tap by tap: few operands are alive."""
    for kx in range(5):
        x = [
            code.load(work, code.at(row, (odd, column & 1), column >> 1))
            for row in (upper, lower)
            for column in (kx, kx + 1)
        ]
        for o in range(_TOGETHER):
            # One weight at a time: all of them at once would take registers from the sums.
            w = code.repeat(work, code.at(weights, (tap, kx), o))
            for i in range(4):
                sums[4 * o + i] = code.add_product(sums[4 * o + i], x[i], w)
    return sums


@intrinsic()
def _pool1(
    code: Code, sums: list[Any], work: Any, maps: Any, indices: Any, shifts: Any, map_: Any, down: Any, right: Any
) -> None:
    for o in range(_TOGETHER):
        best, shift = _maximum(code, sums[4 * o : 4 * o + 4], down, right)
        code.store(work, code.at(maps, o * LANES), code.where_positive(best, best, code.constant(0.0)))
        code.store(indices, code.at(shifts, (map_, o)), shift)


def _maximum(code: Code, four: list[Any], down: Any, right: Any) -> tuple[Any, Any]:
    """Return the largest of four outputs and its shift; the first of equals wins, and NaN wins over numbers."""
    build, width = code.builder, four[0].type.count
    best, shift = four[0], code.integer(0, width)
    for value, its_shift in zip(four[1:], (right, down, code.at(down, right)), strict=True):
        larger = build.fcmp_ordered(">", value, best)
        best = build.select(larger, value, best)
        shift = build.select(larger, code.splat_index(its_shift, width), shift)
    upper = build.fcmp_unordered("uno", four[0], four[1])
    lower = build.fcmp_unordered("uno", four[2], four[3])
    return build.select(build.or_(upper, lower), code.constant(float("nan"), width), best), shift


@intrinsic()
def _interleave(code: Code, work: Any, maps: Any, pixels: Any) -> None:
    """Put the maps together, pixel by pixel.

    The seventh number of a pixel is 1: what the gradient of the kernels has there is that of the bias.
    """
    for half in range(0, LANES, 8):
        rows = [code.load(work, code.at(maps, o * LANES + half), 8) for o in range(CHANNELS1)]
        rows += [code.constant(1.0, 8), code.constant(0.0, 8)]
        for x, pixel in enumerate(transpose8(code, rows)):
            code.store(work, code.at(pixels, (half + x) * PIXEL), pixel)


@compiled
def second_layer(work, indices, s, pixels, winners, outputs):
    """Compute ``outputs``, (16, pools), and the winners, (pools, 16): their ``places2``, with 16 lanes ``winners2``."""
    row = s.pitch * PIXEL
    for q in range(0, s.pools, POOLS):
        sums = _start2(work, s.vector + s.bias2)
        for ky in range(5):
            for c in range(CHANNELS1):
                weights = s.tap_weights2 + (ky * 5 * CHANNELS1 + c) * CHANNELS2
                sums = _add_row2(sums, work, pixels + ky * row + c, row, indices, s.bases + q, weights)
        at = q * CHANNELS2
        _pool2(sums, work, s.pooled + at, indices, s.bases + q, winners + at, row)
    channels = np.int64(CHANNELS2)
    transpose(work, s.pooled, channels, outputs, s.pools, s.pools, channels)


@intrinsic(Block(4 * POOLS, CHANNELS2))
def _start2(code: Code, work: Any, bias: Any) -> list[Any]:
    return [code.load(work, bias, CHANNELS2)] * (4 * POOLS)


@intrinsic(Block(4 * POOLS, CHANNELS2))
def _add_row2(
    code: Code, sums: list[Any], work: Any, pixels: Any, row: Any, indices: Any, bases: Any, weights: Any
) -> list[Any]:
    """Add one row and channel of the kernels to the outputs of some pools; most numbers of a row are used twice."""
    first = [code.at(pixels, code.index(indices, code.at(bases, q))) for q in range(POOLS)]
    for kx in range(5):
        w = code.load(work, code.at(weights, kx * CHANNELS1 * CHANNELS2), CHANNELS2)
        x = [
            code.repeat(work, code.at(pixel, (row, dy), (kx + dx) * PIXEL), CHANNELS2)
            for pixel in first
            for dy in (0, 1)
            for dx in (0, 1)
        ]
        sums = [code.add_product(total, value, w) for total, value in zip(sums, x, strict=True)]
    return sums


@intrinsic()
def _pool2(
    code: Code, sums: list[Any], work: Any, pooled: Any, indices: Any, bases: Any, winners: Any, row: Any
) -> None:
    for q in range(POOLS):
        if LANES == 16:
            best, winner = _maximum(code, sums[4 * q : 4 * q + 4], row.type(2), row.type(1))
            number = code.builder.sitofp(winner, best.type)
            lost = code.constant(-1.0, CHANNELS2)
            code.store(work, code.at(winners, q * CHANNELS2), code.where_positive(best, number, lost))
        else:
            best, shift = _maximum(code, sums[4 * q : 4 * q + 4], row, row.type(PIXEL))
            base = code.splat(code.number(indices, code.at(bases, q)), CHANNELS2)
            place = code.where_positive(best, code.builder.add(base, shift), code.integer(-1, CHANNELS2))
            code.store(indices, code.at(winners, q * CHANNELS2), place)
        code.store(work, code.at(pooled, q * CHANNELS2), code.where_positive(best, best, code.constant(0.0, CHANNELS2)))
