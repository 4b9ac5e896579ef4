from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpals
from fedpals import InputError

pytest.importorskip("matplotlib", reason="figures need the extra 'plots'")

from fedpals.report.figures import save_figure, weights_figure
from fedpals.report.weights_figure import weights_overview

COUNTS = np.array([[80, 20, 0], [10, 60, 30], [5, 5, 40], [300, 300, 300]])
TARGET = [0.2, 0.3, 0.5]


def test_bars_are_the_weights_by_size_and_dots_are_fedavg() -> None:
    weights = fedpals.solve(COUNTS, TARGET, ess=0.5)
    ax: Any = weights_figure([weights]).axes[0]
    order = [3, 0, 1, 2]
    assert [bar.get_height() for bar in ax.patches] == weights.alpha[order].tolist()
    assert ax.lines[0].get_ydata().tolist() == weights.fedavg[order].tolist()
    assert "ESS 50 %" in ax.get_title()


def test_a_panel_per_ess_and_the_simplex_for_three_labels() -> None:
    grid = fedpals.ess_grid(COUNTS, TARGET, 3)
    figure = weights_figure(grid)
    visible = [ax for ax in figure.axes if ax.get_visible()]
    assert len(visible) == 4
    legend = visible[-1].get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert any("target" in label for label in labels)
    assert any("FedAvg" in label for label in labels)


def test_four_labels_have_no_simplex_and_many_values_are_thinned() -> None:
    counts = np.random.default_rng(0).integers(1, 50, (30, 4))
    figure = weights_figure(fedpals.ess_grid(counts, [0.1, 0.2, 0.3, 0.4], 40))
    assert len([ax for ax in figure.axes if ax.get_visible()]) == 11


@pytest.mark.parametrize("counts", [[[1, 2, 3]], [[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 0], [1, 1, 0]]])
def test_hulls_without_area_are_drawn(counts: list[list[int]], tmp_path: Path) -> None:
    save_figure(weights_figure([fedpals.solve(counts, TARGET, lam=1)]), tmp_path / "f.svg")
    assert (tmp_path / "f.svg").stat().st_size > 1000


def test_figures_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    figure = weights_figure([fedpals.solve(COUNTS, TARGET, lam=1)])
    with pytest.raises(InputError, match=r"figures are written as \.png"):
        save_figure(figure, tmp_path / "f.txt")
    (tmp_path / "blocked").write_text("a file where a folder should be")
    with pytest.raises(InputError, match="cannot be written"):
        save_figure(figure, tmp_path / "blocked" / "f.png")
    save_figure(figure, tmp_path / "new" / "f.png")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["f.png"]


def test_no_legend_of_the_overview_covers_what_is_drawn() -> None:
    figure = weights_overview(fedpals.solve(COUNTS, TARGET, ess=0.5))
    figure.draw_without_rendering()
    for ax in figure.axes:
        legend = ax.get_legend()
        assert legend is not None
        box = legend.get_window_extent()
        assert box.y1 < ax.xaxis.label.get_window_extent().y0 < ax.get_window_extent().y0
        assert box.y0 >= 0
