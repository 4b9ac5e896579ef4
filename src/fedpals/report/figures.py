"""Figures of the paper, drawn from results: the weights of clients by size, and the label simplex.

A figure consists of panels: a file holds all of them, the page arranges them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from fedpals.errors import InputError, MissingExtraError
from fedpals.files import replacing
from fedpals.labels import Vector
from fedpals.report.looks import BLUE, GREEN, GREY, ORANGE, RED, Look
from fedpals.weights import Weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_PANELS = 11
"""Number of ESS values drawn; of more values, evenly spaced ones are drawn."""
_MAX_BARS = 400
"""Number of clients above which the bars would touch and are drawn as one shape."""
LEGEND_INCHES = 0.5
"""Height of the legend below the panels."""
_FORMATS = (".png", ".svg", ".pdf")
CORNERS: Vector = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
"""Positions of the three labels of a simplex."""


@dataclass(frozen=True)
class Panel:
    """A pair of axes: its title, and the function that draws it."""

    title: str
    draw: Callable[[Axes], None]
    size: tuple[float, float] = (4.6, 3.6)
    """Width and height in inches."""


def compose(panels: Sequence[Panel], legend: Mapping[str, Look] | None = None, *, laid_out: bool = True) -> Figure:
    """Draw panels side by side, three in a row, with their titles; the methods of ``legend`` are listed below.

    Who lays the figure out by other means than matplotlib's says so with ``laid_out``: colour bars are then part of
    the grid, and move with their panels.
    """
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    width, height = (max(panel.size[i] for panel in panels) for i in (0, 1))
    figure = new_figure(width * columns, height * rows + (LEGEND_INCHES if legend else 0.3))
    if not laid_out:
        figure.set_layout_engine(None)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for number, (ax, panel) in enumerate(zip(axes, panels, strict=False)):
        before = set(figure.axes)
        panel.draw(ax)
        ax.set_title(panel.title, gid=f"{panel_id(number)}-title")
        ax.set_gid(panel_id(number))
        for bar in set(figure.axes) - before:  # a colour bar has axes of its own
            bar.set_gid(f"{panel_id(number)}-bar")
    for ax in axes[len(panels) :]:
        ax.remove()
    if legend:
        from matplotlib.lines import Line2D

        lines = [
            Line2D([], [], color=look.colour, linestyle=look.style, marker=look.marker, label=name)
            for name, look in legend.items()
        ]
        place = "outside lower center" if laid_out else "lower center"
        figure.legend(handles=lines, loc=place, ncols=min(len(lines), 3 * columns), frameon=False)
    return figure


def panel_id(number: int) -> str:
    """Return the id of a panel in the SVG of a composed figure."""
    return f"panel-{number:03d}"


def legend_below(ax: Axes, centre: float = 0.5) -> None:
    """Write the legend below the label of the horizontal axis, where it covers nothing."""
    from matplotlib.transforms import ScaledTranslation

    below = ax.transAxes + ScaledTranslation(0, -0.5, ax.figure.dpi_scale_trans)  # in inches
    place = {"loc": "upper center", "bbox_to_anchor": (centre, 0), "bbox_transform": below}
    ax.legend(frameon=False, fontsize="small", ncols=2, **place)


def weights_figure(solutions: Sequence[Weights]) -> Figure:
    """Weights of clients sorted by size, FedAvg's as dots, a panel per ESS; for three labels the simplex too."""
    return compose(weights_panels(solutions))


def weights_panels(solutions: Sequence[Weights]) -> list[Panel]:
    """Return the panels of `weights_figure`, all with the same scale."""
    if len(solutions) > _MAX_PANELS:
        indices = np.linspace(0, len(solutions) - 1, _MAX_PANELS).round().astype(int)
        solutions = [solutions[i] for i in indices]
    top = 1.2 * max(float(a.max()) for a in (solutions[0].fedavg, *(w.alpha for w in solutions)))
    titles = [f"ESS {100 * w.ess:.0f} %  (λ = {w.lam:.4g})" for w in solutions]
    panels = [Panel(title, partial(_bars, weights=w, top=top)) for title, w in zip(titles, solutions, strict=True)]
    if solutions[0].counts.shape[1] == 3:
        panels.append(Panel("label simplex", partial(draw_simplex, solutions=solutions)))
    return panels


def by_size(weights: Weights) -> Any:
    """Return the clients' rows, largest client first."""
    return np.argsort(-weights.counts.sizes, kind="stable")


