"""Vectors of float32 numbers inside numba functions, as wide as the processor's widest register.

The compiler does not vectorise the plain loops of a convolution. Processors with narrower registers than `LANES`
use several registers for one vector. Indices are into the memory of a contiguous array and are not checked.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
from llvmlite import ir
from numba import extending
from numba.core import types

LANES = 16 if llvm.get_host_cpu_features().get("avx512f") else 8
"""Numbers in one vector. It may differ between machines: compiled code is cached per processor."""
_VECTOR = ir.VectorType(ir.FloatType(), LANES)


class Lanes(types.Type):
    """The type of `LANES` numbers."""

    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


lanes = Lanes()
_intrinsic: Any = extending.intrinsic


@extending.register_model(Lanes)
class _Model(extending.models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, _VECTOR)  # type: ignore[no-untyped-call]


def _address(context: Any, builder: Any, signature: Any, arguments: Any, element: Any) -> Any:
    """Return the address of array[index], the first two arguments."""
    (array_type, *_), (array, index, *_) = signature.args, arguments
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), element.as_pointer())


def _broadcast(builder: Any, number: Any) -> Any:
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(first, first, mask)


@_intrinsic
def load(_typing: Any, array: Any, index: Any) -> Any:
    """Return array[index : index + LANES]."""
    del index

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_address(context, builder, signature, arguments, _VECTOR), align=4)

    return lanes(array, types.intp), generate


@_intrinsic
def store(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Set array[index : index + LANES]."""
    del index, value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _address(context, builder, signature, arguments, _VECTOR), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


@_intrinsic
def repeat(_typing: Any, array: Any, index: Any) -> Any:
    """Return array[index] in every lane."""
    del index

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = builder.load(_address(context, builder, signature, arguments, ir.FloatType()))
        return _broadcast(builder, number)

    return lanes(array, types.intp), generate


@_intrinsic
def splat(_typing: Any, number: Any) -> Any:
    """Return a number in every lane."""
    del number

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _broadcast(builder, arguments[0])

    return lanes(types.float32), generate


@_intrinsic
def add_product(_typing: Any, total: Any, a: Any, b: Any) -> Any:
    """Return total + a·b, rounded once where the processor can."""
    del total, a, b

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        total, a, b = arguments
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        name = f"llvm.fmuladd.v{LANES}f32"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(function, [a, b, total])

    return lanes(lanes, lanes, lanes), generate


@_intrinsic
def where_greater(_typing: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """Return ``yes`` where a > b, and ``no`` elsewhere."""
    del a, b, yes, no

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        a, b, yes, no = arguments
        return builder.select(builder.fcmp_ordered(">", a, b), yes, no)

    return lanes(lanes, lanes, lanes, lanes), generate
