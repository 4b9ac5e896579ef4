"""A figure drawn once: as files for papers, and panel by panel for a page.

Laying out and drawing is what a report takes its time for. So a figure is laid out once, drawn once as
PNG and once as SVG, and the page's panels are cut out of that SVG.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from fedpals.report.figures import LEGEND_INCHES, Panel, compose, panel_id
from fedpals.report.looks import CSS, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec
    from matplotlib.transforms import Bbox

_COLOURS = {**{colour.lower(): name for colour, name in CSS.items()}, "#f2f2f2": "var(--absent)"}
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "fedpals", "font.family": "DejaVu Sans"}
"""One font: to look for others for every piece of text takes longer than to draw it."""
_WIDE_INCHES = 7.0
_TITLE_INCHES = 0.25
_GAP = 16.0
"""Pixels between panels."""
_POINTS = 72
"""Per inch, in which SVG counts."""
_SVG = "http://www.w3.org/2000/svg"


@dataclass(frozen=True, eq=False)
class DrawnPanel:
    """A panel on the page."""

    title: str
    svg: str
    inches: float
    """Its width: at that width its text is as large as all others'."""

    @property
    def wide(self) -> bool:
        """Whether it has a line of the page to itself."""
        return self.inches > _WIDE_INCHES


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure as files, and its panels for the page."""

    png: bytes
    svg: bytes
    panels: tuple[DrawnPanel, ...]


def draw(panels: Sequence[Panel], legend: Mapping[str, Look], *, prefix: str, description: str) -> Drawing:
    """Draw panels side by side, with the methods of ``legend`` below them.

    ``prefix`` begins the ids of the page's panels, ``description`` is for those who cannot see them.
    """
    import matplotlib as mpl

    with mpl.rc_context(_SETTINGS):
        figure = compose(panels, legend)
        boxes = _lay_out(figure, len(panels), bottom=LEGEND_INCHES if legend else 0.0)
        png = _saved(figure, "png", {"Software": None}, dpi=150)
        svg = _saved(figure, "svg", dict.fromkeys(("Creator", "Date", "Format", "Type")), transparent=True)
    root = _parsed(svg)
    drawn = [
        DrawnPanel(
            panel.title,
            _cut_out(root, i, figure, box, f"{prefix}-{i}", f"{description.replace('{panel}', panel.title)}"),
            round(box.width / figure.dpi, 2),
        )
        for i, (panel, box) in enumerate(zip(panels, boxes, strict=True))
    ]
    return Drawing(png, svg, tuple(drawn))


def _lay_out(figure: Figure, panels: int, bottom: float) -> list[Bbox]:
    """Arrange the panels above ``bottom`` inches, fix what would move, and return what each covers, titles left out.

    matplotlib's own engines measure every piece of text several times, and again whenever the figure is saved.
    """
    figure.set_layout_engine(None)
    measured = [_Measured.of(figure, number) for number in range(panels)]
    left, right, below, above = (max(0.0, *margins) for margins in zip(*(m.margins for m in measured), strict=True))
    above += _TITLE_INCHES * figure.dpi
    grid = _spec(measured[0].ax).get_gridspec()
    width, height = figure.bbox.width / grid.ncols, (figure.bbox.height - bottom * figure.dpi) / grid.nrows
    inner_width, inner_height = width - left - right - _GAP, height - below - above - _GAP
    figure.subplots_adjust(
        left=(left + _GAP / 2) / figure.bbox.width,
        right=1 - (right + _GAP / 2) / figure.bbox.width,
        bottom=(below + _GAP / 2 + bottom * figure.dpi) / figure.bbox.height,
        top=1 - (above + _GAP / 2) / figure.bbox.height,
        wspace=(width - inner_width) / inner_width,
        hspace=(height - inner_height) / inner_height,
    )
    return [m.fixed(figure) for m in measured]


@dataclass(frozen=True, eq=False)
class _Measured:
    """A panel, and how far its labels reach beyond its cell of the grid: left, right, below and above, in pixels."""

    ax: Axes
    others: Sequence[Axes]
    margins: tuple[float, float, float, float]
    labels: Sequence[tuple[Axis, float, float]]
    """Labels of axes, and where they stand: in pixels from the lower left corner of their axes."""

    @classmethod
    def of(cls, figure: Figure, number: int) -> _Measured:
        from matplotlib.transforms import Bbox

        ax, *others = (a for a in figure.axes if str(a.get_gid()).startswith(panel_id(number)))
        ax.title.set_visible(False)
        box = Bbox.union([b for a in (ax, *others) if (b := a.get_tightbbox()) is not None])
        ax.title.set_visible(True)
        cell = _cell(figure, ax)
        labels = []
        for a in (ax, *others):
            for axis in (a.xaxis, a.yaxis):
                x, y = axis.label.get_transform().transform(axis.label.get_position())
                labels.append((axis, x - a.bbox.x0, y - a.bbox.y0))
        margins = cell.x0 - box.x0, box.x1 - cell.x1, cell.y0 - box.y0, box.y1 - cell.y1
        return cls(ax, others, margins, labels)

    def fixed(self, figure: Figure) -> Bbox:
        """Put labels and title where they belong for good; return what the panel covers, in pixels."""
        from matplotlib.transforms import Bbox

        for axis, x, y in self.labels:
            box = axis.axes.bbox
            # Beside the axes a label keeps its distance, along them its share.
            across = axis is axis.axes.xaxis
            place = (0.5, y / box.height) if across else (x / box.width, 0.5)
            axis.set_label_coords(*place)
        self.ax.set_title(self.ax.get_title(), y=1.0)
        left, right, below, above = self.margins
        cell, legend = _cell(figure, self.ax), self.ax.get_legend()
        box = Bbox.from_extents(cell.x0 - left, cell.y0 - below, cell.x1 + right, cell.y1 + above)
        # Axes that became narrower may have labels and a legend that are wider than themselves.
        texts = [axis.label for axis, _, _ in self.labels if axis.label.get_text()] + ([legend] if legend else [])
        return Bbox.union([box, *(text.get_window_extent() for text in texts)]).padded(2)


def _cell(figure: Figure, ax: Axes) -> Bbox:
    """Return a panel's cell of the grid, in pixels; a colour bar takes its room from it."""
    return _spec(ax).get_position(figure).transformed(figure.transSubfigure)


