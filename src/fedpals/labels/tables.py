"""Label counts and targets in CSV files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpals.errors import InputError
from fedpals.labels.cells import (
    Sheet,
    is_percentage,
    last_digit,
    looks_like_header,
    parse_number,
    read_bytes,
    read_sheet,
    without_groups,
)
from fedpals.labels.counts import LabelCounts, Vector
from fedpals.labels.plain_csv import read_plain

_NAME_HEADERS = {
    "",
    "client",
    "clients",
    "name",
    "id",
    "store",
    "shop",
    "site",
    "node",
    "hospital",
    "nr",
    "no",
    "number",
}
"""Lower-case titles of a first column that names clients even if its cells are numbers."""
_TOTAL_WORDS = {"total", "totals", "sum", "all", "overall", "gesamt", "insgesamt", "summe", "totale", "somme", "suma"}
"""Lower-case words that name a column, row or entry with the sums of the others."""
_SIZE_HEADERS = {"n", "samples", "count", "counts"}
"""Further titles of a column that is not a label if it has the sums of the others."""
_SURELY_TOTAL = 3
"""Number of other clients from which a last row with their sums is a total, whatever its name."""
_EXACT = 1e-9
"""Difference of a sum from 1 that floating-point numbers explain."""
_MOST_ROUNDING = 0.02
"""Largest difference of a target's sum from 1 that counts as rounding, however few digits are printed."""


@dataclass(frozen=True)
class TargetTable:
    """A target marginal by label name, as read from a file."""

    path: Path
    shares: dict[str, float]
    """Probability of each label; they sum to 1 up to ``tolerance``."""
    tolerance: float
    """Largest difference of the sum from 1 that the rounding of the printed digits can explain."""
    percentages: bool = False
    """Whether the file has percentages, which were divided by 100."""
    samples: float | None = None
    """Sum of the counts, if the file has counts, which were normalised."""

    @property
    def note(self) -> str | None:
        """What was done to the numbers of the file, if anything, for its user to know."""
        if self.samples is not None:
            return f"{self.path} holds counts, {self.samples:,.0f} in all; they were normalised to probabilities."
        total = sum(self.shares.values())
        form = "percentages" if self.percentages else "probabilities"
        if abs(total - 1.0) > _EXACT:
            shown = f"{100 * total:.9g} %" if self.percentages else f"{total:.9g}"
            return f"{self.path} holds {form} that sum to {shown} because of rounding; they were divided by their sum."
        return f"{self.path} holds percentages; they were divided by 100." if self.percentages else None

    @property
    def probabilities(self) -> dict[str, float]:
        """Shares, normalised to sum to 1."""
        total = sum(self.shares.values())
        return {label: share / total for label, share in self.shares.items()}


def read_counts(path: Path, *, blank_is_zero: bool = False) -> LabelCounts:
    """Read a table with one client per row, one label per column, and label names in the header.

    The first column has client names if its title says so (client, store, id, …), if it is empty, or if any of its
    cells is not a number; otherwise clients are named by their number. With ``blank_is_zero``, an empty cell is a 0.
    """
    content = read_bytes(path)
    plain = read_plain(content)
    if plain is not None and plain[0][0].lower() in _NAME_HEADERS:
        (_, *labels), clients, values = plain
        del content, plain  # the table may be large
        return _make_counts(path, values, clients, labels)
    sheet = read_sheet(path, content)
    header, rows = sheet.rows[0], sheet.rows[1:]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise InputError(f"{sheet.place(number)}: {len(row)} cells, but the header has {len(header)}")
    if not rows:
        raise InputError(f"{path}: no clients below the header; it needs one row per client")
    first = 1 if _has_names(header, [row[0] for row in rows], sheet) else 0
    labels = header[first:]
    if not labels:
        raise InputError(f"{path}: the header names no label; it needs one column per label")
    if all(parse_number(label) is not None for label in labels) and len(set(labels)) < len(labels):
        raise InputError(f"{path}: the first row has numbers; it must name the labels")
    values = np.empty((len(rows), len(labels)))
    for number, row in enumerate(rows, 1):
        for column, cell in enumerate(row[first:]):
            if blank_is_zero and not cell:
                values[number - 1, column] = 0.0
            else:
                values[number - 1, column] = sheet.count(number, cell, f"label {labels[column]!r}")
    clients = [row[0] for row in rows] if first else [str(i) for i in range(1, len(rows) + 1)]
    return _make_counts(path, values, clients, labels)


