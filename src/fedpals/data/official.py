"""Official data files: where they may lie, whether they are what their publisher made, how to get them.

A set is searched for below the folder a caller names, below ``$FEDPALS_DATA``, in the user's cache
and where Debian installs data sets. Nothing is downloaded unless it is asked for.
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
    """File name → "md5:…" or "sha256:…" of its content, after gunzipping where the name ends in .gz;
    "" where nothing is published to check against, and the reader checks the structure instead."""
    by_hand: str
    """How a user gets the files without this package."""
    downloads: Mapping[str, str | None] = field(default_factory=dict)
    """URL on the publisher's site → checksum of what lies there, None where the content is checked
    instead. A .tar.gz is unpacked."""

    @property
    def remedy(self) -> str:
        """How a user gets the files; ends the message when they are absent or wrong."""
        return f"{self.by_hand}, or fedpals data get {self.name}" if self.downloads else self.by_hand


def search_path(folder: Path | None = None) -> tuple[Path, ...]:
    """Return the folders searched for official files, first one first; downloads go to the first."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedpals"
    places = (folder, os.environ.get("FEDPALS_DATA"), cache, DEBIAN)
    return tuple(Path(place).expanduser() for place in places if place)


def find(files: OfficialFiles, folder: Path | None = None) -> Path | None:
    """Return the folder that holds all of ``files``, or None; looks at names only, so it is fast.

    A searched folder may hold the set's folder or be it.
    """
    for base in search_path(folder):
        root = base if base.name == files.folder else base / files.folder
        if all((root / name).is_file() for name in files.checksums):
            return root
    return None


def ensure(files: OfficialFiles, folder: Path | None = None, *, download: bool = False) -> Path:
    """Return the folder that holds ``files``, downloading them first where ``download`` says so.

    Raises
    ------
    InputError
        Where they are absent: which files, where they were looked for, and how to get them.
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
    """Return the content of one file, gunzipped, having checked it: what is used is what was checked.

    Raises
    ------
    InputError
        Naming the file, the checksum expected and the one found.
    """
    path = root / name
    try:
        content = path.read_bytes()
        if name.endswith(".gz"):
            # Archives that were packed anew differ in their header, so the content is what counts.
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}). Delete it, then: {files.remedy}") from error
    if expected := files.checksums[name]:
        algorithm, _, digest = expected.partition(":")
        found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
        if found != digest:
            raise InputError(
                f"{path} is not the official file: {algorithm} {digest} expected, {found} found over "
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