def _spec(ax: Axes) -> SubplotSpec:
    spec = ax.get_subplotspec()
    assert spec is not None, "composed figures have their axes in a grid"
    return spec.get_topmost_subplotspec()


def _saved(figure: Figure, form: str, metadata: Mapping[str, Any], **settings: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, metadata=metadata, **settings)
    return buffer.getvalue()


def _parsed(svg: bytes) -> ElementTree.Element:
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return ElementTree.fromstring(svg)


def _cut_out(root: ElementTree.Element, number: int, figure: Figure, box: Bbox, prefix: str, description: str) -> str:
    """Return one panel as an ``svg`` element of its own, in the page's fonts and colours, light or dark."""
    panel = f"{panel_id(number)}"
    groups = [
        g for g in root.iter(f"{{{_SVG}}}g") if g.get("id") == panel or g.get("id", "").startswith(f"{panel}-bar")
    ]
    for group in groups:
        for parent in group.iter():
            for child in list(parent):
                if child.get("id") == f"{panel}-title":
                    parent.remove(child)
    text = "".join(ElementTree.tostring(group, encoding="unicode") for group in groups)
    text = _definitions(root, text) + text
    text = re.sub(r' xmlns(?::\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", text)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda match: _COLOURS.get(match[0], match[0]), text)
    scale, height = _POINTS / figure.dpi, figure.bbox.height
    view = (box.x0 * scale, (height - box.y1) * scale, box.width * scale, box.height * scale)
    return (
        f'<svg role="img" aria-label="{escape(description)}" fill="currentColor" '
        f'viewBox="{" ".join(f"{value:.2f}" for value in view)}">{text}</svg>'
    )


def _definitions(root: ElementTree.Element, text: str) -> str:
    """Return what a piece of the figure refers to and does not hold itself, such as clip paths."""
    held = set(re.findall(r'\bid="([^"]+)"', text))
    needed = set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) - held
    elements = [element for element in root.iter() if element.get("id") in needed]
    return "<defs>" + "".join(ElementTree.tostring(element, encoding="unicode") for element in elements) + "</defs>"
