"""A new Flower app with the user's names, complete enough to run and to be published on Flower's hub."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from string import Template

from fedpals.errors import InputError
from fedpals.files import writing

_TEMPLATE = Path(__file__).parent / "template"
_LONGEST = 32
"""Longest name that Flower accepts for an app."""
_NAME = re.compile(rf"[A-Za-z][A-Za-z0-9-]{{0,{_LONGEST - 1}}}")


def create_app(folder: Path, publisher: str) -> None:
    """Write a new app to ``folder``, whole or not at all; the folder's name is the app's.

    The package's name is the app's in lower case, with underscores.
    """
    name = folder.absolute().name
    package = name.lower().replace("-", "_")
    if not _NAME.fullmatch(name):
        raise InputError(
            f"the app's name is {name!r}; Flower accepts up to {_LONGEST} letters, digits and hyphens, a letter first"
        )
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", publisher):
        raise InputError(f"--publisher is {publisher!r}; give your account's name: letters, digits, '_', '.' and '-'")
    if iskeyword(package) or package in sys.stdlib_module_names or find_spec(package) is not None:
        raise InputError(f"the app's package would be {package!r}, which Python uses already; choose another name")
    if folder.exists():
        raise InputError(f"{folder} exists already; choose another name, or remove it first")
    names = {
        "name": name,
        "package": package,
        "publisher": publisher,
        "version": version("fedpals"),
        "flower": version("flwr"),
    }
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            for source in sorted(path for path in _TEMPLATE.rglob("*") if path.is_file()):
                _write(source, unfinished / _place(source, package), names)
            unfinished.chmod(0o755)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _place(source: Path, package: str) -> Path:
    """Return where a file of the template belongs: ``.in`` marks those with names to fill in."""
    parts = [package if part == "package" else part for part in source.relative_to(_TEMPLATE).parts]
    last = parts[-1].removesuffix(".in")
    return Path(*parts[:-1], ".gitignore" if last == "gitignore" else last)


def _write(source: Path, place: Path, names: dict[str, str]) -> None:
    text = source.read_text(encoding="utf-8")
    place.parent.mkdir(exist_ok=True)
    place.write_text(Template(text).substitute(names) if source.suffix == ".in" else text, encoding="utf-8")
