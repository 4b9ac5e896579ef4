"""A table or a figure of the report, before it is written to the page and to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedpals.report.drawing import Drawing, draw
from fedpals.report.figures import Panel
from fedpals.report.looks import Look
from fedpals.report.sheet import Sheet

METRICS = {"accuracy": "accuracy", "macro_f1": "macro-F1"}
"""Names of the metrics in texts."""
_ALONE = (5.6, 3.6)
"""Width and height of an ordinary panel without others beside it, in inches."""


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A table or a figure: its numbers, its panels and its texts."""

    name: str
    """Name of its files, without ending."""
    title: str
    caption: str
    sheet: Sheet
    panels: Sequence[Panel]
    """What is drawn; empty for a table alone."""
    legend: Mapping[str, Look] = field(default_factory=dict)
    """Methods in the panels, if the panels do not name them."""
    tabular: bool = False
    """Whether the table comes first and the panels second."""
    federation: str | None = None
    """Name of the federation that it shows, if readers can choose one."""
    tables: Mapping[str, Sheet] = field(default_factory=dict)
    """The numbers as the page shows them, by title: the first at once, the others folded away; else the sheet."""
    finding: str = ""
    """What came out, in a sentence."""

    def draw(self, prefix: str) -> Drawing | None:
        """Draw all panels, if there are any; ``prefix`` begins their ids on the page."""
        if not self.panels:
            return None
        description = f"{self.title}: {{panel}}. {self.caption}"
        panels = [replace(p, size=_ALONE) if len(self.panels) == 1 and p.size == Panel.size else p for p in self.panels]
        # Of the many figures of single federations, vector graphics are enough.
        pixels = self.federation is None
        return draw(panels, self.legend, prefix=prefix, description=description, pixels=pixels)


def settings_text(values: Mapping[str, object]) -> str:
    """Return settings as text, such as ``ess = 0.5, rounds = 10``."""
    return ", ".join(
        f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {value}" for key, value in values.items()
    )
