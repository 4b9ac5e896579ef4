"""Where everything is in the work arrays, for one shape of images, number of labels and size of batch.

All numbers that are computed on the way are in one array of float32, all indices in one of int32. A compiled
function with two arrays and a table of places compiles several times faster than one with an array for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedpals.models.compiled.processor import COLUMNS, LANES, ROWS

CHANNELS1, CHANNELS2, UNITS3, UNITS4 = 6, 16, 120, 84
"""Channels of the two convolutions, units of the two hidden dense layers."""
PIXEL = 8
"""Numbers of a pixel between the convolutions: six channels, 1 and 0."""
GROUP = 6 if LANES == 16 else 4
"""Samples whose winners of the second layer are listed together, which makes their lists worth a loop."""
POOLS = 4 if LANES == 16 else 1
"""Pools of the second layer whose sums are in registers together."""
LINE = 16
"""Numbers of a cache line; all parts start at one."""
PLACED_ROW = 6 * PIXEL
PLACED = (CHANNELS2 * 6 + 1) * PLACED_ROW
"""Numbers of a row, and of all rows, of the second layer's kernels as windows have them (`gradients_wide`)."""


class Layout(NamedTuple):
    """The table of sizes and places; compiled functions see it as ``s``."""

    # The network: counts of pixels, unless they are said to be of numbers
    channels: int
    height: int
    width: int
    padding: int
    padded_height: int
    padded_width: int
    image: int
    """Numbers of an image."""
    classes: int
    height1: int
    width1: int
    """Size after the first pool."""
    pools: int
    """Pools of the second layer."""
    features: int
    """Numbers that the dense layers get of a sample."""
    # Steps from one row, plane or sample to the next
    padded_row: int
    """Numbers of a row of the padded image."""
    pitch: int
    """From one row to the next, in a plane as well as between the convolutions."""
    plane: int
    map: int
    """Places of a map of the first layer: rows are ``pitch`` apart, and vectors are whole."""
    sample: int
    """Numbers of a sample between the convolutions."""
    pools_row: int
    """Numbers of a row of pools of the second layer, filled up to whole vectors of 16."""
    pixels_row: int
    """Numbers of a row of pixels."""
    taps1: int
    """Numbers of one row of a kernel of the first layer, filled up to whole vectors; of 8, if it has only 5."""
    features_row: int
    row3: int
    row4: int
    row5: int
    """Numbers of a row of the dense layers' matrices."""
    # Places in the flat vector of parameters, whose first part are the weights of the first layer
    bias1: int
    weights2: int
    bias2: int
    weights3: int
    bias3: int
    weights4: int
    bias4: int
    weights5: int
    bias5: int
    size: int
    """Number of parameters."""
    # Places in the array of numbers: parameters and gradient
    vector: int
    """A copy of the parameters, so that all is in one array, and reading beyond them is safe."""
    gradient: int
    # ... parameters in the order in which they are used
    tap_weights1: int
    """Weights of the convolutions by tap, (5, 5, C, 6) and (5, 5, 6, 16)."""
    tap_weights2: int
    transposed3: int
    transposed4: int
    transposed5: int
    # ... one sample at a time
    padded: int
    """The image with its padding."""
    planes: int
    """(2, 2, C) planes: even and odd rows, even and odd columns, channels."""
    maps: int
    """(6, lanes): some outputs of the first layer."""
    pooled: int
    """(pools, 16): the output of the second layer."""
    # ... all samples of the batch
    pixels: int
    """Between the convolutions: (samples, rows, columns, 8)."""
    outputs2: int
    outputs3: int
    outputs4: int
    logits: int
    gradient2: int
    """With respect to outputs2, and so on."""
    gradient3: int
    gradient4: int
    gradient5: int
    winners2: int
    """(samples, pools, 16): which of a pool's outputs won, 0 to 3, or −1 where ReLU gave 0; with 16 lanes."""
    # ... the backward pass of the convolutions
    winner_gradients: int
    """Gradients that reach one channel, of the second layer those of all samples of a group."""
    pixels_gradient: int
    """With respect to the pixels of a group; of a sample with 16 lanes."""
    # ... with 16 lanes
    odd_gradients: int
    """Those of winner_gradients whose windows start at an odd pixel."""
    channel_winners: int
    """winners2 of a group, (samples, 16, pools_row)."""
    placed2: int
    """The second layer's kernels as windows have them, see `gradients_wide.place_kernels`."""
    map_gradients: int
    """The gradient of a sample's pixels as maps, (6, pixels_row)."""
    # ... with any
    sums1: int
    """(6, 5, taps1): the gradient of the first kernels so far."""
    sums2: int
    """(16, 5, 5, 8): the gradient of the second kernels so far."""
    bias_sums1: int
    # ... and helpers
    zeros: int
    spare: int
    """A tile of a product."""
    numbers: int
    """Length of the array."""
    # Places in the array of indices
    bases: int
    """Where the window of each pool of the second layer starts, in numbers of a sample."""
    bases1: int
    """Where the window of each place of a map of the first layer starts, in numbers of the padded image."""
    winner_places: int
    """Where the windows of winner_gradients start, in numbers of a group, an image, or placed2."""
    odd_places: int
    shifts1: int
    """(samples, 6, map): from the first window of a pool to that of its winner, in numbers of the padded image."""
    places2: int
    """(samples, pools, 16): where the winner's window starts, in numbers of a sample; −1 where ReLU gave 0; 8 lanes."""
    indices: int
    """Length of the array."""


TABLE = np.dtype([(name, np.int64) for name in Layout._fields])
"""How compiled functions read the table: numba takes 5 µs for a named tuple, but next to nothing for an array."""


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _places(sizes: Mapping[str, int], *, end: str) -> dict[str, int]:
    """Return the place of each part, one after the other, and of their end."""
    places, at = {}, 0
    for name, size in sizes.items():
        places[name] = at
        at += _up(size, LINE)
    return {**places, end: at}


