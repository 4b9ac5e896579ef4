"""Figures of the paper, drawn from results: the weights of clients by size, and the label simplex."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial import ConvexHull, QhullError

from fedpals.atomic import replacing
from fedpals.errors import InputError, MissingExtraError
from fedpals.labels import Vector
from fedpals.weights import Weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: distinguishable with any kind of colour vision.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"

_MOST_PANELS = 11
"""Of more values of ESS than this, so many evenly spread ones are drawn."""
_FORMATS = (".png", ".svg", ".pdf")
_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])


def weights_figure(solutions: Sequence[Weights]) -> Figure:
    """Weights of clients sorted by size, FedAvg's as dots, a panel per ESS; for three labels the simplex too."""
    if len(solutions) > _MOST_PANELS:
        chosen = np.linspace(0, len(solutions) - 1, _MOST_PANELS).round().astype(int)
        solutions = [solutions[i] for i in chosen]
    simplex = solutions[0].counts.shape[1] == 3
    panels = len(solutions) + simplex
    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure = new_figure(4.6 * columns, 3.9 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    order = np.argsort(-solutions[0].counts.sizes, kind="stable")
    top = 1.08 * max(float(a.max()) for a in (solutions[0].fedavg, *(w.alpha for w in solutions)))
    for ax, weights in zip(axes, solutions, strict=False):
        _bars(ax, weights, order)
        ax.set_ylim(0, top)
    if simplex:
        draw_simplex(axes[len(solutions)], solutions)
    for ax in axes[panels:]:
        ax.set_visible(False)
    return figure


def _bars(ax: Axes, weights: Weights, order: Any) -> None:
    places = np.arange(order.size)
    ax.bar(places, weights.alpha[order], width=0.85, color=BLUE, label="FedPALS")
    size = float(np.clip(160 / order.size, 1.5, 6))
    ax.plot(places, weights.fedavg[order], "o", color=ORANGE, markersize=size, label="FedAvg")
    ax.set_title(f"ESS {weights.ess:.0%}  (λ = {weights.lam:.4g})")
    ax.set_ylabel("aggregation weight")
    names = weights.counts.clients
    if names and order.size <= 12:
        ax.set_xticks(places, [names[i] for i in order], rotation=35, ha="right")
    else:
        ax.set_xlabel("clients, largest first")
    ax.legend(frameon=False)


def draw_simplex(ax: Axes, solutions: Sequence[Weights]) -> None:
    """Draw the clients' hull in the simplex of three labels, T, its projection, FedAvg's and FedPALS's points."""
    weights = solutions[0]
    counts = weights.counts
    corners = np.vstack([_CORNERS, _CORNERS[:1]])
    ax.plot(*corners.T, color=GREY, linewidth=1)
    for k, (place, align) in enumerate(zip(_CORNERS, ("right", "left", "center"), strict=True)):
        shift = (0, 6) if k == 2 else (0, -14)
        ax.annotate(counts.labels[k] if counts.labels else str(k), place, shift, textcoords="offset points", ha=align)
    S = counts.marginals if isinstance(counts.marginals, np.ndarray) else counts.marginals.toarray()
    present = counts.sizes > 0
    points = S[present] @ _CORNERS
    outline = _hull(points)
    ax.fill(*outline.T, facecolor=BLUE, alpha=0.12, edgecolor=BLUE, linewidth=1)
    area = 20 + 160 * counts.sizes[present] / counts.sizes.max()
    ax.scatter(points[:, 0], points[:, 1], s=area, color=BLUE, alpha=0.75, label="clients", zorder=2)

    def mark(p: Vector, symbol: str, colour: str, label: str, size: float = 9) -> None:
        place = p @ _CORNERS
        ax.plot(*place, symbol, color=colour, label=label, markersize=size, markeredgecolor="white", zorder=4)

    path = np.array([w.marginal for w in solutions]) @ _CORNERS
    ax.plot(*path.T, "-", color=GREEN, linewidth=1, zorder=3)
    for i, w in enumerate(solutions):
        mark(w.marginal, "o", GREEN, "" if i else r"$\alpha^{\lambda}S$ (FedPALS)")
    mark(weights.fedavg @ S, "s", ORANGE, r"$\alpha^{FA}S$ (FedAvg)")
    mark(weights.projection.point, "D", BLUE, r"$\alpha^{0}S$")
    mark(weights.target, "*", RED, "target T", size=15)
    ax.set_aspect("equal")
    ax.axis("off")
    ax.legend(frameon=False, loc="upper right", bbox_to_anchor=(1.12, 1.05), fontsize="small")


def _hull(points: Vector) -> Vector:
    """Corners of the hull of points in the plane; just the points where they span no area."""
    distinct = np.unique(points.round(12), axis=0)
    if len(distinct) < 3:
        return distinct
    try:
        return np.asarray(distinct[ConvexHull(distinct).vertices])
    except QhullError:
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
    """Refuse, before any work is done, a file name that no figure can be written to."""
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"{path}: figures are written as {', '.join(_FORMATS)}; change the file's ending")
    new_figure(1, 1)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format its file name ends with, whole or not at all."""
    check_figure_path(path)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
