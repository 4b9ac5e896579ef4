"""Figures as files for papers, and panel by panel for a page.

Layout and drawing take most of the time of a report. So a figure is laid out once and drawn once per format, and the
page's panels are cut out of the SVG.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from fedpals.report.figures import LEGEND_INCHES, Panel, compose, panel_id
from fedpals.report.looks import CSS, Look

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec
    from matplotlib.transforms import Bbox

_COLOURS = {**{colour.lower(): name for colour, name in CSS.items()}, "#f2f2f2": "var(--absent)"}
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "fedpals", "font.family": "DejaVu Sans"}
"""Settings of matplotlib; with one font only, because a search for others takes longer than the drawing."""
_MAX_SHARED_INCHES = 7.0
"""Width above which a panel has a line of the page to itself."""
_TITLE_INCHES = 0.25
_GAP = 16.0
"""Pixels between panels."""
_POINTS_PER_INCH = 72
"""Resolution of SVG coordinates."""
_SVG = "http://www.w3.org/2000/svg"


@dataclass(frozen=True, eq=False)
class DrawnPanel:
    """A panel on the page."""

    title: str
    svg: str
    inches: float
    """Width at which its text has the same size as in all other panels."""

    @property
    def wide(self) -> bool:
        """Whether it has a line of the page to itself."""
        return self.inches > _MAX_SHARED_INCHES


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure as files, and its panels for the page."""

    svg: bytes
    png: bytes | None
    panels: tuple[DrawnPanel, ...]


def draw(
    panels: Sequence[Panel], legend: Mapping[str, Look], *, prefix: str, description: str, pixels: bool
) -> Drawing:
    """Draw panels side by side, with the methods of ``legend`` below them, as SVG and, if ``pixels``, as PNG.

    ``prefix`` begins the ids of the page's panels, ``description`` is for readers who cannot see them.
    """
    import matplotlib as mpl

    with mpl.rc_context(_SETTINGS):
        figure = compose(panels, legend, laid_out=False)
        boxes = _lay_out(figure, len(panels), bottom=LEGEND_INCHES if legend else 0.0)
        svg = _save(figure, "svg", dict.fromkeys(("Creator", "Date", "Format", "Type")), transparent=True)
        # Packing the pixels tighter would take as long as drawing them.
        packing = {"compress_level": 1}
        png = _save(figure, "png", {"Software": None}, dpi=120, pil_kwargs=packing) if pixels else None
    root = _parse(svg)
    page_panels = [
        DrawnPanel(
            panel.title,
            _cut_out(root, i, figure, box, f"{prefix}-{i}", f"{description.replace('{panel}', panel.title)}"),
            round(box.width / figure.dpi, 2),
        )
        for i, (panel, box) in enumerate(zip(panels, boxes, strict=True))
    ]
    return Drawing(svg, png, tuple(page_panels))


def _lay_out(figure: Figure, panels: int, bottom: float) -> list[Bbox]:
    """Place the panels above ``bottom`` inches, fix their labels, and return the box of each without its title.

    matplotlib's own layout engines measure every text several times, and again whenever the figure is saved.
    """
    layouts = [_PanelLayout.of(figure, number) for number in range(panels)]
    left, right, below, above = (max(0.0, *margins) for margins in zip(*(p.margins for p in layouts), strict=True))
    above += _TITLE_INCHES * figure.dpi
    grid = _spec(layouts[0].ax).get_gridspec()
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
    return [layout.fix(figure) for layout in layouts]


