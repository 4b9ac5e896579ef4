from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedpals.data import SOURCES, ImageFiles, available, get, load
from fedpals.data.official import find
from fedpals.data.sources import digits, gaussians
from fedpals.errors import InputError, MissingExtraError
from tests.data.conftest import PACS_LABELS, image


def need(name: str) -> None:
    files = SOURCES[name].files
    if files is not None and find(files) is None:
        pytest.skip(f"{name} is not on this machine: {files.remedy}")


def test_digits() -> None:
    data = load("digits")
    assert isinstance(data.x, np.ndarray)
    assert data.x.shape == (1797, 1, 8, 8)
    assert data.x.dtype == np.uint8
    assert np.array_equal(data.x[:, 0], np.rint(load_digits().images * (255 / 16)))
    assert np.array_equal(data.y, load_digits().target)
    assert list(data.splits) == ["train"]


def test_digits_without_scikit_learn_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"the data set digits needs .*fedpals\[learn\]"):
        load("digits")


def test_synthetic_labels_are_unit_gaussians_around_the_papers_means() -> None:
    points = load("synthetic")
    assert isinstance(points.x, np.ndarray)
    assert points.x.dtype == np.float32
    for label, mean in enumerate([[6, 4.6], [1.2, -1.6], [4.6, -5.4]]):
        cluster = points.x[points.y == label]
        assert np.allclose(cluster.mean(axis=0), mean, atol=0.05)
        assert np.allclose(np.cov(cluster.T), np.eye(2), atol=0.05)
    first, again, other = (np.asarray(gaussians.read(per_label=5, seed=seed).x) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.isclose(first, other).any()


def test_fashion_mnist() -> None:
    need("fashion-mnist")
    fashion = load("fashion-mnist")
    assert isinstance(fashion.x, np.ndarray)
    assert fashion.x.shape == (70_000, 1, 28, 28)
    assert np.bincount(fashion.y[fashion.splits["train"]]).tolist() == [6000] * 10
    assert np.bincount(fashion.y[fashion.splits["test"]]).tolist() == [1000] * 10
    assert fashion.labels[fashion.y[0]] == "ankle boot"


def test_cifar10() -> None:
    need("cifar10")
    cifar = load("cifar10")
    assert isinstance(cifar.x, np.ndarray)
    assert cifar.x.shape == (60_000, 3, 32, 32)
    assert np.bincount(cifar.y[cifar.splits["train"]]).tolist() == [5000] * 10
    assert np.bincount(cifar.y[cifar.splits["test"]]).tolist() == [1000] * 10
    assert [cifar.labels[label] for label in cifar.y[:3]] == ["frog", "truck", "truck"]


def test_pacs() -> None:
    need("pacs")
    pacs = load("pacs")
    assert isinstance(pacs.x, ImageFiles)
    assert pacs.domain is not None
    assert pacs.labels == PACS_LABELS
    assert pacs.domains == ("art_painting", "cartoon", "photo", "sketch")
    assert np.bincount(pacs.domain).tolist() == [2048, 2344, 1670, 3929]
    train = pacs.splits["train"]
    cartoon, sketch = (train[pacs.domain[train] == domain] for domain in (1, 3))
    assert np.bincount(pacs.y[cartoon]).tolist() == [351, 415, 314, 122, 294, 261, 369]
    assert np.bincount(pacs.y[sketch]).tolist() == [699, 669, 682, 550, 739, 72, 146]
    assert pacs.x.take(np.array([0, 9990]), 16).std() > 0


def test_a_pacs_layout_is_read_whatever_the_suffix(nowhere: Path, pacs_like: Path) -> None:
    assert not nowhere.exists()
    pacs = load("pacs", pacs_like)
    assert isinstance(pacs.x, ImageFiles)
    assert {name: len(split) for name, split in pacs.splits.items()} == {
        "id_val": 84,
        "test": 210,
        "train": 756,
        "val": 210,
    }
    assert pacs.x.names[0] == "cartoon/dog/pic.jpg"
    assert abs(int(pacs.x.take(np.array([len(pacs.y) - 1]), 2)[0, 0, 0, 0]) - 60) < 8


def test_an_iwildcam_layout_is_read(nowhere: Path, iwildcam_like: Path) -> None:
    assert not nowhere.exists()
    wild = load("iwildcam", iwildcam_like)
    assert isinstance(wild.x, ImageFiles)
    assert wild.domain is not None
    assert wild.labels == ("empty", "peccary", "agouti")
    assert np.bincount(wild.domain[wild.splits["train"]]).tolist() == [4, 9, 2, 7, 5]
    assert {name: len(split) for name, split in wild.splits.items()} == {
        "id_test": 3,
        "id_val": 3,
        "test": 6,
        "train": 27,
        "val": 2,
    }
    assert wild.x.take(np.array([0]), 3).shape == (1, 3, 3, 3)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "location_remapped",
            "place",
            r"metadata\.csv has no column location_remapped; its columns are split, place",
        ),
        ("train,0,100,0,0", "train,0,100,0,many", r"metadata\.csv, line 2: y is 'many', not a whole number"),
        ("train-0-0.jpg", "train-0-9.jpg", r"train-0-9\.jpg is named in metadata\.csv but not there"),
        ("train,0,100,0,0", "train,0,100,0,4", "sample 0 has label 4, but labels run from 0 to 2"),
        ("2013-01-01 00:00:00,train-0-0.jpg", "", "not a whole csv file"),
    ],
)
def test_broken_metadata_is_refused(iwildcam_like: Path, old: str, new: str, message: str) -> None:
    path = iwildcam_like / "iwildcam_v2.0" / "metadata.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        load("iwildcam", iwildcam_like)


