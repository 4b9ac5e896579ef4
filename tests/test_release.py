"""What is released: contents of wheel and sdist, and that each extra names all that its part needs."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from email import message_from_bytes
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]
RETAIL = ROOT / "examples" / "retail"
WEIGHTS = ("weights", str(RETAIL / "stores.csv"), "--target", str(RETAIL / "new-store.csv"))

pytestmark = pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling builds the release")


def build(source: Path, out: Path, target: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return next(out.glob("*.whl" if target == "wheel" else "*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")


def tracked(folder: str) -> set[str]:
    """Return the files of a folder that are in the repository."""
    done = subprocess.run(["git", "ls-files", folder], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines())


def test_the_wheel_has_the_package_whole_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    about = {name for name in names if name.startswith(f"fedpals-{VERSION}.dist-info/")}
    assert {f"src/{name}" for name in names - about} == tracked("src/fedpals")
    assert "fedpals/py.typed" in names
    assert {name for name in names if name.endswith(".toml")} >= {
        f"fedpals/experiments/definitions/{name}.toml" for name in ("table1", "pacs", "synthetic", "hospitals")
    }
    assert {"fedpals/report/templates/parts.html", "fedpals/report/templates/page.css"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in about)


def test_the_sdist_has_sources_but_no_results(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    loose = {name for name in names if not name.startswith("src/")}
    assert {name for name in names if name.startswith("src/")} == tracked("src")
    assert loose == {
        ".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md", "constraints.txt",
        "pyproject.toml",
    }  # fmt: skip


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    again = build(tmp_path / f"fedpals-{VERSION}", tmp_path / "out", "wheel")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_an_index_would_accept_both(wheel: Path, sdist: Path) -> None:
    pytest.importorskip("twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_version_stands_in_one_place(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = message_from_bytes(archive.read(f"fedpals-{VERSION}.dist-info/METADATA"))
    assert metadata["Version"] == VERSION
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [VERSION]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {VERSION}" in changes
    assert not [n for n in archive.namelist() if n.endswith(".py") and f'"{VERSION}"'.encode() in archive.read(n)]


def test_all_is_all_that_users_can_install() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = (Requirement(text) for text in extras["all"])
    assert everything.extras == set(extras) - {"all", "bench", "dev", "docs"}


def requirements(name: str, extra: str = "") -> Iterator[tuple[str, str]]:
    """Return a distribution's requirements here: name, and each of its extras."""
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield from ((requirement.name, e) for e in ("", *requirement.extras))


def needed(names: Sequence[str]) -> list[Distribution]:
    """Return the distributions that pip would install for requirements, as installed here."""
    wanted = [(r.name, e) for r in map(Requirement, names) for e in ("", *r.extras)]
    seen: dict[tuple[str, str], None] = {}
    while wanted:
        if (key := wanted.pop()) not in seen:
            seen[key] = None
            wanted += requirements(*key)
    return [distribution(name) for name in {name for name, _ in seen}]


def required(extra: str) -> list[str]:
    """Return what pyproject.toml requires for an extra, with the core."""
    own = [Requirement(text) for text in PROJECT["optional-dependencies"].get(extra, ())]
    others = [text for r in own if r.name == "fedpals" for e in r.extras for text in required(e)]
    return [*PROJECT["dependencies"], *(str(r) for r in own if r.name != "fedpals"), *others]


def install(wheel: Path, extra: str, where: Path) -> Path:
    """Install the wheel and what the extra requires, and nothing else; return the environment's Python."""
    venv.create(where, with_pip=False, symlinks=True)
    python = where / "bin" / "python"
    site = next(where.glob("lib/python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    for installed in needed(required(extra)):
        for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(installed.locate_file(top))))
    return python


@pytest.mark.parametrize(
    ("extra", "arguments", "expected"),
    [
        ("", ("-m", "fedpals", "--version"), f"fedpals {VERSION}\n"),
        ("", ("-m", "fedpals", *WEIGHTS), "Airport"),
        ("plots", ("-m", "fedpals", *WEIGHTS, "--plot", "weights.png", "--explore", "explorer.html"), "explorer.html"),
        ("learn", ("-m", "fedpals", "run", "--task", "digits", "--model", "logistic", "--rounds", "1"), "FedPALS"),
        ("privacy", ("-c", "from fedpals.labels.private import secure_counts; print(secure_counts([5], 1.0))"), "["),
        ("flower", ("-c", "from fedpals.flower import FedPALS; print(FedPALS)"), "FedPALS"),
    ],
    ids=["version", "core", "plots", "learn", "privacy", "flower"],
)
def test_what_is_declared_is_enough(
    wheel: Path, extra: str, arguments: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    try:
        python = install(wheel, extra, tmp_path / "environment")
    except ModuleNotFoundError as error:
        pytest.skip(f"{error} here")
    done = subprocess.run(
        [python, "-I", *arguments], capture_output=True, text=True, cwd=tmp_path, env={}, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