@lru_cache(maxsize=64)
def layout(shape: tuple[int, int, int], classes: int, batch: int) -> Layout:
    """Return the table for batches of up to ``batch`` samples."""
    channels, height, width = shape
    padding = 2 if min(height, width) < 16 else 0
    padded_height, padded_width = height + 2 * padding, width + 2 * padding
    height1, width1 = (padded_height - 4) // 2, (padded_width - 4) // 2
    height2, width2 = (height1 + 2 * padding - 4) // 2, (width1 + 2 * padding - 4) // 2
    pools = height2 * width2
    features = CHANNELS2 * pools
    pitch = _up(max(_up(padded_width, 2) // 2, width1 + 2 * padding), 2)  # a row starts at an even pixel
    plane = _up(padded_height, 2) // 2 * pitch + 8  # rows are written in vectors of 8, and so is the last
    map_ = _up((height1 - 1) * pitch + width1, LANES)
    padded_row = _up(padded_width * channels, LINE)
    taps1 = _up(5 * channels, min(LANES, 8 * channels))
    sample = _up(((height1 + 2 * padding) * pitch + LANES) * PIXEL, 8 * PIXEL)
    features_row, row3, row4, row5 = (_up(n, LANES) for n in (features, UNITS3, UNITS4, classes))

    weights1, weights2 = CHANNELS1 * 25 * channels, CHANNELS2 * 25 * CHANNELS1
    lengths = [
        weights1, CHANNELS1, weights2, CHANNELS2, UNITS3 * features, UNITS3, UNITS4 * UNITS3, UNITS4, classes * UNITS4,
        classes,
    ]  # fmt: skip
    names = ["bias1", "weights2", "bias2", "weights3", "bias3", "weights4", "bias4", "weights5", "bias5", "size"]
    parameters = {name: int(end) for name, end in zip(names, np.cumsum(lengths), strict=True)}
    rows, pools_row, pixels_row = _up(batch, ROWS), _up(pools, 16), sample // PIXEL + LANES
    longest = max(GROUP * pools, map_) + 32  # lists are written in vectors of 16
    numbers = {
        # The last row of a matrix is read up to whole tiles.
        "vector": parameters["size"] + COLUMNS, "gradient": parameters["size"],
        "tap_weights1": weights1, "tap_weights2": weights2,
        "transposed3": features * row3, "transposed4": UNITS3 * row4, "transposed5": UNITS4 * row5,
        "padded": padded_height * padded_row + 16 * (channels + 1),
        # A transposed square may have six more columns than there are planes.
        "planes": (4 * channels + 6) * plane + 3 * pitch + LANES,
        "maps": CHANNELS1 * LANES, "pooled": (pools + POOLS) * CHANNELS2,
        "pixels": batch * sample, "outputs2": rows * features_row, "outputs3": rows * row3, "outputs4": rows * row4,
        "logits": rows * row5, "gradient2": rows * features_row, "gradient3": rows * row3, "gradient4": rows * row4,
        "gradient5": rows * row5,
        "winners2": batch * features + POOLS * CHANNELS2, "winner_gradients": longest,
        "pixels_gradient": GROUP * sample, "odd_gradients": longest,
        "channel_winners": GROUP * CHANNELS2 * pools_row, "placed2": 2 * PLACED,
        "map_gradients": CHANNELS1 * pixels_row, "sums1": CHANNELS1 * 5 * taps1, "sums2": CHANNELS2 * 25 * PIXEL,
        "bias_sums1": PIXEL,
        "zeros": max(features_row, row3, row4, row5), "spare": ROWS * COLUMNS,
    }  # fmt: skip
    indices = {
        "bases": pools_row + 16, "bases1": map_, "winner_places": longest, "odd_places": longest,
        "shifts1": batch * CHANNELS1 * map_, "places2": batch * features + POOLS * CHANNELS2,
    }  # fmt: skip
    return Layout(
        channels=channels, height=height, width=width, padding=padding, padded_height=padded_height,
        padded_width=padded_width, image=channels * height * width, classes=classes, height1=height1, width1=width1,
        pools=pools, features=features, padded_row=padded_row, pitch=pitch, plane=plane, map=map_, sample=sample,
        pools_row=pools_row, pixels_row=pixels_row, taps1=taps1, features_row=features_row, row3=row3, row4=row4,
        row5=row5, **parameters,
        **_places(numbers, end="numbers"), **_places(indices, end="indices"),
    )  # fmt: skip


def work_arrays(s: Layout) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Return the two arrays, zero but for what never changes, from the start of a cache line."""
    # What no sample writes must be 0: paddings, and the rests of kernels beyond their taps.
    numbers, indices = _aligned(s.numbers, np.float32), _aligned(s.indices, np.int32)
    width2 = (s.width1 + 2 * s.padding - 4) // 2
    rows, columns = np.divmod(np.minimum(np.arange(s.pools_row + 16), s.pools - 1), width2)
    indices[s.bases : s.bases + len(rows)] = 2 * (rows * s.pitch + columns) * PIXEL
    rows, columns = np.divmod(np.arange(s.map), s.pitch)
    indices[s.bases1 : s.bases1 + s.map] = 2 * (rows * s.padded_row + columns * s.channels)
    numbers[s.channel_winners : s.placed2] = -1.0  # behind the last pool is no winner
    return numbers, indices


def _aligned(length: int, kind: type[np.generic]) -> npt.NDArray[Any]:
    array = np.zeros(length + LINE, kind)
    first = -array.ctypes.data // array.itemsize % LINE
    return array[first : first + length]
