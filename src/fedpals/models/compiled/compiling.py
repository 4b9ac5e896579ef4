"""How the functions of this package are compiled, and where the result is kept for the next process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.registry import cpu_target

from fedpals.models.compiled.lanes import LANES

_njit: Any = njit  # its annotations do not know all options

inlined: Any = _njit(error_model="numpy", inline="always")
"""For a part of a function that is called in one place: compiled there."""
compiled: Any = _njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For a function that is called by compiled ones only: what Python would need to call it takes long to compile."""


def entry(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, on its first call; later processes load it from numba's cache.

    Numba looks only at the file that the function is in. Its name in the cache is therefore made of everything
    else that the result depends on, too; so processes of different kinds also cannot overwrite each other's files.
    If there is nowhere to write to, it is compiled without a cache.
    """
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    facts = repr((LANES, cpu_target.target_context.codegen().magic_tuple())).encode()
    function.__qualname__ += f"_{hashlib.sha256(sources + facts).hexdigest()[:16]}"
    options: dict[str, Any] = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
    try:
        return _njit(cache=True, **options)(function)
    except RuntimeError:  # numba: "cannot cache function, no locator available"
        return _njit(**options)(function)
