"""One BLAS thread for solves whose products are too short to share.

A product of milliseconds gains nothing from a second thread, and if all cores are busy it waits for that thread to be
scheduled: a solve of 6 ms takes hundreds.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any

_FEW_ENTRIES = 1 << 15
"""Entries of S up to which BLAS uses one thread anyway."""
_FEW_PRODUCTS = 1 << 18
"""M²·K, the products of SSᵀ, up to which BLAS uses one thread anyway."""
_MANY_PRODUCTS = 1e10
"""M·K² from which threads share seconds of work."""


def one_blas_thread(shape: tuple[int, ...]) -> AbstractContextManager[Any]:
    """Return a context with one BLAS thread, for an M×K ``shape`` where that helps; needs threadpoolctl."""
    if len(shape) != 2:
        return nullcontext()
    M, K = shape
    is_small = M * K <= _FEW_ENTRIES and M**2 * K <= _FEW_PRODUCTS
    if is_small or M * K**2 >= _MANY_PRODUCTS:
        return nullcontext()
    controller = _controller()
    return nullcontext() if controller is None else controller.limit(limits=1, user_api="blas")


def keep_one_blas_thread() -> None:
    """Let BLAS use one thread from now on in this process, where threadpoolctl is installed."""
    if (controller := _controller()) is not None:
        controller.limit(limits=1, user_api="blas")


@lru_cache(maxsize=1)
def _controller() -> Any:
    try:
        return import_module("threadpoolctl").ThreadpoolController()
    except ImportError:
        return None
