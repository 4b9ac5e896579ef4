"""Label counts of clients, validated once and then trusted.

``counts`` is an M×K table of non-negative integers, one client per row and one label per column. From
it follow ``sizes`` n_i (row sums) and ``marginals`` S = table / sizes, the S_i(Y) of the paper.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy

from fedpals.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Vector: TypeAlias = npt.NDArray[np.float64]
Matrix: TypeAlias = "Vector | scipy.sparse.csr_array"
Indices: TypeAlias = npt.NDArray[np.int64]
"""Row numbers of samples or clients."""

_BLOCK = 1 << 17
"""Entries of a row block: one megabyte, so that a block stays in the processor's cache."""
_TOO_LARGE = 2.0**53
"""A client has fewer samples than this. Below it float64 holds every whole number; above it sums would be rounded."""


def is_sparse(table: object) -> TypeIs[scipy.sparse.csr_array]:
    """Return whether a table is sparse; none is as long as nobody has loaded scipy.sparse, which takes a while."""
    return type(table) is not np.ndarray and "scipy.sparse" in sys.modules and bool(scipy.sparse.issparse(table))


def row_blocks(rows: int, columns: int, entries: int = _BLOCK) -> list[slice]:
    """Split ``rows`` into slices so that a block, with ``columns`` entries per row, has at most ``entries`` entries."""
    if 0 < rows * columns <= entries:
        return [slice(0, rows)]
    step = max(1, entries // max(1, columns))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


@dataclass(frozen=True, eq=False)
class LabelCounts:
    """The label counts of M clients over K labels: what the server knows about its clients.

    Create one with `LabelCounts.of`, which validates the counts. A client without samples has size 0 and a
    marginal of zeros.
    """

    table: Matrix
    """Counts, M×K, float64: dense, or scipy CSR if they were given sparse."""
    sizes: Vector
    """(M,) n_i, the number of samples of each client."""
    clients: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        counts: Any,
        *,
        clients: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
    ) -> LabelCounts:
        """Validate ``counts``, M×K: an array, what converts to one (lists, a pandas table), or a scipy sparse matrix.

        The columns of a pandas table name the labels, unless ``labels`` does or they are only numbered 0 … K−1.

        Raises
        ------
        InputError
            For negative, fractional, NaN or infinite counts, clients with 2⁵³ samples or more, rows of different
            lengths, no clients, or only empty clients; names row, label and value.

        Examples
        --------
        >>> LabelCounts.of([[3, 1], [0, 4]]).marginals.tolist()
        [[0.75, 0.25], [0.0, 1.0]]
        """
        if isinstance(counts, cls):
            return counts
        table: Any = counts if is_sparse(counts) else _as_array(counts)
        if table.ndim != 2:
            raise InputError(
                f"counts must be a table with one client per row and one label per column, not {table.ndim}-D"
            )
        if table.size and table.dtype.kind not in "buif":
            raise InputError(f"counts must be numbers, not {table.dtype}")
        rows, columns = table.shape
        if rows == 0 or columns == 0:
            raise InputError(f"counts is {rows}×{columns}: it needs at least one client and one label")
        clients = _names(clients, rows, "client names", "row")
        labels = _names(_column_names(counts) if labels is None else labels, columns, "label names", "column")
        try:
            table, sizes = _validated(table)
        except _InvalidCount as error:
            client = clients[error.row] if clients else f"row {error.row}"
            if error.column is None:
                raise InputError(f"counts: client {client!r}, all labels: {error}") from None
            label = labels[error.column] if labels else f"column {error.column}"
            raise InputError(f"counts: client {client!r}, label {label!r}: {error}") from None
        if sizes[sizes.argmax()] == 0:
            raise InputError(f"all {rows} clients are empty: at least one must have samples")
        return cls(table, sizes, clients, labels)

    @cached_property
    def marginals(self) -> Matrix:
        """S, M×K, dense or sparse as the counts are: a second table of their size, computed on first access."""
        sizes = np.maximum(self.sizes, 1.0)
        if isinstance(self.table, np.ndarray):
            return np.asarray(self.table / sizes[:, None])
        marginals = self.table.copy()
        marginals.data /= np.repeat(sizes, np.diff(marginals.indptr))
        return marginals

    @property
    def shape(self) -> tuple[int, int]:
        """(M, K)."""
        rows, columns = self.table.shape
        return int(rows), int(columns)

    @property
    def total(self) -> float:
        """N, the number of samples of all clients."""
        return float(self.sizes.sum())

    def client(self, row: int) -> str:
        """Return the name of a client, or its row if clients have no names."""
        return self.clients[row] if self.clients else f"row {row}"

    def label(self, column: int) -> str:
        """Return the name of a label, or its column if labels have no names."""
        return self.labels[column] if self.labels else f"column {column}"

    def subset(self, participants: npt.ArrayLike) -> LabelCounts:
        """Return the counts of one round's participants; weights are then solved for these clients alone."""
        rows = np.asarray(participants)
        if rows.dtype != np.bool_ and rows.size and not np.issubdtype(rows.dtype, np.integer):
            raise InputError(f"participants must be row numbers or a mask, not {rows.dtype}")
        sizes = self.sizes[rows.astype(np.intp) if rows.size == 0 else rows]
        if not sizes.any():
            raise InputError(f"none of the {sizes.size} participants has samples")
        indices = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        names = self.clients and tuple(self.clients[i] for i in indices.tolist())
        return LabelCounts(self.table[rows], sizes, names, self.labels)

    def with_labels(self, absent: Sequence[str]) -> LabelCounts:
        """Add labels that no client has, as columns of zeros."""
        rows, _ = self.shape
        if is_sparse(self.table):
            zeros = scipy.sparse.csr_array((rows, len(absent)))
            table: Matrix = scipy.sparse.csr_array(scipy.sparse.hstack([self.table, zeros], format="csr"))
        else:
            table = np.hstack([self.table, np.zeros((rows, len(absent)))])
        return replace(self, table=table, labels=(*(self.labels or ()), *absent))


