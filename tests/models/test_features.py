from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fedpals.data import Dataset, ImageFiles, load
from fedpals.data.official import find
from fedpals.data.sources.wilds import PACS
from fedpals.errors import InputError
from fedpals.models import features, prepare
from fedpals.models.backbones import BACKBONES, checkpoint, pretrained
from fedpals.models.features import Vectors


@pytest.fixture
def images() -> Dataset:
    """40 images: two whole chunks of 16 and one of 8."""
    draw = np.random.default_rng(0)
    return Dataset(
        "tiny",
        draw.integers(256, size=(40, 3, 32, 32), dtype=np.uint8),
        np.arange(40) % 2,
        ("cat", "dog"),
        {"train": np.arange(30), "test": np.arange(30, 40)},
        np.arange(40) % 3,
        ("a", "b", "c"),
    )


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the batches that went through a backbone, which grow as it is used."""
    seen: list[int] = []
    module = import_module("fedpals.models.features")  # the package has a function of that name
    forward = module._forward

    def counted(network: nn.Module, batch: torch.Tensor) -> Vectors:
        seen.append(len(batch))
        found: Vectors = forward(network, batch)
        return found

    monkeypatch.setattr(module, "_forward", counted)
    return seen


def vectors(dataset: Dataset) -> Vectors:
    assert isinstance(dataset.x, np.ndarray)
    return dataset.x.astype(np.float32, copy=False)


def test_features_are_what_the_backbone_gives_and_the_rest_stays(
    images: Dataset, mobilenet: Path, tmp_path: Path
) -> None:
    found = features(images, "mobilenet_v2", mobilenet, size=32, folder=tmp_path)
    assert vectors(found).shape == (40, 1280)
    assert vectors(found).dtype == np.float32
    network = pretrained("mobilenet_v2", checkpoint("mobilenet_v2", mobilenet)).eval()
    with torch.no_grad():
        expected = network(prepare(images.x[:4])).numpy()  # type: ignore[index]
    assert np.allclose(vectors(found)[:4], expected, atol=1e-5)
    for name in ("name", "y", "labels", "splits", "domain", "domains"):
        assert getattr(found, name) is getattr(images, name)


def test_a_resnet_gives_2048(images: Dataset, resnet: Path, tmp_path: Path) -> None:
    few = replace(images, x=images.x[:2], y=images.y[:2], domain=None)  # type: ignore[index]
    assert vectors(features(few, "resnet50", resnet, size=32, folder=tmp_path)).shape == (2, 2048)


def test_features_are_computed_once(images: Dataset, mobilenet: Path, tmp_path: Path, passes: list[int]) -> None:
    told: list[tuple[int, int]] = []
    first = features(images, "mobilenet_v2", mobilenet, size=32, folder=tmp_path, progress=lambda *at: told.append(at))
    assert passes == [16, 16, 8]
    assert told == [(16, 40), (32, 40), (40, 40)]
    again = features(images, "mobilenet_v2", mobilenet, size=32, folder=tmp_path)
    assert passes == [16, 16, 8]
    assert np.array_equal(vectors(first), vectors(again))
    assert len(list(tmp_path.iterdir())) == 1


def test_other_weights_sizes_and_images_are_computed_anew(
    images: Dataset, mobilenet: Path, tmp_path: Path, passes: list[int]
) -> None:
    def compute(dataset: Dataset, weights: Path, size: int = 32) -> None:
        del passes[:]
        features(dataset, "mobilenet_v2", weights, size=size, folder=tmp_path / "kept")
        assert passes == [16, 16, 8]

    weights = tmp_path / "mine.pth"
    weights.write_bytes(mobilenet.read_bytes())
    compute(images, weights)
    state = torch.load(weights)
    state["features.0.0.weight"] += 1
    torch.save(state, weights)
    compute(images, weights)
    compute(images, weights, size=40)
    compute(replace(images, x=images.x[::-1]), weights)  # type: ignore[index]
    assert len(list((tmp_path / "kept").iterdir())) == 4


def test_an_interrupted_computation_continues_at_the_last_finished_chunk(
    images: Dataset, mobilenet: Path, tmp_path: Path, passes: list[int]
) -> None:
    def interrupt(done: int, _: int) -> None:
        if done == 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        features(images, "mobilenet_v2", mobilenet, size=32, folder=tmp_path / "broken", progress=interrupt)
    assert passes == [16, 16]
    resumed = features(images, "mobilenet_v2", mobilenet, size=32, folder=tmp_path / "broken")
    assert passes == [16, 16, 8]
    whole = features(images, "mobilenet_v2", mobilenet, size=32, folder=tmp_path / "whole")
    assert np.array_equal(vectors(resumed), vectors(whole))
    assert len(list((tmp_path / "broken").iterdir())) == 1


def test_image_files_are_told_apart_by_name_and_length(mobilenet: Path, tmp_path: Path, passes: list[int]) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (20, 30), (80 * number, 0, 0)).save(folder / f"{number}.png")
    files = ImageFiles(folder, ("0.png", "1.png", "2.png"))
    dataset = Dataset("files", files, np.zeros(3, np.int64), ("only",), {"train": np.arange(3)})
    found = vectors(features(dataset, "mobilenet_v2", mobilenet, size=32, folder=tmp_path / "kept"))
    assert len(np.unique(found, axis=0)) == 3

    # The same images elsewhere are the same; another image of the same name is another.
    folder.rename(tmp_path / "moved")
    moved = replace(dataset, x=replace(files, folder=tmp_path / "moved"))
    features(moved, "mobilenet_v2", mobilenet, size=32, folder=tmp_path / "kept")
    assert passes == [3]
    Image.effect_noise((20, 30), 50).save(tmp_path / "moved" / "1.png")
    changed = vectors(features(moved, "mobilenet_v2", mobilenet, size=32, folder=tmp_path / "kept"))
    assert passes == [3, 3]
    assert (changed != found).any(axis=1).tolist() == [False, True, False]


def test_vectors_have_no_features(mobilenet: Path, tmp_path: Path) -> None:
    dataset = Dataset("flat", np.zeros((2, 5), np.float32), np.zeros(2, np.int64), ("only",), {})
    with pytest.raises(InputError, match="flat holds vectors"):
        features(dataset, "mobilenet_v2", mobilenet, size=32, folder=tmp_path)


def test_an_unknown_backbone_is_told_the_known_ones(images: Dataset, mobilenet: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'vgg11' is not a known backbone; they are resnet50, mobilenet_v2"):
        features(images, "vgg11", mobilenet, size=32, folder=tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY half a header", b"text"])
def test_a_damaged_file_of_features_is_named(images: Dataset, mobilenet: Path, tmp_path: Path, content: bytes) -> None:
    few = replace(images, x=images.x[:2], y=images.y[:2], domain=None)  # type: ignore[index]
    features(few, "mobilenet_v2", mobilenet, size=32, folder=tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(content)
    with pytest.raises(InputError, match=f"{kept} cannot be read as stored features .*; delete it"):
        features(few, "mobilenet_v2", mobilenet, size=32, folder=tmp_path)
    np.save(kept, np.zeros((2, 3), np.float32))
    with pytest.raises(InputError, match=r"holds float32 \(2, 3\), not float32 \(2, 1280\); delete it"):
        features(few, "mobilenet_v2", mobilenet, size=32, folder=tmp_path)


def test_photographs_of_three_animals_are_told_apart(tmp_path: Path) -> None:
    if find(PACS) is None or find(BACKBONES["mobilenet_v2"].official) is None:
        pytest.skip("needs PACS and the ImageNet weights of mobilenet_v2 in the data folder")
    pacs = load("pacs")
    assert isinstance(pacs.x, ImageFiles)
    photographs = pacs.domain == pacs.domains.index("photo")
    rows = np.concatenate([np.flatnonzero(photographs & (pacs.y == label))[:8] for label in range(3)])
    few = Dataset(
        "few",
        replace(pacs.x, names=tuple(pacs.x.names[row] for row in rows)),
        pacs.y[rows],
        pacs.labels,
        {"train": np.arange(len(rows))},
    )
    found = vectors(features(few, "mobilenet_v2", size=128, folder=tmp_path))
    assert found.shape == (24, BACKBONES["mobilenet_v2"].width)

    # Every photograph takes the label of its nearest neighbour: 1/3 by chance.
    directions = found / np.linalg.norm(found, axis=1, keepdims=True)
    likeness = directions @ directions.T - 2 * np.eye(len(rows))
    assert (few.y[likeness.argmax(axis=1)] == few.y).mean() > 0.8