@pytest.mark.usefixtures("nowhere")
def test_a_label_without_a_name_is_refused(iwildcam_like: Path) -> None:
    path = iwildcam_like / "iwildcam_v2.0" / "categories.csv"
    path.write_text(path.read_text().replace("1,2,peccary\n", ""))
    with pytest.raises(InputError, match=r"categories\.csv does not name label 1, though it goes up to 2"):
        load("iwildcam", iwildcam_like)


@pytest.mark.usefixtures("nowhere")
def test_metadata_without_rows_is_refused(pacs_like: Path) -> None:
    path = pacs_like / "pacs_v1.0" / "metadata.csv"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputError, match="has a header but no rows"):
        load("pacs", pacs_like)


def test_npz_of_vectors(npz: Callable[..., Path]) -> None:
    own = load(npz(x=[[1, 2], [3, 4], [5, 6]], y=[0, 2, 1], domain=[1, 0, 1]))
    assert isinstance(own.x, np.ndarray)
    assert own.x.dtype == np.float32
    assert own.y.tolist() == [0, 2, 1]
    assert (own.name, own.labels, own.domains) == ("own", ("0", "1", "2"), ("0", "1"))
    assert own.splits["train"].tolist() == [0, 1, 2]


def test_npz_of_images_with_names(npz: Callable[..., Path]) -> None:
    own = load(str(npz(x=np.zeros((2, 3, 4, 4), np.uint8), y=[1, 0], labels=["cat", "dog", "owl"])))
    assert isinstance(own.x, np.ndarray)
    assert own.x.shape == (2, 3, 4, 4)
    assert own.labels == ("cat", "dog", "owl")


X = np.zeros((3, 2))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "has no array y; write it with numpy.savez"),
        ({"features": X}, "has no array x and no y"),
        ({"x": X, "y": [0, 1]}, r"y has shape \(2,\) for 3 samples; give a label each"),
        ({"x": X, "y": [[0, 1], [1, 1], [1, 0]]}, r"y has shape \(3, 2\)"),
        ({"x": X, "y": [0.0, 0.5, 1.0]}, r"y\[1\] is 0.5; labels are whole numbers from 0, or names"),
        ({"x": X, "y": ["a", "b", "a"], "labels": ["b", "c"]}, "'a', which is not among labels: b, c"),
        ({"x": X, "y": [0, -1, 0]}, "y holds -1; labels are whole numbers from 0, or names"),
        ({"x": X, "y": [0, 1, 2], "labels": ["a", "b"]}, r"y\[2\] is 2, but there are 2 labels, from 0 to 1"),
        ({"x": X, "y": [0, 1, 2], "domain": [0]}, r"domain has shape \(1,\)"),
        ({"x": [[0, 1], [0, np.nan], [0, 1]], "y": [0, 1, 0]}, r"x\[1, 1\] is nan"),
        ({"x": [[0, 1], [1e300, 0], [0, 1]], "y": [0, 1, 0]}, r"x\[1, 0\] is 1e\+300"),
        ({"x": np.zeros((3, 1, 4, 4)), "y": [0, 1, 0]}, r"x is float64 of shape \(3, 1, 4, 4\)"),
        ({"x": np.zeros((3, 4, 4), np.uint8), "y": [0, 1, 0]}, r"x is uint8 of shape \(3, 4, 4\)"),
        ({"x": [["a"], ["b"]], "y": [0, 1]}, "x is <U1"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "holds no samples"),
        ({"x": X, "y": np.array([0, 1, None])}, "cannot be read as a .npz file of plain arrays"),
    ],
)
def test_broken_arrays_are_refused(npz: Callable[..., Path], arrays: dict[str, object], message: str) -> None:
    path = npz(**arrays)
    with pytest.raises(InputError, match=message) as caught:
        load(path)
    assert "own" in str(caught.value)


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_a_truncated_npz_is_refused(npz: Callable[..., Path], keep: int) -> None:
    path = npz(x=X, y=[0, 1, 0])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"own\.npz cannot be read as a \.npz file"):
        load(path)


