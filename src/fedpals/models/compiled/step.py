"""The whole training step of the paper's small network as one compiled function.

Layers 1 and 2 are convolutions, 3 to 5 are dense. See `fedpals.models.compiled` for what lies where, and why.
"""

# Numba infers the types of the compiled functions; annotations would only repeat "array" and "integer".
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba.core import types

from fedpals.models.compiled import gradients_wide as wide
from fedpals.models.compiled.compiling import compiled, inlined
from fedpals.models.compiled.convolutions import first_layer, pad_image, second_layer, split_planes
from fedpals.models.compiled.gradients import (
    add_kernels,
    add_windows,
    first_kernel_gradient,
    list_winners,
    pixels_relu_gradient,
)
from fedpals.models.compiled.lanes import Code, as_record, get, intrinsic, least, put
from fedpals.models.compiled.layout import CHANNELS1, CHANNELS2, GROUP, PIXEL, TABLE, UNITS3, UNITS4
from fedpals.models.compiled.matrix import column_sums, product, relu, relu_gradient, transpose
from fedpals.models.compiled.native import BACKWARD, FORWARD, LOSS, NO_IMAGE, NO_LABEL, PACKED
from fedpals.models.compiled.processor import LANES

_as_table = as_record(TABLE)

_NUMBERS, _INTEGERS = types.CPointer(types.float32), types.CPointer(types.int64)
SIGNATURE = types.int64(
    types.int64, _NUMBERS, types.int64, _INTEGERS, types.int64, _NUMBERS, _INTEGERS, _NUMBERS, types.float64, _INTEGERS,
    _NUMBERS, types.CPointer(types.int32), types.CPointer(types.float64),
)  # fmt: skip


def run(parts, images, count, rows, n, vector, labels, adjustment, share, table, work, indices, loss):
    """Compute some parts of a step for a batch of n samples, and set ``loss`` to the sum of its losses times ``share``.

    The batch is images[rows], from (count, H, W, C), flat, and labels[rows]. The loss is the cross-entropy of
    factor · logits + offset, times the weight of the label, where ``adjustment`` is the factors, the offsets and the
    weights, one for each label. Logits, their gradient (gradient5) and that of the parameters are in ``work``, where
    ``table`` says. Returns what is wrong with the samples.
    """
    s = _as_table(table)
    for i in range(n):
        if rows[i] < 0 or rows[i] >= count:
            return NO_IMAGE
        if parts & LOSS and (labels[rows[i]] < 0 or labels[rows[i]] >= s.classes):
            return NO_LABEL
    if parts & FORWARD:
        if not parts & PACKED:
            _pack(vector, work, s)
        _convolutions(images, rows, n, work, indices, s)
        _dense_layers(n, work, s)
    if parts & LOSS:
        loss[0] = _loss(rows, n, labels, adjustment, share, work, s)
    if parts & BACKWARD:
        _dense_layers_backward(n, work, s)
        _convolutions_backward(images, rows, n, work, indices, s)
    return 0


@inlined
def _pack(vector, work, s):
    """Copy the parameters, and put weights into the order in which they are used."""
    start, size = s.vector, s.size
    for i in range(size):
        put(work, start + i, get(vector, i))
    outputs1, outputs2, units3, units4 = np.int64(CHANNELS1), np.int64(CHANNELS2), np.int64(UNITS3), np.int64(UNITS4)
    inputs1, inputs2 = 25 * s.channels, 25 * outputs1
    transpose(work, s.vector, inputs1, s.tap_weights1, outputs1, outputs1, inputs1)
    transpose(work, s.vector + s.weights2, inputs2, s.tap_weights2, outputs2, outputs2, inputs2)
    transpose(work, s.vector + s.weights3, s.features, s.transposed3, s.row3, units3, s.features)
    transpose(work, s.vector + s.weights4, units3, s.transposed4, s.row4, units4, units3)
    transpose(work, s.vector + s.weights5, units4, s.transposed5, s.row5, s.classes, units4)


@inlined
def _convolutions(images, rows, n, work, indices, s):
    for i in range(n):
        pad_image(images, rows[i] * s.image, work, s)
        split_planes(work, s)
        pixels, following = s.pixels + i * s.sample, rows[least(i + 1, n - 1)] * s.image
        first_layer(images, following, work, indices, s, pixels, s.shifts1 + i * CHANNELS1 * s.map)
        winners = (s.winners2 if LANES == 16 else s.places2) + i * s.features
        second_layer(work, indices, s, pixels, winners, s.outputs2 + i * s.features_row)


