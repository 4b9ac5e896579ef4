"""The compiled step against torch's own layers in float64, whole and piece by piece.

`test_all_of_this_with_the_other_number_of_lanes` runs the file once more.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from numba.core import types
from torch import Tensor, nn

from fedpals.models import build
from fedpals.models.compiled import lanes
from fedpals.models.compiled.kernel import Kernel, kernel
from fedpals.models.compiled.layout import CHANNELS1, CHANNELS2, PIXEL, UNITS3, UNITS4, Layout, layout, work_arrays
from fedpals.models.compiled.matrix import column_sums, product, transpose
from fedpals.models.compiled.native import BACKWARD, FORWARD, LOSS, step
from fedpals.models.compiled.processor import COLUMNS, COMPRESSES, LANES, ROWS
from tests.models.reference import Shape, Step, error, flat, images, plain, torch_step

SHAPES = [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 17, 23), (4, 9, 40), (1, 4, 4), (5, 8, 21)]
"""The paper's two, padded ones with the smallest, odd sides, and more channels than are promised."""
BATCHES = [1, 3, 33, 50]
AS_THEY_ARE = torch.cat([torch.ones(10), torch.zeros(10), torch.ones(10)])
"""Factors and offsets of labels that change no logits, and equal weights."""


def batch(shape: Shape, n: int, classes: int = 10, seed: int = 0) -> tuple[Tensor, ...]:
    """Images, of which some rows are the batch, labels, and factors, offsets and weights of labels."""
    generator = torch.Generator().manual_seed(seed)
    x = images(n + 4, shape, seed)
    y = torch.randint(classes, (n + 4,), generator=generator)
    rows = torch.randperm(n + 4, generator=generator)[:n]
    factor, offset = torch.rand(classes, generator=generator) + 0.5, torch.randn(classes, generator=generator)
    return x, rows, y, factor, offset, torch.rand(classes, generator=generator) * 3


def compare(shape: Shape, n: int, classes: int = 10) -> dict[str, tuple[float, float]]:
    """Return the errors of the compiled step and of torch's in float32, by what they are of."""
    network = build("cnn", shape=shape, classes=classes, seed=0)
    x, rows, y, factor, offset, weights = batch(shape, n, classes)
    computing = kernel(shape, classes)
    vector = flat(list(network.parameters())).detach()
    loss, gradient = computing.loss_and_gradient(vector, torch.cat([factor, offset, weights]))(x, y, rows)
    shapes = [p.permute(0, 2, 3, 1).shape if p.dim() == 4 else p.shape for p in network.parameters()]
    parts = torch.split(gradient, [math.prod(s) for s in shapes])
    shaped = [part.view(s) for part, s in zip(parts, shapes, strict=True)]
    shaped = [g.permute(0, 3, 1, 2) if g.dim() == 4 else g for g in shaped]
    ours = Step(float(loss), shaped, computing.logits(vector, x[rows]))
    exact, single = (
        torch_step(plain(network, dtype), x[rows], y[rows], factor, offset, weights)
        for dtype in (torch.float64, torch.float32)
    )
    errors = {"logits": (error(ours.logits, exact.logits), error(single.logits, exact.logits))}
    errors["loss"] = (abs(ours.loss - exact.loss) / exact.loss, abs(single.loss - exact.loss) / exact.loss)
    for (name, _), a, b, wanted in zip(
        network.named_parameters(), ours.gradient, single.gradient, exact.gradient, strict=True
    ):
        errors[name] = error(a, wanted), error(b, wanted)
    return errors


@pytest.mark.parametrize("n", BATCHES)
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradient_are_those_of_torch(shape: Shape, n: int) -> None:
    for name, (ours, _) in compare(shape, n).items():
        assert ours < 3e-6, name


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_every_side_from_8_to_64(channels: int) -> None:
    """Every height and every width, as exact as torch's float32 is; which of two outputs is larger may be unclear."""
    ratios, largest = [], []
    for i, height in enumerate(range(8, 65)):
        errors = compare((channels, height, 8 + i * 23 % 57), 2, classes=3)
        largest.append(max(ours for ours, _ in errors.values()))
        ratios += [math.log((ours + 1e-8) / (theirs + 1e-8)) for ours, theirs in errors.values()]
    assert sorted(largest)[-3] < 5e-6
    assert max(largest) < 1e-2
    assert math.exp(sum(ratios) / len(ratios)) < 1.3


