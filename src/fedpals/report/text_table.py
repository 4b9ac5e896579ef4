"""Rows of texts as a table: aligned for a terminal, and as HTML for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return lines with aligned columns.

    >>> print(text_table([["method", "p"], ["FedAvg", "0.5"]]))
    method  p
    FedAvg  0.5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def html_table(rows: Sequence[Sequence[str]], captions: Sequence[str]) -> str:
    """Return a table whose first row is its header, with a line per caption."""
    header, *body = rows
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f"<table><caption>{'<br>'.join(map(escape, captions))}</caption><tr>{head}</tr>{lines}</table>"