@inlined
def _dense_layers(n, work, s):
    # Without a type, numba compiles a function again for each constant that it is called with.
    units3, units4 = np.int64(UNITS3), np.int64(UNITS4)
    _dense(n, work, s, s.outputs2, s.features_row, s.features, s.transposed3, s.row3, s.bias3, s.outputs3)
    relu(work, s.outputs3, n * s.row3)
    _dense(n, work, s, s.outputs3, s.row3, units3, s.transposed4, s.row4, s.bias4, s.outputs4)
    relu(work, s.outputs4, n * s.row4)
    _dense(n, work, s, s.outputs4, s.row4, units4, s.transposed5, s.row5, s.bias5, s.logits)


@inlined
def _dense(n, work, s, x, x_row, inputs, weights, row, bias, out):
    """Set out = x · weights + bias, where weights are transposed, (inputs, outputs)."""
    one = np.int64(1)
    product(work, x, x_row, one, weights, row, s.vector + bias, out, row, n, row, inputs, s.zeros, s.spare)


@inlined
def _loss(rows, n, labels, adjustment, share, work, s):
    """Return the loss and set its gradient, factor · (probability − [label is true]) · weight · share."""
    loss = 0.0
    for i in range(n):
        logits, out = s.logits + i * s.row5, s.gradient5 + i * s.row5
        label = labels[rows[i]]
        weight = np.float64(adjustment[2 * s.classes + label])
        scale = np.float32(weight * share)
        largest = np.float32(-np.inf)
        for k in range(s.classes):
            value = get(work, logits + k) * adjustment[k] + adjustment[s.classes + k]
            put(work, out + k, value)
            largest = max(largest, value)
        loss += weight * (largest - np.float64(get(work, out + label)))
        for k in range(0, s.classes, LANES):
            _exponential(work, out + k, largest)
        total = np.float32(0.0)
        for k in range(s.classes):
            total += get(work, out + k)
        loss += weight * math.log(np.float64(total))
        for k in range(s.classes):
            difference = get(work, out + k) / total - np.float32(k == label)
            put(work, out + k, difference * adjustment[k] * scale)
    return loss * share


@intrinsic()
def _exponential(code: Code, work: Any, index: Any, largest: Any) -> None:
    """Set x to exp(x − largest), as 2^n · exp(r) with |r| ≤ ln(2)/2; of our own, so as not to depend on a library."""
    build = code.builder
    x = build.fsub(code.load(work, index), code.splat(largest))
    # Adding 1.5·2²³ rounds to a whole number, which then is in the last bits.
    shifted = code.add_product(code.constant(1.5 * 2**23), x, code.constant(math.log2(math.e)))
    n = build.fsub(shifted, code.constant(1.5 * 2**23))
    r = code.add_product(x, n, code.constant(-0.693359375))
    r = code.add_product(r, n, code.constant(2.12194440e-4))  # both together −ln 2
    series = code.constant(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1.0, 1.0):
        series = code.add_product(code.constant(factor), series, r)
    bits = build.shl(build.bitcast(shifted, code.integer(0).type), code.integer(23))
    power = build.bitcast(build.add(bits, build.bitcast(code.constant(1.0), bits.type)), x.type)
    small = build.fcmp_ordered("<", x, code.constant(-87.0))
    code.store(work, index, build.select(small, code.constant(0.0), build.fmul(series, power)))


@inlined
def _dense_layers_backward(n, work, s):
    units3, units4 = np.int64(UNITS3), np.int64(UNITS4)
    x, x_row, weights, bias, out = s.outputs4, s.row4, s.weights5, s.bias5, s.gradient4
    _dense_backward(n, work, s, s.gradient5, s.row5, s.classes, x, x_row, units4, weights, bias, out)
    relu_gradient(work, s.gradient4, s.outputs4, n * s.row4)
    x, x_row, weights, bias, out = s.outputs3, s.row3, s.weights4, s.bias4, s.gradient3
    _dense_backward(n, work, s, s.gradient4, s.row4, units4, x, x_row, units3, weights, bias, out)
    relu_gradient(work, s.gradient3, s.outputs3, n * s.row3)
    x, x_row, weights, bias, out = s.outputs2, s.features_row, s.weights3, s.bias3, s.gradient2
    _dense_backward(n, work, s, s.gradient3, s.row3, units3, x, x_row, s.features, weights, bias, out)


