"""How the functions of this package are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from fedpals.models.compiled.loading import MachineCode

_njit: Any = njit  # its annotations do not know all options

inlined: Any = _njit(error_model="numpy", inline="always")
"""For a part of a function that is called in one place: compiled there."""
compiled: Any = _njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For a function that is called by compiled ones only: what Python would need to call it takes long to compile."""


def machine_code(function: Callable[..., Any], signature: Any) -> MachineCode:
    """Compile a function of numbers and addresses, so that it can be called without numba (`loading`)."""
    dispatcher = compiled(function)
    dispatcher.compile(signature)
    (result,) = dispatcher.overloads.values()
    _, _, (code, _) = result.library.serialize_using_object_code()
    return MachineCode(result.fndesc.llvm_func_name, code)
