"""Label counts and targets in CSV files, as an engineer has them at hand."""

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
    """A target marginal by label name, as a file gives it."""

    shares: dict[str, float]
    """Probability per label; they sum to 1 up to ``tolerance``."""
    tolerance: float
    """How far the sum may be from 1 by the rounding of the printed digits."""
    counted: bool
    """Whether the file holds counts, which were normalised."""

    @property
    def probabilities(self) -> dict[str, float]:
        """The shares, the rounding of their sum divided out."""
        total = sum(self.shares.values())
        return {label: share / total for label, share in self.shares.items()}


def read_counts(path: Path) -> LabelCounts:
    """Read a table with a client per row, a label per column, and label names in the header.

    The first column holds client names if its header is ``client`` or empty, or if any of its cells
    is not a number; otherwise clients are named by their number.
    """
    header, *rows = _rows(path)
    named = header[0].lower() in _NAME_HEADERS or any(_number(row[0]) is None for row in rows if row)
    first = 1 if named else 0
    labels = header[first:]
    if not labels:
        raise InputError(f"{path}: the header names no label; it needs a column per label")
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}")
    if not rows:
        raise InputError(f"{path}: no clients below the header; it needs a row per client")
    clients = [row[0] for row in rows] if named else [str(i) for i in range(1, len(rows) + 1)]
    cells = [row[first:] for row in rows]
    try:
        values = np.array(cells, dtype=np.float64)
    except ValueError:
        for line, row in enumerate(cells, start=2):
            for label, cell in zip(labels, row, strict=True):
                if _number(cell) is None:
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
    rows = _rows(path)
    if len(rows[0]) == 2 and _number(rows[0][1]) is None:
        start, rows = 2, rows[1:]
    else:
        start = 1
    values: dict[str, float] = {}
    slack = 1e-9
    for line, row in enumerate(rows, start=start):
        if len(row) != 2:
            raise InputError(
                f"{path}, line {line}: {len(row)} cells; the target has two columns, label and probability"
            )
        label, cell = row
        value = _number(cell)
        if value is None or not (math.isfinite(value) and value >= 0):
            raise InputError(f"{path}, line {line}, label {label!r}: {cell!r} is not a probability or a count")
        if label in values:
            raise InputError(f"{path}, line {line}: label {label!r} stands twice")
        values[label] = value
        slack += 0.5 * _last_digit(cell)
    total = sum(values.values())
    whole = all(value == int(value) for value in values.values())
    if total <= 0:
        raise InputError(f"{path}: the target is empty; at least one label must be more than 0")
    if whole:
        return TargetTable({label: value / total for label, value in values.items()}, slack, counted=total != 1)
    if abs(total - 1.0) > slack:
        raise InputError(
            f"{path}: the probabilities sum to {total:.9g}, which rounding does not explain; "
            "give them with more digits, or give counts"
        )
    return TargetTable(values, slack, counted=False)


def _rows(path: Path) -> list[list[str]]:
    """Cells of a CSV file, stripped, without blank lines; comma, semicolon or tab between them."""
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


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _last_digit(cell: str) -> float:
    """Size of the last printed digit: 0.25 → 0.01, 3 → 1, 1.5e-3 → 1e-4."""
    mantissa, _, exponent = cell.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(10.0 ** (int(exponent or 0) - decimals))
