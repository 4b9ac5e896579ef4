"""Large plain tables, a million clients say, read from their bytes.

Plain means: cells separated by commas, no quotes, and below the header a name and then digits only. Any other file is
left to the reader that knows every form and can name what is wrong with it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedpals.labels.counts import Vector

_MIN_BYTES = 1 << 20
"""Smaller files are read quickly enough in any case."""
_MAX_DIGITS = 15
"""Larger numbers may not be exact as floating-point numbers."""
_CHUNK_ROWS = 20_000
"""Number of rows parsed at a time."""
_COMMA, _NEWLINE, _ZERO = (ord(character) for character in ",\n0")


def read_plain(content: bytes) -> tuple[list[str], list[str], Vector] | None:
    """Return header, names and numbers (rows × columns) of a large plain table; None of any other file."""
    if len(content) < _MIN_BYTES or b'"' in content:
        return None
    head, _, rest = content.replace(b"\r\n", b"\n").strip(b"\n").removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    columns = head.count(b",")
    if not columns or any(separator in head for separator in b";\t"):
        return None
    body = np.frombuffer(rest + b"\n", dtype=np.uint8)
    ends = np.flatnonzero(body == _NEWLINE) + 1
    names: list[str] = []
    values = np.empty((ends.size, columns))
    start = 0
    for first in range(0, ends.size, _CHUNK_ROWS):
        part = values[first : first + _CHUNK_ROWS]
        end = int(ends[first + len(part) - 1])
        if not _parse(body[start:end], part):
            return None
        try:
            names += [line.partition(",")[0].strip() for line in body[start:end].tobytes().decode().splitlines()]
        except UnicodeDecodeError:
            return None
        start = end
    if len(names) != len(values):  # a name has a character that counts as the end of a line
        return None
    return [name.strip() for name in head.decode(errors="replace").split(",")], names, values


def _parse(text: npt.NDArray[np.uint8], values: Vector) -> bool:
    """Write the numbers of some rows into ``values``; return whether all of them are plain."""
    rows, columns = values.shape
    places = np.flatnonzero((text == _COMMA) | (text == _NEWLINE))
    if places.size != rows * (columns + 1):
        return False
    separators = places.reshape(rows, columns + 1)
    if (text[separators[:, -1]] != _NEWLINE).any():
        return False
    last = separators[:, 1:] - 1
    digits = last - separators[:, :-1]
    if digits.min() < 1 or digits.max() > _MAX_DIGITS:
        return False
    values[...] = 0.0
    for place in range(int(digits.max())):
        has_digit = place < digits
        digit = np.where(has_digit, text[last - np.where(has_digit, place, 0)] - np.uint8(_ZERO), np.uint8(0))
        if digit.max() > 9:
            return False
        values += digit * 10.0**place
    return True
