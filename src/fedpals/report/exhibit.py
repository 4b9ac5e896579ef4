"""A table or a figure of the report, before it is put on the page and into files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedpals.report.drawing import Drawing, draw
from fedpals.report.figures import Panel
from fedpals.report.looks import Look
from fedpals.report.sheet import Sheet

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

    def draw(self, prefix: str) -> Drawing:
        """Draw all panels; ``prefix`` begins the ids that they have on a page."""
        description = f"{self.title}: {{panel}}. {self.caption}"
        return draw(self.panels, self.legend, prefix=prefix, description=description)


def settings_text(values: Mapping[str, object]) -> str:
    """Return settings as readers write them."""
    return ", ".join(
        f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {value}" for key, value in values.items()
    )
