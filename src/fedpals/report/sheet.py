"""Numbers behind a table or a figure, as CSV for programs and as LaTeX for papers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Literal, TypeAlias

from fedpals.report.table import Spread

Value: TypeAlias = Spread | float | str | None
Mark: TypeAlias = Literal["", "best", "near", "quiet", "green", "amber", "red"]

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
    """A value, how it stands out, and what else is known about it."""

    value: Value
    mark: Mark = ""
    note: str = ""

    @property
    def text(self) -> str:
        """The value as a reader sees it."""
        if self.value is None:
            return ""
        return f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)

    @property
    def number(self) -> bool:
        """Whether it is one."""
        return isinstance(self.value, Spread | float | int)

    @property
    def latex(self) -> str:
        """The value in LaTeX, the best in bold and what is near it underlined."""
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
        """Wrap plain values into cells."""
        return cls(tuple(columns), tuple(tuple(_cell(value) for value in row) for row in rows))

    @property
    def groups(self) -> list[list[tuple[Cell, ...]]]:
        """Rows that begin alike, together: their name needs to be written only once."""
        return [list(rows) for _, rows in groupby(self.rows, key=lambda row: row[0].text)]

    def csv(self) -> str:
        """Comma-separated values; mean and standard deviation, in %, in columns of their own.

        >>> print(Sheet.of(["row", "FedPALS"], [["C = 3", Spread(0.9, 0.01, 8)]]).csv(), end="")
        row,FedPALS mean %,FedPALS std %,FedPALS seeds
        C = 3,90,1,8
        """
        wide = [any(isinstance(row[i].value, Spread) for row in self.rows) for i in range(len(self.columns))]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        header = [
            [f"{name} {part}" for part in ("mean %", "std %", "seeds")] if w else [name]
            for name, w in zip(self.columns, wide, strict=True)
        ]
        writer.writerow(chain.from_iterable(header))
        for row in self.rows:
            cells = [_plain(cell.value, wide=w) for cell, w in zip(row, wide, strict=True)]
            writer.writerow(chain.from_iterable(cells))
        return text.getvalue()

    def latex(self, comment: str = "") -> str:
        r"""Return a ``tabular`` for ``\input``; the paper that takes it needs the package booktabs."""
        first = [i for i, name in enumerate(self.columns) if all(not row[i].number for row in self.rows)]
        alignment = "".join("l" if i in first else "r" for i in range(len(self.columns)))
        lines = [f"% {line}" for line in comment.splitlines()]
        lines += [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule"]
        lines += [" & ".join(name.translate(_LATEX) for name in self.columns) + r" \\", r"\midrule"]
        for group in self.groups:
            for i, (head, *cells) in enumerate(group):
                lines.append(" & ".join(["" if i else head.latex, *(cell.latex for cell in cells)]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _cell(value: Value | Cell) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


def _plain(value: Value, *, wide: bool) -> list[str]:
    if isinstance(value, Spread):
        return [f"{100 * value.mean:.6g}", f"{100 * value.std:.6g}", str(value.seeds or "")]
    text = "" if value is None else f"{value:.8g}" if isinstance(value, float) else str(value)
    return [text, "", ""] if wide else [text]
