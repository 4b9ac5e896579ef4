"""Label counts and targets in CSV files."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpals.errors import InputError
from fedpals.labels.counts import LabelCounts

_NAME_HEADERS = {"", "client"}


@dataclass(frozen=True)
class TargetTable:
    """A target marginal by label name, as read from a file."""

    shares: dict[str, float]
    """Probability of each label; they sum to 1 up to ``tolerance``."""
    tolerance: float
    """Largest difference of the sum from 1 that the rounding of the printed digits can explain."""
    counted: bool
    """Whether the file has counts, which were normalised."""

    @property
    def probabilities(self) -> dict[str, float]:
        """Shares, normalised to sum to 1."""
        total = sum(self.shares.values())
        return {label: share / total for label, share in self.shares.items()}


def read_counts(path: Path) -> LabelCounts:
    """Read a table with one client per row, one label per column, and label names in the header.

    The first column has client names if its header is ``client`` or empty, or if any of its cells
    is not a number; otherwise clients are named by their number.
    """
    header, *rows = _read_rows(path)
    has_names = header[0].lower() in _NAME_HEADERS or any(_parse_number(row[0]) is None for row in rows if row)
    first_label = 1 if has_names else 0
    labels = header[first_label:]
    if not labels:
        raise InputError(f"{path}: the header names no label; it needs one column per label")
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}")
    if not rows:
        raise InputError(f"{path}: no clients below the header; it needs one row per client")
    clients = [row[0] for row in rows] if has_names else [str(i) for i in range(1, len(rows) + 1)]
    cells = [row[first_label:] for row in rows]
    try:
        values = np.array(cells, dtype=np.float64)
    except ValueError:
        for line, row in enumerate(cells, start=2):
            for label, cell in zip(labels, row, strict=True):
                if _parse_number(cell) is None:
                    raise InputError(
                        f"{path}, line {line}, label {label!r}: {cell!r} is not a number; write 0 where there is none"
                    ) from None
        raise
    try:
        return LabelCounts.of(values, clients=clients, labels=labels)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_target(path: Path) -> TargetTable:
    """Read two columns, label and probability or count, with or without a header."""
    rows = _read_rows(path)
    if len(rows[0]) == 2 and _parse_number(rows[0][1]) is None:
        first_line, rows = 2, rows[1:]
    else:
        first_line = 1
    values: dict[str, float] = {}
    tolerance = 1e-9
    for line, row in enumerate(rows, start=first_line):
        if len(row) != 2:
            raise InputError(
                f"{path}, line {line}: {len(row)} cells; the target has two columns, label and probability"
            )
        label, cell = row
        value = _parse_number(cell)
        if value is None or not (math.isfinite(value) and value >= 0):
            raise InputError(f"{path}, line {line}, label {label!r}: {cell!r} is not a probability or a count")
        if label in values:
            raise InputError(f"{path}, line {line}: label {label!r} occurs twice")
        values[label] = value
        tolerance += 0.5 * _last_digit(cell)
    total = sum(values.values())
    all_integers = all(value == int(value) for value in values.values())
    if total <= 0:
        raise InputError(f"{path}: the target is empty; at least one label must be more than 0")
    if all_integers:
        return TargetTable({label: value / total for label, value in values.items()}, tolerance, counted=total != 1)
    if abs(total - 1.0) > tolerance:
        raise InputError(
            f"{path}: the probabilities sum to {total:.9g}, which rounding does not explain; "
            "give them with more digits, or give counts"
        )
    return TargetTable(values, tolerance, counted=False)


def _read_rows(path: Path) -> list[list[str]]:
    """Read the cells of a CSV file, stripped, without blank lines; separated by comma, semicolon or tab."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give the path of a CSV file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}); save it as UTF-8 CSV") from None
    lines = text.splitlines()
    delimiter = next((d for d in ",;\t" if lines and d in lines[0]), ",")
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter)]
    rows = [row for row in rows if any(row)]
    if not rows:
        raise InputError(f"{path}: the file is empty")
    return rows


def _parse_number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _last_digit(cell: str) -> float:
    """Return the size of the last printed digit: 0.25 → 0.01, 3 → 1, 1.5e-3 → 1e-4."""
    mantissa, _, exponent = cell.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(10.0 ** (int(exponent or 0) - decimals))