@pytest.mark.parametrize("classes", [2, 16, 62, 200])
def test_any_number_of_labels(classes: int) -> None:
    errors = compare((1, 8, 8), 5, classes)
    assert max(ours for ours, _ in errors.values()) < 3e-6


def test_large_batches_are_computed_in_parts() -> None:
    errors = compare((1, 8, 8), 700)
    assert max(ours for ours, _ in errors.values()) < 3e-6


class Pieces:
    """What lies in the work array after parts of a step; each piece is compared with torch given its own input."""

    def __init__(self, shape: Shape, n: int) -> None:
        self.network = build("cnn", shape=shape, classes=10, seed=0)
        self.x, self.rows, self.y, factor, offset, weights = batch(shape, n)
        self.n, self.s = n, layout(shape, 10, n)
        self.work, self.indices = work_arrays(self.s)
        self.work[self.s.gradient :][: self.s.size] = np.nan
        vector = flat(list(self.network.parameters())).detach().numpy()
        adjustment = torch.cat([factor, offset, weights]).numpy()
        flat_images = self.x.permute(0, 2, 3, 1).reshape(-1).numpy()
        table = np.array(self.s, np.int64)
        problem, exception, loss = np.ones(1, np.int64), np.zeros(1, np.int64), np.zeros(1)
        for parts in (FORWARD | LOSS, BACKWARD):
            arguments = [
                problem, exception, parts, flat_images, len(self.x), self.rows.numpy(), n, vector, self.y.numpy(),
                adjustment, 1 / n, table, self.work, self.indices, loss,
            ]  # fmt: skip
            assert step()(*(a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments)) == 0
            assert problem[0] == 0
        self.loss = float(loss[0])
        first, second = plain(self.network)[0], plain(self.network)[3]
        assert isinstance(first, nn.Conv2d)
        assert isinstance(second, nn.Conv2d)
        self.first, self.second = first, second

    def rows_of(self, part: str, row: int, columns: int) -> Tensor:
        at: int = getattr(self.s, part)
        return torch.from_numpy(self.work[at : at + self.n * row].reshape(self.n, row)[:, :columns].copy()).double()

    def pixels(self) -> Tensor:
        """What is between the convolutions, without padding, (n, 6, H, W)."""
        s, p = self.s, self.s.padding
        rows = s.height1 + 2 * p
        values = self.rows_of("pixels", s.sample, rows * s.pitch * PIXEL).view(self.n, rows, s.pitch, PIXEL)
        inner = values[:, p : p + s.height1, p : p + s.width1]
        assert bool((inner[..., 6] == 1).all())
        assert bool((inner[..., 7] == 0).all())
        border = values[:, :, : s.width1 + 2 * p].clone()
        border[:, p : p + s.height1, p : p + s.width1] = 0
        assert bool((border == 0).all())
        return inner[..., :CHANNELS1].permute(0, 3, 1, 2)

    def parameter_gradient(self, start: int, *shape: int) -> Tensor:
        at = self.s.gradient + start
        return torch.from_numpy(self.work[at : at + math.prod(shape)].copy()).view(shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 33])