@inlined
def _dense_backward(n, work, s, gradient, row, outputs, x, x_row, inputs, weights, bias, out):
    """Set the gradients of a layer's weights, bias and input (``out``) from that of its output."""
    one, at, zeros = np.int64(1), s.gradient + weights, s.zeros
    product(work, gradient, one, row, x, x_row, zeros, at, inputs, outputs, inputs, n, zeros, s.spare)
    column_sums(work, gradient, row, s.gradient + bias, n, outputs, s.spare)
    at = s.vector + weights
    product(work, gradient, row, one, at, inputs, zeros, out, x_row, n, x_row, outputs, zeros, s.spare)


@inlined
def _convolutions_backward(images, rows, n, work, indices, s):
    """Set the gradient of the convolutions' parameters."""
    _fill(work, s.sums1, CHANNELS1 * 5 * s.taps1)
    _fill(work, s.sums2, np.int64(CHANNELS2 * 25 * PIXEL))
    _fill(work, s.bias_sums1, np.int64(PIXEL))
    if LANES == 16:
        _add_samples_wide(images, rows, n, work, indices, s)
    else:
        _add_samples(images, rows, n, work, indices, s)
    _unpack(work, s)


@inlined
def _add_samples(images, rows, n, work, indices, s):
    for first in range(0, n, GROUP):
        count = least(GROUP, n - first)
        pixels = s.pixels + first * s.sample
        _fill(work, s.pixels_gradient, count * s.sample)
        for o in range(CHANNELS2):
            winners = list_winners(work, indices, s, first, count, o)
            add_windows(work, indices, s, winners, pixels, s.sums2 + o * 25 * PIXEL)
            add_kernels(work, indices, s, winners, s.pixels_gradient, s.vector + s.weights2 + o * 25 * CHANNELS1)
        pixels_relu_gradient(work, s.pixels_gradient, pixels, count * s.sample, s.bias_sums1)
        for i in range(first, first + count):
            pad_image(images, rows[i] * s.image, work, s)
            gradient, shifts = s.pixels_gradient + (i - first) * s.sample, s.shifts1 + i * CHANNELS1 * s.map
            following = rows[least(i + 1, n - 1)] * s.image
            first_kernel_gradient(images, following, work, indices, s, gradient, shifts)


@inlined
def _add_samples_wide(images, rows, n, work, indices, s):
    wide.place_kernels(work, s)
    for first in range(0, n, GROUP):
        count = least(GROUP, n - first)
        wide.second_kernel_gradient(work, indices, s, first, count)
        for i in range(first, first + count):
            _fill(work, s.pixels_gradient, s.sample)
            wide.pixels_gradient(work, indices, s, i)
            wide.map_gradients(work, s, s.pixels + i * s.sample)
            pad_image(images, rows[i] * s.image, work, s)
            following, shifts = rows[least(i + 1, n - 1)] * s.image, s.shifts1 + i * CHANNELS1 * s.map
            wide.first_kernel_gradient(images, following, work, indices, s, shifts)


@compiled
def _fill(work, start, size):
    for i in range(start, start + size):
        put(work, i, 0.0)


@inlined
def _unpack(work, s):
    """Put the gradient of the convolutions into the order of the parameters."""
    row, sums, bias_sums, taps, out = 5 * s.channels, s.sums1, s.bias_sums1, s.taps1, s.gradient
    for i in range(CHANNELS1 * 5):
        for t in range(row):
            put(work, out + i * row + t, get(work, sums + i * taps + t))
    for o in range(CHANNELS1):
        put(work, s.gradient + s.bias1 + o, get(work, bias_sums + o))
    sums, out = s.sums2, s.gradient + s.weights2
    for i in range(CHANNELS2 * 25):
        for c in range(CHANNELS1):
            put(work, out + i * CHANNELS1 + c, get(work, sums + i * PIXEL + c))
    for o in range(CHANNELS2):
        # The middle of a window is never padding, and the seventh number of a pixel is 1.
        put(work, s.gradient + s.bias2 + o, get(work, s.sums2 + (o * 25 + 12) * PIXEL + CHANNELS1))
