"""A table or a figure of the report, before it is put on the page and into files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedpals.report.figures import Panel, compose
from fedpals.report.looks import Look
from fedpals.report.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {"accuracy": "accuracy", "macro_f1": "macro-F1"}
"""What readers call them."""


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A table or a figure: the numbers, how they are drawn, and what a reader is told."""

    name: str
    """Of its files."""
    title: str
    caption: str
    sheet: Sheet
    panels: Sequence[Panel]
    legend: Mapping[str, Look] = field(default_factory=dict)
    """Methods that the panels draw, where they do not name them."""
    tabular: bool = False
    """Whether the numbers are what it is about, and the panels come second."""
    federation: str | None = None
    """Whose federation it shows, where readers choose one."""

    def figure(self) -> Figure:
        """Draw all panels together."""
        return compose(self.panels, self.legend)
