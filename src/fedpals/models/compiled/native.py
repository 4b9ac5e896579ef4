"""The step in machine code: a function that takes numbers and addresses."""

from __future__ import annotations

import gc
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_double, c_int32, c_int64, c_void_p
from functools import lru_cache

from fedpals.models.compiled.loading import MachineCode, load

FORWARD, LOSS, BACKWARD = 1, 2, 4
"""Parts of a step."""
PACKED = 8
"""With FORWARD: the parameters are those of the call before, and so need not be copied."""
NO_IMAGE, NO_LABEL = 1, 2
"""What can be wrong with samples: a row that is no image's, a label that the network does not have."""

_FUNCTION = CFUNCTYPE(
    c_int32, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_double,
    c_void_p, c_void_p, c_void_p, c_void_p,
)  # fmt: skip
"""As numba calls functions: the address of the result first, then that of an exception; 0 is returned without one."""


def _compile() -> MachineCode:
    collects = gc.isenabled()
    gc.disable()  # looking for garbage in what the compiler keeps would take a twentieth of its time
    try:
        # Imported here, because the compiler takes a second to load.
        from fedpals.models.compiled.compiling import machine_code
        from fedpals.models.compiled.step import SIGNATURE, run

        return machine_code(run, SIGNATURE)
    finally:
        if collects:
            gc.enable()


@lru_cache(maxsize=1)
def step() -> Callable[..., int]:
    """Return `fedpals.models.compiled.step.run` in machine code. Other threads go on while it computes."""
    return _FUNCTION(load("step", _compile))
