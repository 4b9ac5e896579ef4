"""PACS and iWildCam in the layout of the WILDS benchmark: a metadata.csv and a folder of images.

The splits are the publisher's: "train", "id_val" and "id_test" are from the training domains, "val" and
"test" from other domains.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from fedpals.data.dataset import Dataset, ImageFiles
from fedpals.data.official import OfficialFiles
from fedpals.errors import InputError
from fedpals.labels import Indices

PACS = OfficialFiles(
    name="pacs",
    folder="pacs_v1.0",
    checksums={"metadata.csv": ""},
    by_hand=(
        "take the folder pacs_v1.0 of the federated domain-generalisation benchmark (Bai et al.), with "
        "<domain>/<class>/ images and metadata.csv, and set FEDPALS_DATA to the folder that holds it"
    ),
)
IWILDCAM = OfficialFiles(
    name="iwildcam",
    folder="iwildcam_v2.0",
    checksums={"metadata.csv": "", "categories.csv": ""},
    by_hand=(
        "download iWildCam v2.0 (12 GB) with the WILDS package, see https://wilds.stanford.edu, "
        "and set FEDPALS_DATA to the folder that holds iwildcam_v2.0"
    ),
)


def read_pacs(root: Path) -> Dataset:
    """Return the 9,991 images of PACS (Li et al. 2017); a domain is a style."""
    path = root / "metadata.csv"
    split, domain, category, y, names = _read_columns(path, ("split", "domain", "category", "y", "path"))
    labels = dict(zip(_parse_integers(path, "y", y).tolist(), category, strict=True))
    domains = sorted(set(domain))
    return Dataset(
        "pacs",
        _find_images(root, names),
        _parse_integers(path, "y", y),
        _label_names(path, labels),
        _split_indices(split),
        np.array([domains.index(name) for name in domain], dtype=np.int64),
        tuple(domains),
    )


def read_iwildcam(root: Path) -> Dataset:
    """Return the 203,029 camera-trap images of iWildCam (Beery et al. 2020); a domain is a location."""
    path, categories = root / "metadata.csv", root / "categories.csv"
    split, location, y, names = _read_columns(path, ("split", "location_remapped", "y", "filename"))
    number, name = _read_columns(categories, ("y", "name"))
    target, domain = _parse_integers(path, "y", y), _parse_integers(path, "location_remapped", location)
    # The categories of the original competition that WILDS left out have a number beyond all labels.
    pairs = zip(_parse_integers(categories, "y", number).tolist(), name, strict=True)
    labels = {label: text for label, text in pairs if label <= target.max()}
    return Dataset(
        "iwildcam",
        _find_images(root / "train", names),
        target,
        _label_names(categories, labels),
        _split_indices(split),
        domain,
        tuple(str(place) for place in range(domain.max() + 1)),
    )


def _read_columns(path: Path, names: Sequence[str]) -> list[list[str]]:
    """Read the columns ``names`` of a csv file with a header."""
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = csv.reader(lines)
            header = next(rows, [])
            if missing := [name for name in names if name not in header]:
                raise InputError(f"{path} has no column {', '.join(missing)}; its columns are {', '.join(header)}")
            positions = [header.index(name) for name in names]
            table = [[row[i] for i in positions] for row in rows]
    except (UnicodeDecodeError, csv.Error, IndexError) as error:
        raise InputError(f"{path} is not a whole csv file ({error}); replace it") from error
    if not table:
        raise InputError(f"{path} has a header but no rows; replace it")
    return [list(column) for column in zip(*table, strict=True)]


def _parse_integers(path: Path, column: str, texts: Sequence[str]) -> Indices:
    try:
        return np.array(texts).astype(np.int64)
    except ValueError:
        row = next(i for i, text in enumerate(texts) if not re.fullmatch(r"\s*[+-]?\d+\s*", text))
        raise InputError(f"{path}, line {row + 2}: {column} is {texts[row]!r}, not a whole number") from None


def _label_names(path: Path, names: dict[int, str]) -> tuple[str, ...]:
    if sorted(names) != list(range(len(names))):
        absent = next(label for label in range(max(names) + 1) if label not in names)
        raise InputError(f"{path} does not name label {absent}, though it goes up to {max(names)}")
    return tuple(names[label] for label in range(len(names)))


def _split_indices(split: Sequence[str]) -> dict[str, Indices]:
    array = np.array(split)
    return {str(name): np.flatnonzero(array == name) for name in np.unique(array)}


def _find_images(folder: Path, names: Sequence[str]) -> ImageFiles:
    """Find every image before a run starts, so that none is missed later; list each folder once.

    The suffix is ignored, because copies of PACS have their sketches as .png or as .jpg.
    """
    listings: dict[str, dict[str, str]] = {}
    paths = []
    for name in names:
        path = PurePosixPath(name)
        parent = str(path.parent)
        if parent not in listings:
            directory = folder / parent
            listings[parent] = {child.stem: child.name for child in directory.iterdir()} if directory.is_dir() else {}
        if path.stem not in listings[parent]:
            raise InputError(f"{folder / path} is named in metadata.csv but not there; unpack the archive again")
        paths.append(str(path.with_name(listings[parent][path.stem])))
    return ImageFiles(folder, tuple(paths))