def read_target(path: Path, labels: Sequence[str] | None = None) -> TargetTable:
    """Read a target: two columns, label and probability, percentage or count; or labels above one row of numbers.

    Two columns may have a header or not. ``labels`` are those of the clients; they decide between the two layouts
    if a table of two labels could be either.
    """
    sheet = read_sheet(path)
    cells = _wide_target(sheet, labels) or _long_target(sheet)
    values = _target_values(sheet, cells)
    total = sum(values.values())
    texts = [cell for _, cell in cells.values()]
    # The error of each printed number is at most half of its last digit; numbers that are 0 or 1 were not rounded.
    rounded = [cell for cell, value in zip(texts, values.values(), strict=True) if value not in (0.0, 1.0)]
    rounding = sum(0.5 * last_digit(cell) for cell in rounded)
    signs, whole = all(map(is_percentage, texts)), all(value == int(value) for value in values.values())
    tolerance = _EXACT + min(rounding, 100 * _MOST_ROUNDING)
    if (signs or not whole) and abs(total - 100.0) <= tolerance:
        shares = {label: value / 100 for label, value in values.items()}
        return TargetTable(path, shares, tolerance / 100, percentages=True)
    tolerance = _EXACT + min(rounding, _MOST_ROUNDING)
    if not signs and abs(total - 1.0) <= tolerance:
        return TargetTable(path, values, tolerance)
    counts = whole and not signs
    _refuse_total_entry(path, values, labels, 0.0 if counts else _EXACT + rounding)
    if not signs:
        for label, (row, cell) in cells.items():
            sheet.refuse_thousands(row, cell, f"label {label!r}")
    if not counts:
        raise InputError(f"{path}: {_wrong_sum(values, percentages=signs)}")
    return TargetTable(path, {label: value / total for label, value in values.items()}, _EXACT, samples=total)


def _target_values(sheet: Sheet, cells: Mapping[str, tuple[int, str]]) -> dict[str, float]:
    """Return the numbers of a target's cells, without percent signs."""
    values: dict[str, float] = {}
    for label, (row, cell) in cells.items():
        value = parse_number(cell, decimal_comma=sheet.decimal_comma)
        if value is None:
            sheet.refuse_thousands(row, cell, f"label {label!r}")
        if value is None or not (math.isfinite(value) and value >= 0):
            raise InputError(
                f"{sheet.place(row)}, label {label!r}: {cell!r} is not a probability or a count; "
                "write a number such as 0.25 or 25"
            )
        values[label] = value
    total = sum(values.values())
    if total <= 0:
        raise InputError(f"{sheet.path}: the target is empty; at least one label must be more than 0")
    if math.isinf(total):
        raise InputError(f"{sheet.path}: the numbers are too large to add; give probabilities or counts of samples")
    without = [(row, cell) for row, cell in cells.values() if not is_percentage(cell)]
    if 0 < len(without) < len(cells):
        row, cell = without[0]
        raise InputError(f"{sheet.place(row)}: {cell!r} has no percent sign, others have; use it for all or none")
    return values


def _wrong_sum(values: Mapping[str, float], *, percentages: bool) -> str:
    """Say what is wrong with numbers that are neither probabilities nor percentages nor counts."""
    total = sum(values.values())
    if percentages:
        return f"the percentages sum to {total:.9g}, which rounding does not explain; give all labels, or counts"
    if max(values.values()) <= 1:
        return (
            f"the probabilities sum to {total:.9g}, which rounding does not explain; "
            "give all labels, with more digits, or give counts"
        )
    return (
        f"the numbers sum to {total:.9g}: probabilities would sum to 1, percentages to 100, and counts would be whole "
        "numbers; give all labels in one of these forms"
    )


