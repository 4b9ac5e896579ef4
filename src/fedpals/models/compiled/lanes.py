"""Vectors of float32 numbers inside numba functions, as wide as the processor's widest register.

The compiler does not vectorise the loops of a convolution well by itself. So the innermost loops are `intrinsic`
functions: Python functions that write instructions, in which a Python loop is an unrolled loop. Sums stay in
registers from one call to the next, as a value of type `Block`. Indices are not checked.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending
from numba.core import types
from numba.np import numpy_support

from fedpals.models.compiled.processor import COMPRESSES, LANES

INT32 = ir.IntType(32)
_FLOAT32, _INT64 = ir.FloatType(), ir.IntType(64)


class Block(types.Type):
    """The type of ``count`` vectors of ``width`` numbers that are kept in registers."""

    def __init__(self, count: int, width: int = LANES) -> None:
        self.count, self.width = count, width
        super().__init__(name=f"{count} float32x{width}")


@extending.register_model(Block)
class _Model(extending.models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Block) -> None:
        vectors = ir.ArrayType(ir.VectorType(_FLOAT32, kind.width), kind.count)
        super().__init__(manager, kind, vectors)  # type: ignore[no-untyped-call]


class Code:
    """Writes instructions. Those that are not here are written by ``builder``, which is llvmlite's."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def at(self, start: Any, *terms: Any) -> Any:
        """Return the index start + Σ terms, where a term is an index, a number, or (index, number): a product."""
        for term in terms:
            value, factor = term if isinstance(term, tuple) else (term, 1)
            if isinstance(value, int):
                value, factor = ir.Constant(_INT64, value * factor), 1
            if factor:
                value = value if factor == 1 else self.builder.mul(value, ir.Constant(_INT64, factor))
                start = self.builder.add(start, value)
        return start

    def load(self, array: Any, index: Any, width: int = LANES) -> Any:
        """Return array[index : index + width]."""
        kind = ir.VectorType(array.type.pointee, width)
        return self.builder.load(self._address(array, index, kind), align=4)

    def store(self, array: Any, index: Any, vector: Any) -> None:
        """Set array[index : index + width]."""
        self.builder.store(vector, self._address(array, index, vector.type), align=4)

    def _address(self, array: Any, index: Any, kind: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(array, [index], inbounds=True), kind.as_pointer())

    def number(self, array: Any, index: Any) -> Any:
        """Return array[index]."""
        return self.builder.load(self.builder.gep(array, [index], inbounds=True), align=4)

    def index(self, integers: Any, index: Any) -> Any:
        """Return integers[index], which is an index itself."""
        return self.builder.sext(self.number(integers, index), _INT64)

    def repeat(self, array: Any, index: Any, width: int = LANES) -> Any:
        """Return array[index] in every lane."""
        return self.splat(self.number(array, index), width)

    def splat(self, number: Any, width: int = LANES) -> Any:
        """Return a number in every lane."""
        kind = ir.VectorType(number.type, width)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(INT32, 0))
        return self.shuffle(first, first, [0] * width)

    def splat_index(self, index: Any, width: int = LANES) -> Any:
        """Return an index in every lane, as 32-bit integers."""
        return self.splat(self.builder.trunc(index, INT32), width)

    def constant(self, value: float, width: int = LANES) -> Any:
        """Return a constant in every lane."""
        return ir.Constant(ir.VectorType(_FLOAT32, width), [value] * width)

    def integer(self, value: int, width: int = LANES) -> Any:
        """Return an integer constant in every lane."""
        return ir.Constant(ir.VectorType(INT32, width), [value] * width)

    def shuffle(self, a: Any, b: Any, lanes: list[int]) -> Any:
        """Return the given lanes of a and b; those of b are counted on from those of a."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT32, len(lanes)), lanes))

    def integers(self, values: list[int]) -> Any:
        """Return constants, one for each lane."""
        return ir.Constant(ir.VectorType(INT32, len(values)), values)

    def add_to(self, array: Any, index: Any, vector: Any) -> None:
        """Add a vector to array[index : index + width]."""
        self.store(array, index, self.builder.fadd(self.load(array, index, vector.type.count), vector))

    def pack(self, array: Any, index: Any, vector: Any, wanted: Any) -> None:
        """Store the wanted lanes of a vector one after the other, from array[index] on; what follows is overwritten."""
        kind, name = vector.type, f"v{vector.type.count}{'f' if vector.type.element == _FLOAT32 else 'i'}32"
        if COMPRESSES:
            packed = self._call(f"llvm.x86.avx512.mask.compress.{name}", kind, [vector, vector, wanted])
            self.store(array, index, packed)
        else:
            pointer = self.builder.gep(array, [index], inbounds=True)
            self._call(f"llvm.masked.compressstore.{name}", ir.VoidType(), [vector, pointer, wanted])

    def count(self, lanes: Any) -> Any:
        """Return how many lanes of a condition hold, as an index."""
        bits = self.builder.bitcast(lanes, ir.IntType(lanes.type.count))
        return self.builder.zext(self.builder.ctpop(bits), _INT64)

    def _call(self, name: str, returns: Any, arguments: list[Any]) -> Any:
        kind = ir.FunctionType(returns, [argument.type for argument in arguments])
        function = self.builder.module.globals.get(name) or ir.Function(self.builder.module, kind, name)
        return self.builder.call(function, arguments)

    def add_product(self, total: Any, a: Any, b: Any) -> Any:
        """Return total + a·b, rounded once where the processor can."""
        return self._call(f"llvm.fmuladd.v{total.type.count}f32", total.type, [a, b, total])

    def where_positive(self, condition: Any, yes: Any, no: Any) -> Any:
        """Return ``yes`` where the condition is above 0 or NaN, and ``no`` elsewhere, as ReLU has it."""
        zero = self.constant(0.0, condition.type.count)
        return self.builder.select(self.builder.fcmp_ordered("<=", condition, zero), no, yes)


_ARGUMENTS: dict[Any, Any] = {types.Integer: types.intp, types.IntegerLiteral: types.intp, types.Float: types.float32}
"""What numba converts an intrinsic's arguments to, by their kind."""