class TestPieces:
    def test_first_layer(self, shape: Shape, n: int) -> None:
        pieces = Pieces(shape, n)
        wanted = nn.functional.max_pool2d(pieces.first(pieces.x[pieces.rows].double()), 2).relu()
        assert error(pieces.pixels(), wanted) < 1e-6

    def test_second_layer(self, shape: Shape, n: int) -> None:
        pieces = Pieces(shape, n)
        s = pieces.s
        wanted = nn.functional.max_pool2d(pieces.second(pieces.pixels()), 2).relu().flatten(1)
        assert error(pieces.rows_of("outputs2", s.features_row, s.features), wanted) < 1e-6

    def test_dense_layers_and_loss(self, shape: Shape, n: int) -> None:
        pieces = Pieces(shape, n)
        s, network = pieces.s, plain(pieces.network)
        two = pieces.rows_of("outputs2", s.features_row, s.features)
        three, four = pieces.rows_of("outputs3", s.row3, UNITS3), pieces.rows_of("outputs4", s.row4, UNITS4)
        logits = pieces.rows_of("logits", s.row5, 10)
        assert error(three, network[7](two).relu()) < 1e-6
        assert error(four, network[9](three).relu()) < 1e-6
        assert error(logits, network[11](four)) < 1e-6
        _, _, _, factor, offset, weights = batch(shape, n)
        logits.requires_grad_()
        labels = pieces.y[pieces.rows]
        losses = nn.functional.cross_entropy(logits * factor.double() + offset.double(), labels, reduction="none")
        loss = (losses * weights[labels]).mean()
        assert pieces.loss == pytest.approx(float(loss.detach()), rel=1e-6)
        (wanted,) = torch.autograd.grad(loss, logits)
        assert error(pieces.rows_of("gradient5", s.row5, 10), wanted) < 1e-6

    def test_dense_layers_backward(self, shape: Shape, n: int) -> None:
        pieces = Pieces(shape, n)
        s, network = pieces.s, plain(pieces.network)
        two = pieces.rows_of("outputs2", s.features_row, s.features)
        three, four = pieces.rows_of("outputs3", s.row3, UNITS3), pieces.rows_of("outputs4", s.row4, UNITS4)
        at5, at4 = pieces.rows_of("gradient5", s.row5, 10), pieces.rows_of("gradient4", s.row4, UNITS4)
        at3, at2 = pieces.rows_of("gradient3", s.row3, UNITS3), pieces.rows_of("gradient2", s.features_row, s.features)
        weight5, weight4, weight3 = (p for p in reversed(list(network.parameters())[4:]) if p.dim() == 2)
        assert error(at4, at5 @ weight5 * (four > 0)) < 1e-6
        assert error(at3, at4 @ weight4 * (three > 0)) < 1e-6
        assert error(at2, at3 @ weight3) < 1e-6
        for gradient, x, weights, bias in (
            (at5, four, s.weights5, s.bias5), (at4, three, s.weights4, s.bias4), (at3, two, s.weights3, s.bias3),
        ):  # fmt: skip
            outputs, inputs = gradient.shape[1], x.shape[1]
            assert error(pieces.parameter_gradient(weights, outputs, inputs), gradient.T @ x) < 1e-6
            assert error(pieces.parameter_gradient(bias, outputs), gradient.sum(0)) < 1e-6

    def test_convolutions_backward(self, shape: Shape, n: int) -> None:
        pieces = Pieces(shape, n)
        s, first, second = pieces.s, pieces.first, pieces.second
        x = pieces.x[pieces.rows].double()
        between = nn.functional.max_pool2d(first(x), 2).relu()
        out = nn.functional.max_pool2d(second(between), 2).relu().flatten(1)
        parameters = [first.weight, first.bias, second.weight, second.bias]
        assert all(p is not None for p in parameters)
        at2 = pieces.rows_of("gradient2", s.features_row, s.features)
        wanted = torch.autograd.grad(out, [p for p in parameters if p is not None], at2)
        starts = [0, s.bias1, s.weights2, s.bias2]
        for start, gradient in zip(starts, wanted, strict=True):
            ordered = gradient.permute(0, 2, 3, 1) if gradient.dim() == 4 else gradient
            assert error(pieces.parameter_gradient(start, *ordered.shape), ordered) < 2e-6


def test_memory_beyond_the_last_image_is_not_read_into_results() -> None:
    shape = (1, 28, 28)
    network, (x, _, y, *_) = build("cnn", shape=shape, classes=10, seed=0), batch(shape, 1)
    vector, ones = flat(list(network.parameters())).detach(), AS_THEY_ARE
    around = torch.full((3, 1, 28, 28), float("nan"))
    around[1] = x[0]
    alone = kernel(shape, 10).loss_and_gradient(vector, ones)(x[:1], y[:1], torch.tensor([0]))[1].clone()
    loss, gradient = kernel(shape, 10).loss_and_gradient(vector, ones)(around, y[:1].repeat(3), torch.tensor([1]))
    assert math.isfinite(loss)
    assert torch.equal(gradient, alone)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [(9, 9), (9, 10), (10, 9), (10, 10), (0, 0), (27, 27)])
def test_what_is_not_finite_goes_through_pools_and_relu_as_in_torch(value: float, place: tuple[int, int]) -> None:
    shape = (1, 28, 28)
    pieces = Pieces(shape, 3)
    computing = Kernel(shape, 10)
    vector = flat(list(pieces.network.parameters())).detach()
    x = images(3, shape)
    x[1, 0, place[0], place[1]] = value
    found = computing.logits(vector, x)
    assert bool(found[[0, 2]].isfinite().all())
    between = nn.functional.max_pool2d(pieces.first(x.double()), 2).relu()
    wanted = plain(pieces.network)(x.double())
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.isinf(), wanted.isinf())
    if math.isnan(value):
        assert bool(between.isnan().any())
        assert bool(found[1].isnan().all())
    y, ones = torch.tensor([1, 2, 3]), AS_THEY_ARE
    loss, gradient = computing.loss_and_gradient(vector, ones)(x, y, torch.arange(3))
    exact = torch_step(plain(pieces.network), x, y, torch.ones(10), torch.zeros(10), torch.ones(10))
    assert math.isfinite(loss) == math.isfinite(exact.loss)
    assert bool(gradient.isfinite().all()) == all(bool(g.isfinite().all()) for g in exact.gradient)