def _long_target(sheet: Sheet) -> dict[str, tuple[int, str]]:
    """Return row and cell by label, from two columns."""
    start = 1 if len(sheet.rows[0]) == 2 and looks_like_header(sheet.rows[0][1]) and sheet.rows[0][1] else 0
    cells: dict[str, tuple[int, str]] = {}
    for number, row in enumerate(sheet.rows[start:], start):
        if len(row) != 2:
            raise InputError(
                f"{sheet.place(number)}: {len(row)} cells; the target has two columns, label and probability, or "
                "labels above one row of numbers"
            )
        label, cell = row
        if label in cells:
            raise InputError(f"{sheet.place(number)}: label {label!r} occurs twice")
        cells[label] = number, cell
    return cells


def _wide_target(sheet: Sheet, labels: Sequence[str] | None) -> dict[str, tuple[int, str]] | None:
    """Return row and cell by label, from labels above one row of numbers; None if the file has another layout."""
    if len(sheet.rows) != 2 or len(sheet.rows[0]) != len(sheet.rows[1]):
        return None
    header, row = sheet.rows
    has_name = not _is_number(row[0], sheet) or header[0].lower() in _NAME_HEADERS
    names, cells = (header[1:], row[1:]) if has_name else (header, row)
    two_columns = len(header) == 2 and (labels is None or not set(names) <= set(labels))
    if two_columns or not names or not all(map(looks_like_header, names)):
        return None
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise InputError(f"{sheet.place(0)}: label {duplicate!r} occurs twice")
    return {name: (1, cell) for name, cell in zip(names, cells, strict=True)}


def _has_names(header: Sequence[str], column: Sequence[str], sheet: Sheet) -> bool:
    return header[0].lower() in _NAME_HEADERS or not all(_is_number(cell, sheet) for cell in column)


def _is_number(cell: str, sheet: Sheet) -> bool:
    """Whether a cell is a number, or one that is refused because of its separators; neither is a name."""
    return parse_number(cell, decimal_comma=sheet.decimal_comma) is not None or without_groups(cell) is not None


def _make_counts(path: Path, values: Vector, clients: list[str], labels: list[str]) -> LabelCounts:
    others = values.shape[1] - 1
    if others > 1:
        for column, label in enumerate(labels):
            named = _names_total(label) or label.lower() in _SIZE_HEADERS
            if named and np.array_equal(2 * values[:, column], values.sum(axis=1)):
                raise InputError(
                    f"{path}: the column {label!r} holds the sums of the others and is no label; remove it"
                )
    try:
        counts = LabelCounts.of(values, clients=clients, labels=labels)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    _refuse_total_row(path, values, counts.sizes, clients)
    return counts


def _refuse_total_row(path: Path, values: Vector, sizes: Vector, clients: Sequence[str]) -> None:
    """Raise an error if a row has the sums of all others, by its name or because that can hardly be chance."""
    others = np.count_nonzero(sizes) - 1  # equal clients besides empty ones are no totals
    for row in np.flatnonzero(2 * sizes == sizes.sum()).tolist():
        named = _names_total(clients[row])
        surely = others >= _SURELY_TOTAL and values.shape[1] > 1 and row in (0, len(clients) - 1)
        if (named or surely) and np.array_equal(2 * values[row], values.sum(axis=0)):
            unless = "" if named else "; if it is a client, it may stand anywhere but in the first or the last row"
            raise InputError(
                f"{path}: the row {clients[row]!r} holds the sums of the others and is no client; remove it{unless}"
            )


def _refuse_total_entry(
    path: Path, values: Mapping[str, float], labels: Sequence[str] | None, tolerance: float = 0.0
) -> None:
    """Raise an error if an entry of a target has the sum of the others and is named so.

    The name is needed: half of all samples may well have the same label.
    """
    total = sum(values.values())
    for label, value in values.items():
        named = _names_total(label) and label not in (labels or ())
        if named and len(values) > 2 and abs(2 * value - total) <= tolerance:
            raise InputError(f"{path}: the entry {label!r} holds the sum of the others and is no label; remove it")


def _names_total(name: str) -> bool:
    """Whether a name, or the lack of one, is that of a total.

    >>> _names_total("Grand total:"), _names_total("Small")
    (True, False)
    """
    return not name or not _TOTAL_WORDS.isdisjoint(re.findall(r"\w+", name.lower()))
