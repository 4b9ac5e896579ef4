from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse

from fedpals.data import Task
from fedpals.labels import LabelCounts

pytest.importorskip("matplotlib", reason="figures need the extra 'plots'")

from fedpals.report.figures import save_figure
from fedpals.report.heatmap import marginals_figure


def cells(ax: Any, which: int) -> npt.NDArray[np.float64]:
    return np.ma.filled(ax.collections[which].get_array(), 0.0)


def test_cells_are_the_marginals_of_clients_and_target() -> None:
    federation = Task(beta=0.5).federation(0)
    figure = marginals_figure(federation.counts, federation.target, title="digits, β = 0.5")
    ax: Any = figure.axes[0]
    assert np.array_equal(cells(ax, 0), np.asarray(federation.counts.marginals))
    assert np.array_equal(cells(ax, 1), federation.target[None])
    assert ax.get_title() == "digits, β = 0.5"
    assert [text.get_text() for text in ax.get_xticklabels()] == list("0123456789")
    assert [text.get_text() for text in ax.get_yticklabels()] == [*"012345678", "target"]


def test_one_scale_for_all_and_the_target_at_the_bottom() -> None:
    ax: Any = marginals_figure(LabelCounts.of([[3, 1], [0, 4]]), np.array([0.5, 0.5]), title="").axes[0]
    clients, target = ax.collections
    assert clients.norm is target.norm
    assert (clients.norm.vmin, clients.norm.vmax) == (0, 1)
    rows = {text.get_text(): place for text, place in zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)}
    bottom, top = ax.get_ylim()
    assert top < rows["0"] < rows["1"] < rows["target"] < bottom
    assert rows["target"] - rows["1"] > rows["1"] - rows["0"]


def test_few_cells_have_numbers_and_absent_labels_none() -> None:
    ax: Any = marginals_figure(LabelCounts.of([[3, 1], [0, 400]]), np.array([0.002, 0.998]), title="").axes[0]
    assert [text.get_text() for text in ax.texts] == ["0.75", "0.25", "1.00", "<0.01", "1.00"]
    masked = ax.collections[0].get_array().mask
    assert masked.tolist() == [[False, False], [True, False]]


def test_many_clients_are_numbered_sparsely() -> None:
    counts = LabelCounts.of(np.ones((100, 10), dtype=int))
    ax: Any = marginals_figure(counts, np.full(10, 0.1), title="").axes[0]
    assert len(ax.texts) == 0
    assert [text.get_text() for text in ax.get_yticklabels()] == [*map(str, range(0, 100, 10)), "target"]


@pytest.mark.parametrize(("clients", "labels"), [(100, 182), (1, 1), (1, 30), (2000, 3)])
def test_every_shape_is_drawn(clients: int, labels: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [f"species number {k}" for k in range(labels)]
    counts = LabelCounts.of(rng.integers(0, 3, (clients, labels)) + 1, labels=names)
    figure = marginals_figure(counts, np.full(labels, 1 / labels), title="iwildcam, seed 0")
    scale = figure.axes[1].get_ylabel()
    assert ("square-root" in scale) == (labels > 20)
    save_figure(figure, tmp_path / "m.png")
    assert (tmp_path / "m.png").stat().st_size > 1000


def test_sparse_counts_and_clients_without_samples() -> None:
    table = np.array([[2, 2, 0], [0, 0, 0]])
    ax: Any = marginals_figure(LabelCounts.of(sparse.csr_array(table)), np.array([0, 0, 1.0]), title="").axes[0]
    assert cells(ax, 0).tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
