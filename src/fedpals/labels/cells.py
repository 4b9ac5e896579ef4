"""Cells of a spreadsheet: separators, decimal commas, percent signs, and the line of each row."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

from fedpals.errors import InputError

_GROUPED = re.compile(
    r"(?P<whole>[+-]?[1-9]\d{0,2}(?P<mark>[.,'’ \u00a0\u202f])\d{3}(?:(?P=mark)\d{3})*)"
    r"(?:(?!(?P=mark))[.,](?P<decimals>\d+))?"
)
"""Digits in groups of three, as in 5.000 or 1,250,000; perhaps with decimals, as in 1.250,0. 0.125 is not grouped."""


@dataclass(frozen=True)
class Sheet:
    """Rows of a CSV file without blank lines, and the line of the file on which each begins."""

    path: Path
    rows: list[list[str]]
    lines: list[int]
    decimal_comma: bool
    """Whether 0,5 is a number, as in files separated by semicolons or tabs."""

    def place(self, row: int) -> str:
        """Return the place of a row, for an error message."""
        return f"{self.path}, line {self.lines[row]}"

    def count(self, row: int, cell: str, what: str) -> float:
        """Return the number of samples in a cell; raise an error with its place if it is not clearly a number."""
        self.refuse_thousands(row, cell, what)
        value = None if is_percentage(cell) else parse_number(cell, decimal_comma=self.decimal_comma)
        if value is None:
            raise InputError(f"{self.place(row)}, {what}: {cell!r} is not a number; {_remedy(cell)}")
        return value

    def refuse_thousands(self, row: int, cell: str, what: str) -> None:
        """Raise an error if a cell may have separators for thousands: 5.000 is 5000 to some people and 5 to others."""
        thousands = without_groups(cell)
        if thousands is None:
            return
        decimal = parse_number(cell, decimal_comma=True)
        problem = "is not a number" if decimal is None else f"may mean {thousands} or {decimal:g}"
        if decimal is not None:
            remedy = "write the one that you mean"
        else:
            remedy = "write a whole number" if "." in thousands else f"write {thousands}"
        raise InputError(f"{self.place(row)}, {what}: {cell!r} {problem}; {remedy}, without a separator for thousands")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give the path of a CSV file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; give the path of a CSV file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error}); give the path of a CSV file") from None


def delimiter_of(text: str) -> str:
    """Return the separator of cells, tab, semicolon or comma, from the first line that is not blank.

    >>> delimiter_of("store;a;b"), delimiter_of("store,a,b")
    (';', ',')
    """
    first = next((line for line in text.splitlines() if line.strip()), "")
    return next((d for d in "\t;," if d in first), ",")


def read_sheet(path: Path, content: bytes | None = None) -> Sheet:
    """Read the cells of a CSV file, stripped; separated by comma, semicolon or tab. A byte-order mark is removed."""
    try:
        text = (read_bytes(path) if content is None else content).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read as text ({error}); save it as UTF-8 CSV") from None
    delimiter = delimiter_of(text)
    rows: list[list[str]] = []
    lines: list[int] = []
    reader = csv.reader(text.splitlines(), delimiter=delimiter)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                rows.append(cells)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not a CSV file ({error}); save it again as CSV") from None
    if not rows:
        raise InputError(f"{path}: the file is empty")
    return Sheet(path, rows, lines, delimiter != ",")


def parse_number(cell: str, *, decimal_comma: bool = False) -> float | None:
    """Return the number in a cell, without a percent sign; None if it is not a number.

    >>> parse_number("35 %"), parse_number("0,35", decimal_comma=True), parse_number("1,000"), parse_number("0x10")
    (35.0, 0.35, None, None)
    """
    text = cell.strip().removesuffix("%").strip()
    if decimal_comma and text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")
    if not text or text.lower().lstrip("+-").startswith(("0x", "0o", "0b")) or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def without_groups(cell: str) -> str | None:
    """Return the number of a cell whose digits seem to be grouped by thousands; None if they are not.

    >>> without_groups("5.000"), without_groups("1,250,000"), without_groups("1.250,5"), without_groups("0.125")
    ('5000', '1250000', '1250.5', None)
    """
    match = _GROUPED.fullmatch(cell)
    if match is None:
        return None
    decimals = (match["decimals"] or "").rstrip("0")
    return match["whole"].replace(match["mark"], "") + (f".{decimals}" if decimals else "")


def is_percentage(cell: str) -> bool:
    """Whether a cell ends in a percent sign."""
    return cell.strip().endswith("%")


def last_digit(cell: str) -> float:
    """Return the size of the last printed digit.

    >>> last_digit("0.25"), last_digit("3"), last_digit("0,125 %")
    (0.01, 1.0, 0.001)
    """
    text = cell.strip().removesuffix("%").strip().lower().replace(",", ".")
    mantissa, _, exponent = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    try:
        return math.pow(10.0, int(exponent or 0) - decimals)
    except (OverflowError, ValueError):
        return math.inf


def looks_like_header(cell: str) -> bool:
    """Whether a cell can only be a title: it has no digit, so a mistyped number does not count as a title."""
    return not any(character.isdigit() for character in cell)


def _remedy(cell: str) -> str:
    if not cell:
        return "write 0 if there are no samples, or say with --blank-is-zero that blank cells mean 0"
    if cell.endswith("%"):
        return "write counts of samples, not percentages"
    return "write digits only"