def intrinsic(returns: Any = types.void) -> Callable[[Callable[..., Any]], Any]:
    """Turn a function that writes instructions into one that compiled functions can call.

    Its first argument is a `Code`, the others are the caller's: for an array the address of its first number, for
    a block the list of its vectors. Where ``returns`` is a block, it returns a list of vectors.
    """

    def decorate(write: Callable[..., Any]) -> Any:
        def define(_context: Any, *arguments: Any) -> Any:
            kinds = [_ARGUMENTS.get(type(kind), kind) for kind in arguments]

            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                opened = []
                for kind, value in zip(signature.args, values, strict=True):
                    if isinstance(kind, types.Array):
                        opened.append(context.make_array(kind)(context, builder, value).data)
                    elif isinstance(kind, Block):
                        opened.append([builder.extract_value(value, i) for i in range(kind.count)])
                    else:
                        opened.append(value)
                result = write(Code(builder), *opened)
                if not isinstance(returns, Block):
                    return context.get_dummy_value() if result is None else result
                block = ir.Constant(ir.ArrayType(result[0].type, len(result)), ir.Undefined)
                for i, vector in enumerate(result):
                    block = builder.insert_value(block, vector, i)
                return block

            return returns(*kinds), generate

        define.__name__, define.__doc__ = write.__name__, write.__doc__
        define.__signature__ = inspect.signature(write)  # type: ignore[attr-defined]  # numba counts arguments by it
        return extending.intrinsic(define)

    return decorate


@intrinsic(types.float32)
def get(code: Code, array: Any, index: Any) -> Any:
    """Return array[index]; numba's own way first looks whether the index is negative."""
    return code.number(array, index)


@intrinsic()
def put(code: Code, array: Any, index: Any, value: Any) -> None:
    """Set array[index]."""
    code.builder.store(value, code.builder.gep(array, [index], inbounds=True), align=4)


@intrinsic(types.intp)
def get_index(code: Code, integers: Any, index: Any) -> Any:
    """Return integers[index]."""
    return code.index(integers, index)


@intrinsic()
def put_index(code: Code, integers: Any, index: Any, value: Any) -> None:
    """Set integers[index]."""
    place = code.builder.gep(integers, [index], inbounds=True)
    code.builder.store(code.builder.trunc(value, INT32), place, align=4)


@intrinsic(types.intp)
def least(code: Code, a: Any, b: Any) -> Any:
    """Return the smaller of two integers; Python's own takes long to compile."""
    return code.builder.select(code.builder.icmp_signed("<", a, b), a, b)


@intrinsic()
def prefetch(code: Code, array: Any, index: Any) -> None:
    """Have array[index] brought into the cache meanwhile; the index may be beyond the end."""
    pointer, name = ir.IntType(8).as_pointer(), "llvm.prefetch.p0"
    kind = ir.FunctionType(ir.VoidType(), [pointer, INT32, INT32, INT32])
    function = code.builder.module.globals.get(name) or ir.Function(code.builder.module, kind, name)
    address = code.builder.bitcast(code.builder.gep(array, [index]), pointer)
    code.builder.call(function, [address, INT32(0), INT32(3), INT32(1)])  # data that are read, and needed soon


def as_record(fields: np.dtype[Any]) -> Any:
    """Return a function by which compiled ones read the integers of an array by name."""
    kind = numpy_support.from_dtype(fields)

    @intrinsic(kind)
    def view(code: Code, integers: Any) -> Any:
        return code.builder.bitcast(integers, ir.ArrayType(ir.IntType(8), fields.itemsize).as_pointer())

    return view


@intrinsic()
def stay_apart(code: Code) -> None:
    """Keep the function that calls this from being copied into its callers, which would compile it once for each."""
    code.builder.function.attributes.add("noinline")


def transpose8(code: Code, rows: list[Any]) -> list[Any]:
    """Transpose eight vectors of eight numbers: in pairs of rows, in fours, and all together."""
    low, high = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
    pairs = [[code.shuffle(rows[r], rows[r + 1], lanes) for lanes in (low, high)] for r in (0, 2, 4, 6)]
    low, high = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
    fours = [
        [code.shuffle(pairs[r][k], pairs[r + 1][k], lanes) for k in (0, 1) for lanes in (low, high)] for r in (0, 2)
    ]
    low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    return [code.shuffle(fours[0][k], fours[1][k], lanes) for lanes in (low, high) for k in range(4)]