class _InvalidCount(Exception):  # noqa: N818 -- never leaves this module
    """A value that is no count, raised where names are not known; its ``column`` is None if it is a client's size."""

    def __init__(self, row: int, column: int | None, value: float) -> None:
        self.row, self.column = row, column
        remedy = "label counts must be whole numbers ≥ 0"
        if not math.isfinite(value):
            reason = "is not a finite number"
        elif value < 0:
            reason = "is negative"
        elif value < _TOO_LARGE:
            reason = "is fractional"
            remedy += ", without a separator for thousands"
        else:
            reason = "is too large to be counted exactly"
            remedy = "a client may have up to 2⁵³ (9·10¹⁵) samples: count in larger units, for instance thousands"
        super().__init__(f"{value:g} {reason}; {remedy}")


def _validated(counts: Any) -> tuple[Matrix, Vector]:
    """Return counts as float64 and the clients' sizes, all of them exact."""
    table, sizes = _from_sparse(counts) if is_sparse(counts) else _from_dense(counts)
    largest = int(sizes.argmax())
    if sizes[largest] >= _TOO_LARGE:
        raise _InvalidCount(largest, None, float(sizes[largest]))
    return table, sizes


def _from_dense(counts: npt.NDArray[Any]) -> tuple[Vector, Vector]:
    """Return table and sizes, computed block by block: one pass over the counts, one copy of them."""
    rows, columns = counts.shape
    # The solver reads a tall table column by column.
    table = np.empty((rows, columns), order="F" if rows > 512 * columns else "C")
    # Viewed as unsigned, a negative count is at least 2⁶³, which shows in the client's size: no check of each count.
    is_int64 = counts.dtype == np.int64
    source = counts.view(np.uint64) if is_int64 else counts
    is_integer = counts.dtype.kind in "bui"
    for block in row_blocks(rows, columns):
        part = table[block]
        part[...] = source[block]
        if is_int64:
            continue
        if not (part.min() >= 0 and part.max() < _TOO_LARGE and (is_integer or (part == np.floor(part)).all())):
            raise _first_invalid(part, block.start)
    sizes = table.dot(np.ones(columns))
    if is_int64 and sizes[sizes.argmax()] >= _TOO_LARGE:
        values = counts.astype(np.float64)
        if _is_invalid(values).any():
            raise _first_invalid(values)
    return table, sizes


