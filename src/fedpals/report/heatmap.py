"""The paper's figure of label marginals: a row per client, and a separate row for the target."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedpals.labels import LabelCounts, Vector
from fedpals.report.figures import Panel, compose
from fedpals.report.looks import GAP

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

_MAX_WRITTEN_CELLS = 200
"""Number of cells up to which the shares are written into them."""
_MAX_LINEAR_LABELS = 20
"""Number of labels above which most shares are tiny, and a square-root scale keeps them visible."""
_MAX_NUMBERED_CLIENTS = 30
"""Number of clients above which only some are numbered."""
_TEXT_COLOUR = "#111111"
"""Colour of text on pale cells; not black, which becomes white on a dark page."""
_MAX_NAME_LENGTH = 6
"""Number of letters above which names are rotated to fit below their column."""


def marginals_figure(counts: LabelCounts, target: Vector, *, title: str) -> Figure:
    """Heat map of the clients' S(Y), the first one on top, and of T(Y) below them, on one colour scale.

    A label that a client does not have is grey.
    """
    return compose([marginals_panel(counts, target, title=title)])


def marginals_panel(counts: LabelCounts, target: Vector, *, title: str) -> Panel:
    """Return the only panel of `marginals_figure`."""
    clients, labels = counts.shape
    width, height = max(0.105, min(0.62, 9 / labels)), min(0.36, 8 / clients)
    # In units of a client's row: below many thin rows the target's row must be thicker to be seen.
    gap, thickness = max(0.35, 0.09 / height), max(1.0, 0.2 / height)
    target_edges = clients + gap + np.array([0.0, thickness])
    size = width * labels + 2.2, float(height * target_edges[1] + 1.3)
    return Panel(title, partial(_draw, counts=counts, target=target, target_edges=target_edges), size)


def _draw(ax: Axes, counts: LabelCounts, target: Vector, target_edges: Vector) -> None:
    clients, labels = counts.shape
    S = counts.marginals if isinstance(counts.marginals, np.ndarray) else counts.marginals.toarray()
    colours, norm = _colours(max(S.max(), target.max()), square_root=labels > _MAX_LINEAR_LABELS)
    written = (clients + 1) * labels <= _MAX_WRITTEN_CELLS
    for shares, edges in ((S, np.arange(clients + 1.0)), (target[None], target_edges)):
        mesh = ax.pcolormesh(
            np.arange(labels + 1),
            edges,
            np.ma.masked_equal(shares, 0),
            norm=norm,
            cmap=colours,
            edgecolors=GAP if written else "none",
            linewidth=1.5 if written else 0,
            rasterized=not written,
        )
        if written:
            _write(ax, shares, edges, norm)
    ax.set_ylim(target_edges[1], 0)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    _name_clients(ax, clients, target_edges.mean())
    _name_labels(ax, counts.labels or tuple(map(str, range(labels))))
    bar = ax.figure.colorbar(mesh, ax=ax, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    bar.set_label("label share, on a square-root scale" if labels > _MAX_LINEAR_LABELS else "label share")


def _colours(most: float, *, square_root: bool) -> tuple[Colormap, Normalize]:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, PowerNorm

    # Ordered by lightness, so it works in grey print and for any colour vision; without its palest part,
    # which is hard to tell from the grey of absent labels.
    shades = ListedColormap(colormaps["YlGnBu"](np.linspace(0.12, 1, 256)))
    return shades.with_extremes(bad="0.95"), PowerNorm(0.5 if square_root else 1.0, vmin=0, vmax=most)


def _write(ax: Axes, shares: Vector, edges: Vector, norm: Normalize) -> None:
    """Write the shares into their cells, in dark or white text depending on the background."""
    middles = (edges[:-1] + edges[1:]) / 2
    for row, column in np.argwhere(shares):
        share = float(shares[row, column])
        ax.text(
            column + 0.5,
            middles[row],
            f"{share:.2f}" if share >= 0.005 else "<0.01",
            color="white" if float(norm(share)) > 0.5 else _TEXT_COLOUR,
            fontsize=8,
            ha="center",
            va="center_baseline",
            in_layout=False,  # it stays within its cell; measuring hundreds of texts takes longer than drawing them
        )


def _name_clients(ax: Axes, clients: int, target: float) -> None:
    from matplotlib.ticker import MaxNLocator

    numbers = np.arange(clients)
    if clients > _MAX_NUMBERED_CLIENTS:
        round_numbers = np.array(MaxNLocator(10, integer=True).tick_values(0, clients), dtype=int)
        numbers = round_numbers[round_numbers < clients]
    ax.set_yticks([*(numbers + 0.5), target], [*map(str, numbers), "target"])
    ax.get_yticklabels()[-1].set_fontweight("bold")
    ax.set_ylabel("client")


def _name_labels(ax: Axes, names: tuple[str, ...]) -> None:
    places = np.arange(len(names)) + 0.5
    if len(names) > _MAX_LINEAR_LABELS:
        ax.set_xticks(places, names, rotation=90, fontsize=6)
    elif max(map(len, names)) > _MAX_NAME_LENGTH:
        ax.set_xticks(places, names, rotation=40, ha="right", rotation_mode="anchor")
    else:
        ax.set_xticks(places, names)
