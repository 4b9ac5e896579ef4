from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedpals.data import Dataset, ImageFiles
from fedpals.errors import InputError
from tests.data.conftest import image

EVERYTHING = {"train": np.arange(2)}


def test_image_files_are_read_as_square_rgb(tmp_path: Path) -> None:
    names = tuple(image(tmp_path / f"{red}.png", (red, 20, 30)) for red in (10, 50, 90))
    batch = ImageFiles(tmp_path, names).take(np.array([2, 0]), 5)
    assert batch.shape == (2, 3, 5, 5)
    assert batch.dtype == np.uint8
    assert batch[:, :, 0, 0].tolist() == [[90, 20, 30], [10, 20, 30]]


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"broken\.jpg cannot be read as an image"):
        ImageFiles(tmp_path, ("broken.jpg",)).take(np.array([0]), 5)
    with pytest.raises(InputError, match=r"absent\.jpg cannot be read as an image"):
        ImageFiles(tmp_path, ("absent.jpg",)).take(np.array([0]), 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.array([0, 1, 1])}, r"tiny: y has shape \(3,\) for 2 samples"),
        ({"y": np.array([0, 2])}, "sample 1 has label 2, but labels run from 0 to 1"),
        ({"y": np.array([-1, 0])}, "sample 0 has label -1"),
        ({"labels": ("cat", "cat")}, "label name 'cat' appears twice"),
        ({"domain": np.array([0])}, r"domain has shape \(1,\) for 2 samples"),
        (
            {"domain": np.array([0, 1]), "domains": ("here",)},
            "sample 1 has domain 1, but domains run from 0 to 0",
        ),
    ],
)
def test_a_data_set_checks_itself(changes: dict[str, object], message: str) -> None:
    whole = {
        "x": np.zeros((2, 3), np.float32),
        "y": np.array([0, 1]),
        "labels": ("cat", "dog"),
        "splits": EVERYTHING,
    }
    with pytest.raises(InputError, match=message):
        Dataset("tiny", **{**whole, **changes})  # type: ignore[arg-type]