def _first_invalid(values: Vector, start: int = 0) -> _InvalidCount:
    """Return the first of ``values`` that is not a valid count; rows are numbered from ``start``."""
    row, column = divmod(int(np.argmax(_is_invalid(values))), values.shape[1])
    return _InvalidCount(start + row, column, float(values[row, column]))


def _from_sparse(counts: Any) -> tuple[scipy.sparse.csr_array, Vector]:
    # float64 first: entries for the same place are added, and a sum can be too large for the type of its terms.
    table = scipy.sparse.csr_array(counts.astype(np.float64))
    table.sum_duplicates()
    data = table.data
    invalid = _is_invalid(data)
    if invalid.any():
        index = int(np.argmax(invalid))
        row = int(np.searchsorted(table.indptr, index, side="right")) - 1
        raise _InvalidCount(row, int(table.indices[index]), float(data[index]))
    return table, np.asarray(table @ np.ones(table.shape[1]))


def _is_invalid(values: Vector) -> npt.NDArray[np.bool_]:
    return np.asarray(~((values >= 0) & (values < _TOO_LARGE) & (values == np.floor(values))))


def _as_array(counts: Any) -> npt.NDArray[Any]:
    try:
        table = np.asarray(counts)
    except ValueError:
        raise InputError(_unlike_a_table(counts)) from None
    if isinstance(counts, np.ma.MaskedArray) and np.ma.is_masked(counts):
        raise InputError("counts has masked entries; fill them, for instance with counts.filled(0)")
    if table.dtype == object and all(isinstance(count, Real) for count in table.flat):
        return np.array([_as_float(count) for count in table.flat]).reshape(table.shape)
    return table


def _unlike_a_table(counts: Sequence[Any]) -> str:
    """Say why nested lists are no table."""
    for i, row in enumerate(counts):
        if isinstance(row, str) or not isinstance(row, Sized):
            return f"counts: row {i} is {reprlib.repr(row)}, not a row of counts; every client needs all labels"
        if len(row) != len(counts[0]):
            return (
                f"counts: row {i} has {len(row)} labels but row 0 has {len(counts[0])}; every client needs all labels"
            )
    return "counts must be a table of numbers with one client per row and one label per column"


def _as_float(count: Real) -> float:
    """Return a Python number as float64; ∞ for an integer beyond its range."""
    try:
        return float(count)
    except OverflowError:
        return math.inf


def _column_names(counts: Any) -> Sequence[str] | None:
    """Return the names of the columns of a pandas table; None if they are only numbered, and of anything else."""
    if not (hasattr(counts, "columns") and hasattr(counts, "dtypes")):
        return None
    return None if is_numbered(counts.columns) else [str(name) for name in counts.columns]


def is_numbered(index: Iterable[object]) -> bool:
    """Whether an index of pandas is 0, 1, … in this order, as it is where nobody gave names."""
    return all(isinstance(n, Integral) and not isinstance(n, bool) and n == i for i, n in enumerate(index))


def _names(names: Sequence[str] | None, expected: int, what: str, unit: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    if len(names) != expected:
        raise InputError(f"{len(names)} {what} for {expected} {unit}s of counts; give one per {unit}")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{what}: {name!r} occurs twice; every {unit} needs its own name")
        seen.add(name)
    return tuple(names)