def _bars(ax: Axes, weights: Weights, top: float) -> None:
    order = by_size(weights)
    places = np.arange(order.size)
    many = order.size > _MAX_BARS
    if many:
        ax.fill_between(places, weights.alpha[order], step="mid", color=BLUE, linewidth=0, label="FedPALS")
    else:
        ax.bar(places, weights.alpha[order], width=0.85, color=BLUE, label="FedPALS")
    size = float(np.clip(160 / order.size, 1.5, 6))
    ax.plot(places, weights.fedavg[order], "o", color=ORANGE, markersize=size, label="FedAvg", rasterized=many)
    ax.set_ylim(0, top)
    ax.set_ylabel("aggregation weight")
    names = weights.counts.clients
    if names and order.size <= 12:
        ax.set_xticks(places, [names[i] for i in order], rotation=35, ha="right")
    else:
        ax.set_xticks([])
        ax.set_xlabel(f"{order.size:,} clients, largest first")
    ax.legend(frameon=False, loc="upper right", ncols=2)  # in the room above the bars


def draw_simplex(ax: Axes, solutions: Sequence[Weights]) -> None:
    """Draw the clients' hull in the simplex of three labels, T, its projection, FedAvg's and FedPALS's points."""
    weights = solutions[0]
    counts = weights.counts
    corners = np.vstack([CORNERS, CORNERS[:1]])
    ax.plot(*corners.T, color=GREY, linewidth=1)
    for k, (place, align) in enumerate(zip(CORNERS, ("right", "left", "center"), strict=True)):
        shift = (0, 6) if k == 2 else (0, -14)
        ax.annotate(counts.labels[k] if counts.labels else str(k), place, shift, textcoords="offset points", ha=align)
    S = counts.marginals if isinstance(counts.marginals, np.ndarray) else counts.marginals.toarray()
    present = counts.sizes > 0
    points = S[present] @ CORNERS
    outline = hull(points)
    ax.fill(*outline.T, color=BLUE, alpha=0.12, linewidth=0)
    ax.plot(*np.vstack([outline, outline[:1]]).T, color=BLUE, alpha=0.5, linewidth=1, zorder=1)
    area = 20 + 160 * counts.sizes[present] / counts.sizes.max()
    ax.scatter(points[:, 0], points[:, 1], s=area, color=BLUE, alpha=0.75, label="clients", zorder=2)

    def mark(p: Vector, symbol: str, colour: str, label: str, size: float = 9) -> None:
        place = p @ CORNERS
        ax.plot(*place, symbol, color=colour, label=label, markersize=size, markeredgecolor="white", zorder=4)

    path = np.array([w.marginal for w in solutions]) @ CORNERS
    ax.plot(*path.T, "-", color=GREEN, linewidth=1, zorder=3)
    for i, w in enumerate(solutions):
        mark(w.marginal, "o", GREEN, "" if i else "mix by FedPALS")
    mark(weights.fedavg @ S, "s", ORANGE, "mix by FedAvg")
    mark(weights.projection.point, "D", BLUE, "closest mix")
    mark(weights.target, "*", RED, "target T", size=15)
    ax.set_aspect("equal")
    ax.set_ylim(-0.12, 1.02)  # room for the labels' names
    ax.axis("off")
    ax.legend(frameon=False, loc="upper right", bbox_to_anchor=(1.12, 0.97), fontsize="small")


def hull(points: Vector) -> Vector:
    """Return the corners of the hull of points in the plane; two end points or one if they span no area."""
    distinct = np.unique(points.round(12), axis=0)
    if len(distinct) < 3:
        return distinct
    try:
        return np.asarray(distinct[scipy.spatial.ConvexHull(distinct).vertices])
    except scipy.spatial.QhullError:
        ends = np.lexsort(distinct.T)
        return np.asarray(distinct[ends[[0, -1]]])


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that needs no display."""
    try:
        from matplotlib.figure import Figure as MatplotlibFigure
    except ImportError:
        raise MissingExtraError("drawing a figure", "plots") from None
    return MatplotlibFigure(figsize=(width, height), layout="constrained")


def check_figure_path(path: Path) -> None:
    """Raise `InputError` if a figure cannot be written to a file of this name."""
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"{path}: figures are written as {', '.join(_FORMATS)}; change the file's ending")
    new_figure(1, 1)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of its file ending, atomically."""
    check_figure_path(path)
    undated = {"Date": None} if path.suffix.lower() == ".svg" else None  # the same figure is the same file
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, metadata=undated)
