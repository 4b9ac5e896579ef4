"""Tiny sets in the official layouts, and a search path that leads nowhere unless a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedpals.data import official, task

PACS_DOMAINS = {"train": ("cartoon", "sketch"), "val": ("art_painting",), "test": ("photo",)}
PACS_LABELS = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Hide the data sets of this machine; yields the cache folder, which is empty."""
    monkeypatch.delenv("FEDPALS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(official, "DEBIAN", tmp_path / "debian")
    task._load_once.cache_clear()
    yield tmp_path / "cache" / "fedpals"
    task._load_once.cache_clear()


def image(path: Path, colour: tuple[int, int, int] = (200, 100, 50)) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4), colour).save(path)
    return path.name


@pytest.fixture
def pacs_like(tmp_path: Path) -> Path:
    """PACS's layout with 1,260 samples of which only a few have their own image; returns its parent."""
    root = tmp_path / "data" / "pacs_v1.0"
    rows = [",split,domain_remapped,domain,category,y,path"]
    for split, domains in PACS_DOMAINS.items():
        for domain in domains:
            for y, label in enumerate(PACS_LABELS):
                image(root / domain / label / "pic.jpg", (10 * y, 0, 0))
                for sample in range(60 if split == "train" else 30):
                    held = "id_val" if split == "train" and sample % 10 == 0 else split
                    rows.append(f"{len(rows) - 1},{held},0,{domain},{label},{y},{domain}/{label}/pic.png")
    (root / "metadata.csv").write_text("\n".join(rows) + "\n")
    return root.parent


@pytest.fixture
def iwildcam_like(tmp_path: Path) -> Path:
    """iWildCam's layout: 3 labels, 5 training locations with 9, 7, 5, 4, 2 images, and 2 more to test."""
    root = tmp_path / "data" / "iwildcam_v2.0"
    rows = ["split,location_remapped,location,sequence_remapped,y,datetime,filename"]
    sizes = {0: 4, 1: 9, 2: 2, 3: 7, 4: 5}
    places = [("train", place, size) for place, size in sizes.items()]
    for split, place, size in [*places, ("id_val", 1, 3), ("id_test", 3, 3), ("val", 5, 2), ("test", 6, 6)]:
        for sample in range(size):
            name = image(root / "train" / f"{split}-{place}-{sample}.jpg")
            rows.append(f"{split},{place},{place + 100},0,{sample % 3},2013-01-01 00:00:00,{name}")
    (root / "metadata.csv").write_text("\n".join(rows) + "\n")
    (root / "categories.csv").write_text("y,category_id,name\n0,0,empty\n1,2,peccary\n2,9,agouti\n99999,11,dingo\n")
    return root.parent


@pytest.fixture
def npz(tmp_path: Path) -> Callable[..., Path]:
    """Write a .npz file of arrays."""

    def write(**arrays: object) -> Path:
        path = tmp_path / "own.npz"
        np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})  # type: ignore[arg-type]
        return path

    return write