def test_nan_in_any_pixel_of_a_pool_wins() -> None:
    """The bias of one channel makes all its outputs NaN; an image with NaN in one place does so for some of a pool."""
    shape = (1, 8, 8)
    network = build("cnn", shape=shape, classes=10, seed=0)
    computing, vector = Kernel(shape, 10), flat(list(network.parameters())).detach()
    for i in range(64):
        x = images(1, shape)
        x.view(-1)[i] = float("nan")
        assert bool(computing.logits(vector, x).isnan().all()), i


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_pixels_pass_their_gradient_to_the_first_as_in_torch(shape: Shape) -> None:
    network = build("cnn", shape=shape, classes=10, seed=0)
    x, y = torch.full((2, *shape), 0.5), torch.tensor([3, 4])
    ones = AS_THEY_ARE
    computing, vector = kernel(shape, 10), flat(list(network.parameters())).detach()
    _, gradient = computing.loss_and_gradient(vector, ones)(x, y, torch.arange(2))
    exact = torch_step(plain(network), x, y, torch.ones(10), torch.zeros(10), torch.ones(10))
    assert error(gradient, flat(exact.gradient)) < 1e-5


def test_rows_and_labels_that_do_not_exist_are_refused() -> None:
    shape = (1, 8, 8)
    vector = flat(list(build("cnn", shape=shape, classes=10, seed=0).parameters())).detach()
    x, ones = images(3, shape), AS_THEY_ARE
    for rows, label in (([3], 0), ([-1], 0), ([0], 10), ([0], -1)):
        with pytest.raises(IndexError):
            kernel(shape, 10).loss_and_gradient(vector, ones)(x, torch.full((3,), label), torch.tensor(rows))


def test_results_do_not_depend_on_what_was_computed_before() -> None:
    shape = (3, 17, 16)
    vector = flat(list(build("cnn", shape=shape, classes=10, seed=0).parameters())).detach()
    x, rows, y, factor, offset, weights = batch(shape, 50)
    adjustment = torch.cat([factor, offset, weights])
    fresh = Kernel(shape, 10)
    loss, gradient = fresh.loss_and_gradient(vector, adjustment)(x, y, rows)
    gradient = gradient.clone()
    used = Kernel(shape, 10)
    used.loss_and_gradient(vector * 3, adjustment)(x + 1, y, torch.arange(41))
    used.logits(vector, images(300, shape))
    used.loss_and_gradient(vector, adjustment)(images(200, shape, 5), y.repeat(4), torch.arange(200))  # more room
    again, other = used.loss_and_gradient(vector, adjustment)(x, y, rows)
    assert again == loss
    assert torch.equal(other, gradient)
    samples = x[rows]
    alone = torch.cat([used.logits(vector, samples[i : i + 1]) for i in range(len(samples))])
    assert torch.equal(alone, fresh.logits(vector, samples))


@njit
def _product(work: Any, a: Any, b: Any, start: Any, c: Any, n: Any, zeros: Any, spare: Any) -> None:
    product(work, *a, *b, start, *c, *n, zeros, spare)


@njit
def _transpose(work: Any, a: Any, c: Any, n: Any) -> None:
    transpose(work, *a, *c, *n)


@njit
def _column_sums(work: Any, a: Any, c: Any, n: Any, spare: Any) -> None:
    column_sums(work, *a, c, *n, spare)


