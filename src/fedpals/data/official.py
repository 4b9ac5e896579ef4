"""Official data files: find them, check that they are the published ones, and download them.

A data set is searched for in the folder that the caller gives, in ``$FEDPALS_DATA``, in the user's cache,
and where Debian installs data sets. Nothing is downloaded unless requested.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from fedpals.errors import InputError, MissingExtraError

DEBIAN = Path("/usr/share/datasets")


@dataclass(frozen=True)
class OfficialFiles:
    """The files of one published data set."""

    name: str
    folder: str
    """The folder that the publisher's archive unpacks to."""
    checksums: Mapping[str, str]
    """File name → "md5:…" or "sha256:…" of its content, after gunzipping if the name ends in .gz; "" if no
    checksum is published, and the reader checks the structure instead."""
    by_hand: str
    """Instructions to get the files without this package."""
    downloads: Mapping[str, str | None] = field(default_factory=dict)
    """URL on the publisher's site → checksum of the download; None if the content is checked instead. A .tar.gz
    is unpacked."""

    @property
    def remedy(self) -> str:
        """Instructions to get the files, for the end of an error message."""
        return f"{self.by_hand}, or fedpals data get {self.name}" if self.downloads else self.by_hand


def search_path(folder: Path | None = None) -> tuple[Path, ...]:
    """Return the folders that are searched for official files, in order; downloads go to the first."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedpals"
    places = (folder, os.environ.get("FEDPALS_DATA"), cache, DEBIAN)
    return tuple(Path(place).expanduser() for place in places if place)


def find(files: OfficialFiles, folder: Path | None = None) -> Path | None:
    """Return the folder with all of ``files``, or None; checks only names, so it is fast.

    A searched folder may contain the data set's folder or be that folder itself.
    """
    for base in search_path(folder):
        root = base if base.name == files.folder else base / files.folder
        if all((root / name).is_file() for name in files.checksums):
            return root
    return None


def ensure(files: OfficialFiles, folder: Path | None = None, *, download: bool = False) -> Path:
    """Return the folder with ``files``; download them first if they are absent and ``download`` is true.

    Raises
    ------
    InputError
        If they are absent; names the files, the searched folders, and how to get them.
    """
    if root := find(files, folder):
        return root
    if download and files.downloads:
        return _download(files, search_path(folder)[0])
    places = ", ".join(str(base / files.folder) for base in search_path(folder))
    raise InputError(
        f"{files.name}: cannot find {', '.join(files.checksums)}; searched {places}. To get them: {files.remedy}"
    )


def read(files: OfficialFiles, root: Path, name: str) -> bytes:
    """Return the content of one file, gunzipped and checked, so that the checked bytes are the ones that are used.

    Raises
    ------
    InputError
        If the file cannot be read or is not the official one; names the file and both checksums.
    """
    path = root / name
    try:
        content = path.read_bytes()
        if name.endswith(".gz"):
            # Archives that were packed again differ in their header, so only the content is checked.
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}). Delete it, then: {files.remedy}") from error
    if expected := files.checksums[name]:
        algorithm, _, digest = expected.partition(":")
        actual = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
        if actual != digest:
            raise InputError(
                f"{path} is not the official file: {algorithm} {digest} expected, {actual} found over "
                f"{len(content)} bytes. Delete it, then: {files.remedy}"
            )
    return content


def _download(files: OfficialFiles, base: Path) -> Path:
    try:
        import pooch
    except ImportError:
        raise MissingExtraError(f"downloading {files.name}", "learn") from None
    root = base / files.folder
    for url, checksum in files.downloads.items():
        archive = url.endswith(".tar.gz")
        try:
            pooch.retrieve(
                url,
                known_hash=checksum,
                path=base if archive else root,
                fname=url.rpartition("/")[2],
                processor=pooch.Untar(extract_dir=".") if archive else None,
                progressbar=find_spec("tqdm") is not None,
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"{files.name}: {url} could not be downloaded to {base} ({error}). To get "
                f"{', '.join(files.checksums)} into {root} another way: {files.by_hand}"
            ) from error
    for name in files.checksums:
        read(files, root, name)
    return root
