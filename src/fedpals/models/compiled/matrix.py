"""The product of small matrices, and what else dense layers need. All matrices are in one array, ``work``."""

# Numba infers the types of the compiled functions; annotations would only repeat "array" and "integer".
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

from fedpals.models.compiled.compiling import compiled
from fedpals.models.compiled.lanes import Block, Code, get, intrinsic, least, put, stay_apart, transpose8
from fedpals.models.compiled.processor import COLUMNS, LANES, ROWS

_DEPTH = 128
"""Products that are summed up before they are added to the others; a longer sum would lose digits."""


@compiled
def product(work, a, a_row, a_column, b, b_row, start, c, c_row, rows, columns, depth, zeros, spare):
    """Set C = A B + start, (rows, columns), where A is (rows, depth), and ``start`` is one row that is added to all.

    An argument like ``a`` is the place of a matrix's first number, and ``a_row`` and ``a_column`` are the steps to its
    next row and column. Tiles at the lower and right edges are computed whole in ``spare`` and copied in part. So A
    must be readable up to a multiple of `ROWS`, and B, start and ``zeros`` up to a multiple of `LANES`; what is
    there matters in ``zeros`` only.
    """
    stay_apart()
    for j in range(0, columns, COLUMNS):
        right, begin, out, width = b + j, start + j, c + j, least(COLUMNS, columns - j)
        if width > 2 * LANES:
            _three(work, a, a_row, a_column, right, b_row, begin, out, c_row, rows, width, depth, zeros, spare)
        elif width > LANES:
            _two(work, a, a_row, a_column, right, b_row, begin, out, c_row, rows, width, depth, zeros, spare)
        else:
            _one(work, a, a_row, a_column, right, b_row, begin, out, c_row, rows, width, depth, zeros, spare)


def _tiles(vectors: int) -> Any:
    """Return a function for some columns of the product, at most those of so many vectors."""
    kind, most = Block(ROWS * vectors), vectors * LANES

    @intrinsic(kind)
    def begin(code: Code, work: Any, start: Any) -> list[Any]:
        return [code.load(work, code.at(start, v * LANES)) for v in range(vectors)] * ROWS

    @intrinsic(kind)
    def add_outer_product(code: Code, tile: list[Any], work: Any, a: Any, a_row: Any, b: Any) -> list[Any]:
        right = [code.load(work, code.at(b, v * LANES)) for v in range(vectors)]
        left = [code.repeat(work, code.at(a, (a_row, r))) for r in range(ROWS)]
        return [code.add_product(tile[r * vectors + v], left[r], right[v]) for r in range(ROWS) for v in range(vectors)]

    @intrinsic(kind)
    def add_tile(code: Code, tile: list[Any], work: Any, other: Any) -> list[Any]:
        return [code.builder.fadd(total, code.load(work, code.at(other, i * LANES))) for i, total in enumerate(tile)]

    @intrinsic()
    def store(code: Code, tile: list[Any], work: Any, c: Any, c_row: Any) -> None:
        for i, vector in enumerate(tile):
            code.store(work, code.at(c, (c_row, i // vectors), i % vectors * LANES), vector)

    @compiled
    def compute(work, a, a_row, a_column, b, b_row, start, c, c_row, rows, columns, depth, zeros, spare):
        stay_apart()
        for i in range(0, rows, ROWS):
            tile = begin(work, start)
            left, right = a + i * a_row, b
            for k in range(0, depth, _DEPTH):
                if k > 0:
                    store(tile, work, spare, most)
                    tile = begin(work, zeros)
                for _ in range(least(_DEPTH, depth - k)):
                    tile = add_outer_product(tile, work, left, a_row, right)
                    left += a_column
                    right += b_row
                if k > 0:
                    tile = add_tile(tile, work, spare)
            if i + ROWS <= rows and columns == most:
                store(tile, work, c + i * c_row, c_row)
            else:
                store(tile, work, spare, most)
                for y in range(least(ROWS, rows - i)):
                    for x in range(columns):
                        put(work, c + (i + y) * c_row + x, get(work, spare + y * most + x))

    return compute


_one, _two, _three = _tiles(1), _tiles(2), _tiles(3)


@compiled
def transpose(work, a, a_row, c, c_row, rows, columns):
    """Set C = Aᵀ, where A is (rows, columns)."""
    stay_apart()
    whole_rows, whole_columns = rows // 8 * 8, columns // 8 * 8
    for i in range(0, whole_rows, 8):
        for j in range(0, whole_columns, 8):
            transpose_square(work, a + i * a_row + j, a_row, c + j * c_row + i, c_row)
    for i in range(rows):
        for j in range(whole_columns if i < whole_rows else 0, columns):
            put(work, c + j * c_row + i, get(work, a + i * a_row + j))


@intrinsic()
def transpose_square(code: Code, work: Any, a: Any, a_row: Any, c: Any, c_row: Any) -> None:
    """Set C = Aᵀ, where A is (8, 8)."""
    rows = [code.load(work, code.at(a, (a_row, r)), 8) for r in range(8)]
    for r, row in enumerate(transpose8(code, rows)):
        code.store(work, code.at(c, (c_row, r)), row)


@compiled
def relu(work, a, size):
    """Set what is negative to 0; NaN stays. It goes on to a whole number of vectors."""
    for i in range(a, a + size, LANES):
        _relu(work, i)


@intrinsic()
def _relu(code: Code, work: Any, index: Any) -> None:
    values = code.load(work, index)
    code.store(work, index, code.where_positive(values, values, code.constant(0.0)))


@compiled
def relu_gradient(work, gradient, output, size):
    """Set the gradient to 0 where the output of ReLU is 0. It goes on to a whole number of vectors."""
    for i in range(0, size, LANES):
        _block_gradient(work, gradient + i, output + i)


@intrinsic()
def _block_gradient(code: Code, work: Any, gradient: Any, output: Any) -> None:
    passed = code.where_positive(code.load(work, output), code.load(work, gradient), code.constant(0.0))
    code.store(work, gradient, passed)


@compiled
def column_sums(work, a, a_row, c, rows, columns, spare):
    """Set c, (columns,), to the sums of the columns of A, (rows, columns)."""
    stay_apart()
    for j in range(0, columns, LANES):
        total = _zero()
        for i in range(rows):
            total = _add(total, work, a + i * a_row + j)
        _store(total, work, spare)
        for x in range(least(LANES, columns - j)):
            put(work, c + j + x, get(work, spare + x))


@intrinsic(Block(1))
def _zero(code: Code) -> list[Any]:
    return [code.constant(0.0)]


@intrinsic(Block(1))
def _add(code: Code, total: list[Any], work: Any, index: Any) -> list[Any]:
    return [code.builder.fadd(total[0], code.load(work, index))]


@intrinsic()
def _store(code: Code, vector: list[Any], work: Any, index: Any) -> None:
    code.store(work, index, vector[0])
