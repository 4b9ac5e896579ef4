"""The numbers of a table or a figure, as CSV for programs and as LaTeX for papers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Literal, TypeAlias

from fedpals.report.paired import Paired, Verdict
from fedpals.report.table import Spread

Value: TypeAlias = Spread | Paired | float | str | None
Mark: TypeAlias = Literal["", "best", "near", "quiet", "green", "amber", "red"]

VERDICT_MARKS: dict[Verdict, Mark] = {"better": "green", "equal": "quiet", "worse": "red", "": ""}
"""Highlighting of a paired difference."""
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "−": "$-$",
        "→": r"$\to$",
        "∞": r"$\infty$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "α": r"$\alpha$",
        "β": r"$\beta$",
        "δ": r"$\delta$",
        "λ": r"$\lambda$",
        "μ": r"$\mu$",
        "⁰": r"\textsuperscript{0}",
        "ᵀ": r"\textsuperscript{T}",
    }
)


@dataclass(frozen=True)
class Cell:
    """A value, its highlighting, and a note on it."""

    value: Value
    mark: Mark = ""
    note: str = ""
    below: tuple[tuple[str, Mark], ...] = ()
    """Lines under the value on the page, each with its highlighting."""

    @property
    def text(self) -> str:
        """The value as text on the page."""
        if self.value is None:
            return ""
        return f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)

    @property
    def number(self) -> bool:
        """Whether the value is a number."""
        return isinstance(self.value, Spread | Paired | float | int)

    @property
    def latex(self) -> str:
        """The value in LaTeX: the best in bold, values near it underlined."""
        if not isinstance(self.value, Spread):
            return self.text.translate(_LATEX)
        body = str(self.value).replace("±", r"\pm")
        if self.mark == "best":
            return rf"$\mathbf{{{body}}}$"
        return rf"\underline{{${body}$}}" if self.mark == "near" else f"${body}$"


@dataclass(frozen=True)
class Sheet:
    """Named columns and rows of cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(cls, columns: Sequence[str], rows: Sequence[Sequence[Value | Cell]]) -> Sheet:
        """Build a sheet; plain values become cells."""
        return cls(tuple(columns), tuple(tuple(_cell(value) for value in row) for row in rows))

    @property
    def filled(self) -> Sheet:
        """The sheet without columns and rows in which nothing stands but their names."""
        columns = [i for i in range(len(self.columns)) if not i or any(row[i].text for row in self.rows)]
        rows = [row for row in self.rows if any(cell.text for cell in row[1:])]
        return Sheet(tuple(self.columns[i] for i in columns), tuple(tuple(row[i] for i in columns) for row in rows))

    @property
    def groups(self) -> list[list[tuple[Cell, ...]]]:
        """Consecutive rows with the same first cell, which needs to be written only once."""
        return [list(rows) for _, rows in groupby(self.rows, key=lambda row: row[0].text)]

    @property
    def numeric(self) -> list[bool]:
        """Whether a column has numbers, which stand at its right."""
        return [any(row[i].number for row in self.rows) for i in range(len(self.columns))]

    def csv(self) -> str:
        """Return comma-separated values; mean and standard deviation, in %, are in separate columns.

        Of a paired difference they hold the difference and its standard error.

        >>> print(Sheet.of(["row", "FedPALS"], [["C = 3", Spread(0.9, 0.01, 8)]]).csv(), end="")
        row,FedPALS mean %,FedPALS std %,FedPALS seeds
        C = 3,90,1,8
        """
        spreads = [any(isinstance(row[i].value, Spread) for row in self.rows) for i in range(len(self.columns))]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        header = [
            [f"{name} {part}" for part in ("mean %", "std %", "seeds")] if is_spread else [name]
            for name, is_spread in zip(self.columns, spreads, strict=True)
        ]
        writer.writerow(chain.from_iterable(header))
        for row in self.rows:
            cells = [_csv_cells(cell.value, is_spread=is_spread) for cell, is_spread in zip(row, spreads, strict=True)]
            writer.writerow(chain.from_iterable(cells))
        return text.getvalue()

    def latex(self, comment: str = "") -> str:
        r"""Return a ``tabular`` for ``\input``; it needs the package booktabs."""
        alignment = "".join("r" if number else "l" for number in self.numeric)
        lines = [f"% {line}" for line in comment.splitlines()]
        lines += [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule"]
        lines += [" & ".join(name.translate(_LATEX) for name in self.columns) + r" \\", r"\midrule"]
        for group in self.groups:
            for i, (head, *cells) in enumerate(group):
                lines.append(" & ".join(["" if i else head.latex, *(cell.latex for cell in cells)]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _cell(value: Value | Cell) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


def _csv_cells(value: Value, *, is_spread: bool) -> list[str]:
    if isinstance(value, Spread):
        return [f"{100 * value.mean:.6g}", f"{100 * value.std:.6g}", str(value.seeds or "")]
    if isinstance(value, Paired):
        error = "" if value.error is None else f"{100 * value.error:.6g}"
        return [f"{100 * value.difference:.6g}", error, str(value.seeds)]
    text = "" if value is None else f"{value:.8g}" if isinstance(value, float) else str(value)
    return [text, "", ""] if is_spread else [text]