def test_a_single_array_is_not_an_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    path = (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    with pytest.raises(InputError, match=r"x\.npz cannot be read as a \.npz file"):
        load(path)


def test_a_folder_of_images_by_label(tmp_path: Path) -> None:
    for name in ("owl/1.png", "cat/b.JPG", "cat/a.png", ".hidden/x.png"):
        image(tmp_path / "pets" / name)
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("not an image")
    pets = load(tmp_path / "pets")
    assert isinstance(pets.x, ImageFiles)
    assert (pets.name, pets.labels) == ("pets", ("cat", "owl"))
    assert pets.x.names == ("cat/a.png", "cat/b.JPG", "owl/1.png")
    assert pets.y.tolist() == [0, 0, 1]


def test_folders_without_labels_or_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no subfolders; it needs one per label"):
        load(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(InputError, match=r"cat holds no images"):
        load(tmp_path)


@pytest.mark.parametrize("data", ["mnist", "absent.npz"])
def test_unknown_data_lists_what_is_known(data: str) -> None:
    with pytest.raises(InputError, match=rf"data is '{data}', which is neither a known data set \(digits, synth"):
        load(data)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("fashion-mnist", "apt-get install dataset-fashion-mnist, or fedpals data get fashion-mnist"),
        ("cifar10", "fedpals data get cifar10"),
        ("pacs", "set FEDPALS_DATA"),
        ("iwildcam", "set FEDPALS_DATA"),
    ],
)
def test_absent_data_sets_say_how_to_get_them(name: str, remedy: str) -> None:
    with pytest.raises(InputError, match=remedy) as caught:
        load(name)
    assert str(caught.value).startswith(f"{name}: cannot find ")


@pytest.mark.usefixtures("nowhere")
def test_a_truncated_official_file_is_refused(tmp_path: Path) -> None:
    files = SOURCES["cifar10"].files
    assert files is not None
    root = tmp_path / files.folder
    root.mkdir()
    for name in files.checksums:
        (root / name).write_bytes(b"short")
    with pytest.raises(InputError, match=r"data_batch_1\.bin is not the official file: md5 5dd7e06a14cb22eb9f671a"):
        load("cifar10", tmp_path)


def test_get_finds_what_is_there_and_knows_what_needs_no_files(nowhere: Path, pacs_like: Path) -> None:
    assert get("digits") is None
    assert get("pacs", pacs_like) == pacs_like / "pacs_v1.0"
    assert not nowhere.exists()
    with pytest.raises(InputError, match="'mnist' is not a known data set; they are digits, synthetic"):
        get("mnist")


@pytest.mark.usefixtures("nowhere")
def test_the_listing_says_what_is_where_without_reading_it(pacs_like: Path) -> None:
    start = time.perf_counter()
    listing = {line.name: line for line in available(pacs_like)}
    assert time.perf_counter() - start < 0.5
    assert list(listing) == list(SOURCES)
    assert listing["digits"].where == "sklearn"
    assert listing["synthetic"].where == "generated"
    assert listing["pacs"].where == str(pacs_like / "pacs_v1.0")
    assert listing["iwildcam"].where is None
    assert "WILDS" in listing["iwildcam"].remedy


@pytest.mark.usefixtures("nowhere")
def test_the_listing_says_that_a_package_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpals.data.sources.find_spec", lambda _: None)
    digits = available()[0]
    assert (digits.where, digits.remedy) == (None, "pip install 'fedpals[learn]'")
