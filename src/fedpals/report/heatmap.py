"""The paper's figure of label marginals: a row per client, and the target's row set apart."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedpals.labels import LabelCounts, Vector
from fedpals.report.figures import Panel, compose

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

_FEW_CELLS = 200
"""Up to so many cells have their share written in."""
_MANY_LABELS = 20
"""Beyond these most shares are tiny, and a square-root scale keeps them visible."""
_MANY_CLIENTS = 30
"""Beyond these only some clients are numbered."""
_DARK = "#111111"
"""Of text on pale cells; black is the colour of text that a dark page turns around."""
_LONG_NAME = 6
"""Names of more letters are slanted, to fit below their column."""


def marginals_figure(counts: LabelCounts, target: Vector, *, title: str) -> Figure:
    """Heat map of the clients' S(Y), first one on top, and of T(Y) below them, on one colour scale.

    A label that a client does not have is grey: none is not the same as few.
    """
    return compose([marginals_panel(counts, target, title=title)])


def marginals_panel(counts: LabelCounts, target: Vector, *, title: str) -> Panel:
    """Return the only panel of `marginals_figure`."""
    clients, labels = counts.shape
    width, height = max(0.105, min(0.62, 9 / labels)), min(0.36, 8 / clients)
    # In units of a client's row: below a hundred thin rows, a thin one would be overlooked.
    gap, thickness = max(0.35, 0.09 / height), max(1.0, 0.2 / height)
    target_edges = clients + gap + np.array([0.0, thickness])
    size = width * labels + 2.2, float(height * target_edges[1] + 1.3)
    return Panel(title, partial(_draw, counts=counts, target=target, target_edges=target_edges), size)


def _draw(ax: Axes, counts: LabelCounts, target: Vector, target_edges: Vector) -> None:
    clients, labels = counts.shape
    S = counts.marginals if isinstance(counts.marginals, np.ndarray) else counts.marginals.toarray()
    colours, norm = _colours(max(S.max(), target.max()), square_root=labels > _MANY_LABELS)
    few = (clients + 1) * labels <= _FEW_CELLS
    for shares, edges in ((S, np.arange(clients + 1.0)), (target[None], target_edges)):
        mesh = ax.pcolormesh(
            np.arange(labels + 1),
            edges,
            np.ma.masked_equal(shares, 0),
            norm=norm,
            cmap=colours,
            edgecolors="white" if few else "none",
            linewidth=1.5 if few else 0,
            rasterized=not few,
        )
        if few:
            _write(ax, shares, edges, norm)
    ax.set_ylim(target_edges[1], 0)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    _name_clients(ax, clients, target_edges.mean())
    _name_labels(ax, counts.labels or tuple(map(str, range(labels))))
    bar = ax.figure.colorbar(mesh, ax=ax, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    bar.set_label("label share, on a square-root scale" if labels > _MANY_LABELS else "label share")


def _colours(most: float, *, square_root: bool) -> tuple[Colormap, Normalize]:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, PowerNorm

    # Ordered in lightness, so it survives grey print and any colour vision; without its palest part,
    # which hardly differs from the grey of no share at all.
    shades = ListedColormap(colormaps["YlGnBu"](np.linspace(0.12, 1, 256)))
    return shades.with_extremes(bad="0.95"), PowerNorm(0.5 if square_root else 1.0, vmin=0, vmax=most)


def _write(ax: Axes, shares: Vector, edges: Vector, norm: Normalize) -> None:
    """Write the shares into their cells, in black or white, whichever stands out."""
    middles = (edges[:-1] + edges[1:]) / 2
    for row, column in np.argwhere(shares):
        share = float(shares[row, column])
        ax.text(
            column + 0.5,
            middles[row],
            f"{share:.2f}" if share >= 0.005 else "<0.01",
            color="white" if float(norm(share)) > 0.5 else _DARK,
            fontsize=8,
            ha="center",
            va="center_baseline",
        )


def _name_clients(ax: Axes, clients: int, target: float) -> None:
    from matplotlib.ticker import MaxNLocator

    named = np.arange(clients)
    if clients > _MANY_CLIENTS:
        round_numbers = np.array(MaxNLocator(10, integer=True).tick_values(0, clients), dtype=int)
        named = round_numbers[round_numbers < clients]
    ax.set_yticks([*(named + 0.5), target], [*map(str, named), "target"])
    ax.get_yticklabels()[-1].set_fontweight("bold")
    ax.set_ylabel("client")


def _name_labels(ax: Axes, names: tuple[str, ...]) -> None:
    places = np.arange(len(names)) + 0.5
    if len(names) > _MANY_LABELS:
        ax.set_xticks(places, names, rotation=90, fontsize=6)
    elif max(map(len, names)) > _LONG_NAME:
        ax.set_xticks(places, names, rotation=40, ha="right", rotation_mode="anchor")
    else:
        ax.set_xticks(places, names)
