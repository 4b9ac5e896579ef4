"""Where samples come from: the table of known data sets, and users' own files.

To add a data set: write a module with a ``read`` function and add a line to `SOURCES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from fedpals.data.dataset import Dataset
from fedpals.data.official import OfficialFiles, ensure, find
from fedpals.data.scaling import Impute
from fedpals.data.sources import cifar10, digits, fashion_mnist, gaussians, heart, own, wilds
from fedpals.errors import InputError

Kind: TypeAlias = Literal["sparsity", "dirichlet", "pacs", "by_domain", "synthetic", "given", "memory"]
"""How a data set is divided into clients; see `fedpals.data.partitions`. given: the data name their clients;
memory: the same, in Python."""


@dataclass(frozen=True)
class Source:
    """A known data set."""

    description: str
    read: Callable[..., Dataset]
    """Takes the folder that holds ``files``, or nothing where there are none."""
    files: OfficialFiles | None = None
    partition: Kind = "sparsity"
    """How it is divided unless the task says otherwise."""
    partition_with_clients: Kind | None = None
    """How it is divided where the task says how many clients there are; as ``partition`` unless given."""
    needs: str | None = None
    """The package that a source without files comes from."""
    model: str | None = None
    """The network unless the run says otherwise; None: the paper's CNN, or its head on features."""
    backbone: str | None = None
    """The frozen network whose features take the place of its images unless the run says otherwise."""
    image_size: int | None = None
    """Pixels a side at which that backbone sees the images."""
    target_client: str | None = None
    """The client that is the target unless the task says otherwise, where the data name their clients."""
    impute: Impute | None = None
    """What takes the place of missing values unless the task says otherwise."""


SOURCES: Mapping[str, Source] = {
    "digits": Source("1,797 grey 8×8 images, 10 labels", digits.read, needs="sklearn"),
    "synthetic": Source("3 Gaussian labels in the plane", gaussians.read, partition="synthetic", model="logistic"),
    "fashion-mnist": Source("70,000 grey 28×28 images, 10 labels", fashion_mnist.read, fashion_mnist.FILES),
    "cifar10": Source("60,000 colour 32×32 images, 10 labels", cifar10.read, cifar10.FILES),
    "heart": Source(
        "920 patients of 4 hospitals, 13 clinical variables, 2 labels",
        heart.read,
        heart.FILES,
        partition="given",
        model="linear",
        target_client="Cleveland",
        impute="median",
    ),
    "pacs": Source(
        "9,991 images in 4 styles, 7 labels",
        wilds.read_pacs,
        wilds.PACS,
        partition="pacs",
        partition_with_clients="by_domain",
        image_size=128,
        model="head",
        backbone="mobilenet_v2",
    ),
    "iwildcam": Source(
        "203,029 images from 323 cameras, 182 labels",
        wilds.read_iwildcam,
        wilds.IWILDCAM,
        partition="by_domain",
        image_size=224,
        model="head",
        backbone="mobilenet_v2",
    ),
}


@dataclass(frozen=True)
class Availability:
    """A line of the listing of data sets."""

    name: str
    description: str
    where: str | None
    """The folder or package it will be read from; None where it is absent."""
    remedy: str
    """How to get it where it is absent."""


def load(
    data: str | Path,
    folder: Path | None = None,
    client_key: str | None = None,
    client_column: str | None = None,
    label_column: str | None = None,
) -> Dataset:
    """Load a data set by name, or a user's own from a .npz or .csv file or a folder of images.

    Parameters
    ----------
    data
        A name of `SOURCES`, or a path.
    folder
        Where to look for official files first.
    client_key
        The array of a .npz file that says which client a sample belongs to.
    client_column, label_column
        The columns of a .csv file that say which client a row belongs to, and its label.

    Raises
    ------
    InputError
        Where files are absent, incomplete or not what they should be.
    """
    if source := SOURCES.get(str(data)):
        return source.read() if source.files is None else source.read(ensure(source.files, folder))
    path = Path(data).expanduser()
    if path.is_dir():
        return own.read_folder(path)
    if path.suffix == ".npz" and path.is_file():
        return own.read_npz(path, client_key)
    if path.suffix in {".csv", ".tsv"} and path.is_file():
        return own.read_csv(path, client_column, label_column or "label")
    raise InputError(
        f"data is {str(data)!r}, which is neither a known data set ({', '.join(SOURCES)}) nor an existing "
        ".npz or .csv file or folder of images by label"
    )


def get(name: str, folder: Path | None = None) -> Path | None:
    """Make sure that a known data set is on disk, downloading it where it is absent; return where.

    None stands for a data set that needs no files.
    """
    if name not in SOURCES:
        raise InputError(f"{name!r} is not a known data set; they are {', '.join(SOURCES)}")
    files = SOURCES[name].files
    return None if files is None else ensure(files, folder, download=True)


def available(folder: Path | None = None) -> list[Availability]:
    """List the known data sets and where each would be read from, without reading any."""
    return [_availability(name, source, folder) for name, source in SOURCES.items()]


def _availability(name: str, source: Source, folder: Path | None) -> Availability:
    if source.files is not None:
        root = find(source.files, folder)
        return Availability(name, source.description, str(root) if root else None, source.files.remedy)
    if source.needs is not None and find_spec(source.needs) is None:
        return Availability(name, source.description, None, "pip install 'fedpals[learn]'")
    return Availability(name, source.description, source.needs or "generated", "")