@dataclass(frozen=True, eq=False)
class _PanelLayout:
    """A panel, and how far its labels extend beyond its cell of the grid: left, right, below and above, in pixels."""

    ax: Axes
    margins: tuple[float, float, float, float]
    labels: Sequence[tuple[Axis, float, float]]
    """Labels of axes and their positions, in pixels from the lower left corner of their axes."""

    @classmethod
    def of(cls, figure: Figure, number: int) -> _PanelLayout:
        from matplotlib.transforms import Bbox

        ax, *others = (a for a in figure.axes if str(a.get_gid()).startswith(panel_id(number)))
        ax.title.set_visible(False)
        box = Bbox.union([b for a in (ax, *others) if (b := a.get_tightbbox()) is not None])
        ax.title.set_visible(True)
        cell = _cell(figure, ax)
        labels = []
        for axis in (ax.xaxis, ax.yaxis):  # a colour bar, whose width is not settled yet, places its own
            x, y = axis.label.get_transform().transform(axis.label.get_position())
            labels.append((axis, x - ax.bbox.x0, y - ax.bbox.y0))
        margins = cell.x0 - box.x0, box.x1 - cell.x1, cell.y0 - box.y0, box.y1 - cell.y1
        return cls(ax, margins, labels)

    def fix(self, figure: Figure) -> Bbox:
        """Fix the positions of labels and title; return the panel's box, in pixels."""
        from matplotlib.transforms import Bbox

        for axis, x, y in self.labels:
            box = axis.axes.bbox
            # A label keeps its gap in pixels across the axis, and is centred along it.
            horizontal = axis is axis.axes.xaxis
            position = (0.5, y / box.height) if horizontal else (x / box.width, 0.5)
            axis.set_label_coords(*position)
        self.ax.set_title(self.ax.get_title(), y=1.0)
        left, right, below, above = self.margins
        cell, legend = _cell(figure, self.ax), self.ax.get_legend()
        box = Bbox.from_extents(cell.x0 - left, cell.y0 - below, cell.x1 + right, cell.y1 + above)
        # After the layout, labels, notes and legend may be wider than the axes.
        self.ax.apply_aspect()
        texts: list[Artist] = [axis.label for axis, _, _ in self.labels if axis.label.get_text()]
        texts += [*(text for text in self.ax.texts if text.get_in_layout()), *([legend] if legend else [])]
        return Bbox.union([box, *(text.get_window_extent() for text in texts)]).padded(2)


def _cell(figure: Figure, ax: Axes) -> Bbox:
    """Return a panel's cell of the grid, in pixels; it includes the colour bar."""
    return _spec(ax).get_position(figure).transformed(figure.transSubfigure)


def _spec(ax: Axes) -> SubplotSpec:
    spec = ax.get_subplotspec()
    assert spec is not None, "composed figures have their axes in a grid"
    return spec.get_topmost_subplotspec()


def _save(figure: Figure, form: str, metadata: Mapping[str, Any], **settings: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, metadata=metadata, **settings)
    return buffer.getvalue()


def _parse(svg: bytes) -> ET.Element:
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return ET.fromstring(svg)


def _cut_out(root: ET.Element, number: int, figure: Figure, box: Bbox, prefix: str, description: str) -> str:
    """Return one panel as a separate ``svg`` element, in the page's fonts and colours, light or dark."""
    panel = f"{panel_id(number)}"
    groups = [
        g for g in root.iter(f"{{{_SVG}}}g") if g.get("id") == panel or g.get("id", "").startswith(f"{panel}-bar")
    ]
    for group in groups:
        for parent in group.iter():
            for child in list(parent):
                if child.get("id") == f"{panel}-title":
                    parent.remove(child)
    text = "".join(ET.tostring(group, encoding="unicode") for group in groups)
    text = _definitions(root, text) + text
    text = re.sub(r' xmlns(?::\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", text)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda match: _COLOURS.get(match[0], match[0]), text)
    scale, height = _POINTS_PER_INCH / figure.dpi, figure.bbox.height
    view = (box.x0 * scale, (height - box.y1) * scale, box.width * scale, box.height * scale)
    return (
        f'<svg role="img" aria-label="{escape(description)}" fill="currentColor" '
        f'viewBox="{" ".join(f"{value:.2f}" for value in view)}">{text}</svg>'
    )


def _definitions(root: ET.Element, text: str) -> str:
    """Return the elements that a part of the figure refers to but does not contain, such as clip paths."""
    ids = set(re.findall(r'\bid="([^"]+)"', text))
    references = set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) - ids
    elements = [element for element in root.iter() if element.get("id") in references]
    return "<defs>" + "".join(ET.tostring(element, encoding="unicode") for element in elements) + "</defs>"