@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, 2 * ROWS + 3])
@pytest.mark.parametrize("columns", [1, LANES + 1, 2 * LANES, COLUMNS - 1, COLUMNS, 2 * COLUMNS + 5])
@pytest.mark.parametrize("depth", [1, 7, 128, 129, 400])
@pytest.mark.parametrize("transposed", [False, True])
def test_product(rows: int, columns: int, depth: int, transposed: bool) -> None:
    rng = np.random.default_rng(0)
    up = rows + ROWS
    a = rng.normal(size=(depth, up) if transposed else (up, depth)).astype(np.float32)
    b = rng.normal(size=(depth + 1, columns)).astype(np.float32)
    start = rng.normal(size=columns + COLUMNS).astype(np.float32)
    zeros, spare, c = np.zeros(COLUMNS), np.zeros(ROWS * COLUMNS), np.full(rows * columns + 8, 7.0)
    parts = [part.astype(np.float32).ravel() for part in (a, b, zeros, start, zeros, spare, c)]
    work = np.concatenate(parts)
    places = [sum(map(len, parts[:i])) for i in range(len(parts))]
    steps = (1, up) if transposed else (depth, 1)
    _, right, _, first, nothing, tile, at = places
    _product(work, (0, *steps), (right, columns), first, (at, columns), (rows, columns, depth), nothing, tile)
    left = (a.T if transposed else a)[:rows].astype(float)
    wanted = left @ b[:depth].astype(float) + start[:columns]
    found = work[at : at + rows * columns].reshape(rows, columns)
    assert np.abs(found - wanted).max() < 3e-6 * math.sqrt(depth)
    assert (work[at + rows * columns :] == 7).all()


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (8, 8), (7, 20), (20, 7), (16, 33)])
def test_transpose_and_column_sums(rows: int, columns: int) -> None:
    a = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    work = np.concatenate([a.ravel(), np.full(rows * columns + 2 * LANES, 7, np.float32)])
    _transpose(work, (0, columns), (rows * columns, rows), (rows, columns))
    assert np.array_equal(work[rows * columns :][: rows * columns].reshape(columns, rows), a.T)
    assert (work[2 * rows * columns :] == 7).all()
    work = np.concatenate([a.ravel(), np.full(columns + 4 * LANES, 7, np.float32)])
    _column_sums(work, (0, columns), rows * columns + LANES, (rows, columns), rows * columns + columns + 2 * LANES)
    found = work[rows * columns + LANES :][:columns]
    assert np.abs(found - a.astype(float).sum(0)).max() < 1e-5


@pytest.mark.parametrize(
    "instruction",
    [
        False,
        pytest.param(True, marks=pytest.mark.skipif(not COMPRESSES, reason="the processor has no such instruction")),
    ],
)
def test_wanted_lanes_are_packed(instruction: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the instruction for it, and without, as where 16 lanes are forced on a processor that has no such one."""
    monkeypatch.setattr(lanes, "COMPRESSES", instruction)

    @lanes.intrinsic(types.intp)
    def pack(code: lanes.Code, numbers: Any, integers: Any, at: Any) -> Any:
        values = code.load(numbers, at, 16)
        wanted = code.builder.fcmp_unordered("!=", values, code.constant(0.0, 16))
        code.pack(numbers, code.at(at, 16), values, wanted)
        code.pack(integers, code.at(at, 16), code.load(integers, at, 16), wanted)
        return code.count(wanted)

    run = njit(lambda numbers, integers: pack(numbers, integers, 0))
    rng = np.random.default_rng(0)
    for probability in (0.0, 0.1, 0.5, 1.0):
        values = np.where(rng.random(16) < probability, rng.normal(size=16), 0.0).astype(np.float32)
        values[rng.random(16) < probability / 4] = np.nan
        numbers, integers = np.concatenate([values, np.zeros(16, np.float32)]), np.arange(32, dtype=np.int32)
        n = run(numbers, integers)
        kept = np.flatnonzero(values != 0)
        assert n == len(kept)
        assert np.array_equal(numbers[16 : 16 + n], values[kept], equal_nan=True)
        assert np.array_equal(integers[16 : 16 + n], kept)


def test_parts_of_the_work_arrays_do_not_overlap_and_start_at_cache_lines() -> None:
    s: Layout = layout((3, 32, 32), 10, 50)
    work, indices = work_arrays(s)
    assert work.ctypes.data % 64 == indices.ctypes.data % 64 == 0
    numbers = [
        getattr(s, name) for name in Layout._fields[Layout._fields.index("vector") : Layout._fields.index("numbers")]
    ]
    assert numbers == sorted(set(numbers))
    assert all(place % 16 == 0 for place in numbers)
    assert s.indices - s.places2 >= 50 * CHANNELS2 * s.pools


@pytest.mark.skipif("FEDPALS_LANES" in os.environ, reason="one change is enough")
def test_all_of_this_with_the_other_number_of_lanes() -> None:
    environment = {**os.environ, "FEDPALS_LANES": str(24 - LANES)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert LANES in {8, 16}
