"""The Gram matrix of sparse counts, compiled by numba where that is installed; scipy's sparse product elsewhere."""

# Numba infers the types of a compiled function; annotations would only repeat "array".
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector

_MIN_ENTRIES = 1 << 22
"""Stored counts from which the compiled loop repays loading numba, half a second, within one solve."""


def sparse_gram(C: Any, factors: Vector, rows: npt.NDArray[np.intp] | None = None) -> Vector:
    """Return Cᵀ·diag(factors)·C over ``rows`` of a CSR table (all unless given), K×K."""
    from scipy import sparse  # slow to load: only where it is used

    compiled = _compiled() if C.nnz >= _MIN_ENTRIES else None
    if compiled is None:
        part = C if rows is None else C[rows]
        return np.asarray((part.T @ sparse.diags_array(factors) @ part).toarray())
    total = np.zeros((C.shape[1], C.shape[1]))
    compiled(C.indptr, C.indices, C.data, np.arange(factors.size) if rows is None else rows, factors, total)
    half = np.diagonal(total) / 2
    total.flat[:: len(total) + 1] = half
    return total + total.T


@lru_cache(maxsize=1)
def _compiled() -> Any:
    """Return the compiled loop; None without numba."""
    try:
        from numba import njit
    except ImportError:
        return None
    try:
        return njit(cache=True, nogil=True)(_add_products)
    except RuntimeError:  # no folder to keep the compiled code in
        return njit(nogil=True)(_add_products)


def _add_products(indptr, indices, data, rows, factors, total):
    """Add each product of two counts of a client once, to the one or the other half of ``total``."""
    for t in range(rows.size):
        start, stop = indptr[rows[t]], indptr[rows[t] + 1]
        for a in range(start, stop):
            count = factors[t] * data[a]
            for b in range(a, stop):
                total[indices[a], indices[b]] += count * data[b]
