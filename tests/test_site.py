"""The site builds without a warning, needs no network, and every link and notebook of it works.

It is built quickly here: notebooks run one by one in tests of their own, and the report has one experiment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

from tests.cli.test_help import ALL as COMMANDS
from tests.report.browser import browser, executable, new_page
from tests.test_docs import ROOT

DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
CONCEPTS = sorted((DOCS / "concepts").glob("*.md"))
PROMISE = re.compile(r"(After|Here|On) .*?\byou\b|(Choose|Run|Train) ", flags=re.DOTALL)
"""How a page begins: what the reader will be able to do, or find."""
_LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements that a browser loads by itself, and the attribute with the address."""


def hook(name: str) -> ModuleType:
    """A module of docs/hooks, which mkdocs loads by its path."""
    spec = spec_from_file_location(f"hooks_{name}", DOCS / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quick = {"FEDPALS_DOCS_QUICK": "true", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | quick, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Elements(HTMLParser):
    """The ids of a page, its links, and what it loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {str(values[key]) for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.add(str(values["href"]))
        if tag in _LOADED and values.get(_LOADED[tag]) and values.get("rel") != "canonical":
            self.loaded.add(str(values[_LOADED[tag]]))


def test_every_link_leads_to_a_page_and_a_place_on_it(site: Path) -> None:
    pages = {page.resolve(): Elements(page) for page in site.rglob("*.html") if page.name != "404.html"}
    broken = []
    for page, elements in pages.items():
        for link in elements.links | elements.loaded:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            to = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchored = parts.fragment and to in pages and to.name != "explorer.html"  # which reads a number from it
            if not to.is_file() or (anchored and unquote(parts.fragment) not in pages[to].ids):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert len(pages) > 30
    assert not broken


def test_nothing_is_loaded_from_a_network(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    assert not [
        (page, url) for page in pages for url in Elements(page).loaded if urlsplit(url).scheme not in {"", "data"}
    ]


def test_every_command_has_its_arguments(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "commands.html").read_text(encoding="utf-8"))
    for words, command in COMMANDS.items():
        assert f"fedpals {' '.join(words)}" in text
        for parameter in command.params:
            if not getattr(parameter, "hidden", False) and parameter.param_type_name == "option":
                assert all(option in text for option in parameter.opts), parameter.name


def test_the_report_is_part_of_it(site: Path) -> None:
    assert "λ" in (site / "results" / "report" / "index.html").read_text(encoding="utf-8")
    assert "report/index.html" in (site / "results" / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def devtools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = executable()
    if program is None:
        pytest.skip("no chromium here")
    with browser(program, tmp_path_factory.mktemp("profile")) as address:
        yield address


@pytest.mark.parametrize("width", [1300, 400])
@pytest.mark.parametrize(
    "name", ["index", "how-to/ess", "concepts/coverage", "reference/commands", "reference/api", "results/index"]
)
def test_pages_fit_and_complain_of_nothing(site: Path, devtools: str, name: str, width: int) -> None:
    with new_page(devtools) as page:
        page.resize(width, 900)
        page.open(site / f"{name}.html")
        assert page.run("document.documentElement.scrollWidth <= window.innerWidth")
        assert not page.complaints
        assert all(address.startswith(("file:", "data:", "blob:")) for address in page.requests)


def test_search_works_from_the_disk(site: Path, devtools: str) -> None:
    with new_page(devtools) as page:
        page.resize(1300, 900)
        page.open(site / "index.html")
        page.run("document.querySelector('[data-md-component=search-query]').focus()")
        page.send("Input.insertText", text="coverage")
        shown = page.run("""new Promise((done) => {
            const look = () => {
                const first = document.querySelector('.md-search-result__link');
                first ? done(first.getAttribute('href')) : setTimeout(look, 50);
            };
            look();
        })""")
        assert "coverage" in shown
        assert not [address for address in page.requests if address.startswith("http")]


def test_pictures_are_those_of_today(tmp_path: Path) -> None:
    """The words and numbers in them are; lines differ between releases of matplotlib."""
    pictures = hook("pictures")
    pictures.draw_all(tmp_path)
    assert {path.stem for path in CONCEPTS} == set(pictures.PICTURES)
    for name in pictures.PICTURES:
        kept, drawn = ((folder / f"{name}.svg").read_text(encoding="utf-8") for folder in (DOCS / "concepts", tmp_path))
        assert words(kept) == words(drawn), f"{name}.svg: draw it anew with python docs/hooks/pictures.py"


def words(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)", svg)


@pytest.mark.parametrize("path", CONCEPTS, ids=lambda path: path.stem)
def test_concepts_have_a_picture_and_no_formula_before_their_second_paragraph(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert f"]({path.stem}.svg)" in text
    _, promise, first, *_ = text.split("\n\n")
    assert not re.search(r"[Σ‖λα≥∈]|p\(", promise + first)


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.stem)
def test_pages_begin_with_what_the_reader_will_be_able_to_do(path: Path) -> None:
    title, first, *_ = path.read_text(encoding="utf-8").split("\n\n")
    assert title.startswith("# ")
    assert PROMISE.match(first), first


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_notebooks_run(path: Path) -> None:
    notebooks = hook("notebooks")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "keep notebooks without outputs: they are run anew"
    if missing := notebooks.missing_data(notebook):
        pytest.skip(f"{missing} is not here: fedpals data get {missing}")
    notebooks.execute(notebook)
    text, pictures = notebooks.as_page(notebook, path.stem)
    assert PROMISE.match(text.split("\n\n")[1])
    assert path.stem == "label-shift" or pictures
    assert all(name in text for name in pictures)
