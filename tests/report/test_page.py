"""The report in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_weights import NEW_STORE, STORES, run
from tests.report import made

pytest.importorskip("matplotlib", reason="figures need the extra 'plots'")
pytest.importorskip("websockets", reason="the browser is driven over a web socket")

from fedpals.report.finished import read
from fedpals.report.page import write_report
from fedpals.report.study_page import write_study_page
from tests.report.browser import Page, browser, executable, new_page

PROGRAM = executable()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium is installed")

PAGES = ["front", "report", "explorer", "alone", "study"]
EVIL = '<img src=x onerror="console.log(1)">'


@pytest.fixture(scope="module")
def devtools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    assert PROGRAM is not None
    with browser(PROGRAM, tmp_path_factory.mktemp("profile")) as address:
        yield address


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    definition = made.DEFINITION.replace('"Who is best?"', f"'Who is best? {EVIL}'")
    definition = definition.replace('"distance", "dynamics", ', "")
    made.results(folder / "made", definition)
    write_report(read([folder / "made"])[0], folder / "report")
    return folder / "report" / "made.html"


@pytest.fixture(scope="module")
def front(report: Path) -> Path:
    return report.with_name("index.html")


@pytest.fixture(scope="module")
def explorer(report: Path) -> Path:
    return report.with_name("explorer.html")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "study.html"
    write_study_page(made.watched_runs(), path, f"Study {EVIL}")
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("alone") / "explorer.html"
    assert run("weights", STORES, "--target", NEW_STORE, "--explore", str(path)).returncode == 0
    return path


@pytest.fixture
def page(devtools: str) -> Iterator[Page]:
    with new_page(devtools) as page:
        page.resize(1200, 900)
        yield page


def heights(page: Page, chart: str) -> list[float]:
    script = f"[...document.querySelectorAll('[data-chart={chart}] rect')].map((r) => Number(r.getAttribute('height')))"
    return [float(value) for value in page.run(script)]


@pytest.mark.parametrize("which", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_complaint_and_no_request(which: str, scheme: str, page: Page, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(which)
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.open(path)
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("data:")] == [path.as_uri()]


def test_nothing_from_elsewhere_may_load_or_run(report: Path, page: Page) -> None:
    page.open(report)
    page.run(
        "{ const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s) }"
    )
    request = "fetch('https://example.org/').then(() => 'sent', () => 'refused')"
    assert page.run(request) == "refused"
    assert page.run("window.ran") is None
    assert page.run("document.querySelectorAll('img').length") == 0
    assert EVIL in page.text("header")


def test_the_front_page_answers_in_a_small_table(front: Path, page: Page) -> None:
    assert front.stat().st_size < 300_000
    page.open(front)
    assert page.text(".advice h2").startswith("Use FedPALS +prior")
    assert page.run("document.querySelector('.measures').querySelectorAll('tbody tr').length") <= 6
    assert page.run("document.querySelector('.measures').querySelectorAll('thead th').length") <= 6
    assert "fedpals run --task" in page.text("pre")
    assert page.run("[...document.querySelectorAll('.card a')].map((a) => a.getAttribute('href'))") == [
        "made.html",
        "explorer.html",
    ]
    page.run("document.querySelector('.card a').click()")
    page.wait("document.title.startsWith('Methods under label shift')")


def test_other_evaluations_are_folded_away_and_no_row_or_column_is_empty(report: Path, page: Page) -> None:
    page.open(report)
    exhibit = "document.querySelector('[data-view=\"Test accuracy\"]')"
    assert page.run(f"[...{exhibit}.querySelectorAll('details')].map((d) => [d.open, d.firstChild.textContent])") == [
        [False, "+prior"]
    ]
    empty = """[...document.querySelectorAll('.two table')].filter((table) => {
      const rows = [...table.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent));
      return rows.some((row) => row.slice(-table.rows[0].cells.length + 1).every((text) => !text));
    }).length"""
    assert page.run(empty) == 0


def test_two_columns_stay_in_sight(report: Path, page: Page) -> None:
    page.resize(400, 800, mobile=True)
    page.open(report)
    place = "[...document.querySelector('.two tbody tr').cells].slice(0, 2).map((c) => c.getBoundingClientRect().left)"
    before = page.run(place)
    assert page.run("{ const s = document.querySelector('.two'); s.scrollLeft = 60; s.scrollLeft }") > 0
    page.settle()
    assert page.run(place) == before


def test_no_label_of_a_figure_is_clipped(report: Path, page: Page) -> None:
    for width in (1300, 400):
        page.resize(width, 900)
        page.open(report)
        clipped = """[...document.querySelectorAll('.panels svg')].flatMap((svg) => {
          const box = svg.getBoundingClientRect(), card = svg.closest('.exhibit').getBoundingClientRect();
          return [...svg.querySelectorAll('text')].filter((text) => {
            const own = text.getBoundingClientRect();
            return box.width && (own.left < box.left - 2 || own.right > box.right + 2 || own.bottom > box.bottom + 2);
          }).map((text) => text.textContent);
        })"""
        assert page.run(clipped) == []
        wide = "[...document.querySelectorAll('.panels figure:not(.wide)')].filter((f) => f.offsetParent).map((f) =>"
        assert min(page.run(f"{wide} f.querySelector('svg').clientWidth / f.clientWidth)")) > 0.99


def test_one_explorer_with_a_choice_of_federation(explorer: Path, page: Page) -> None:
    page.open(explorer)
    assert page.run("document.querySelectorAll('.explorer').length") == 1
    names = page.run("[...document.querySelectorAll('option')].map((o) => o.textContent)")
    assert names == ["C = 3"]  # both rows have the same counts and target here
    assert page.run("document.querySelectorAll('[data-chart=weights] rect').length") > 0
    page.run("location.hash = '#0'")
    page.settle()
    assert page.complaints == []
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.run("document.querySelector('select.federation').checkVisibility()"), "which federation is it?"


def test_the_slider_moves_by_keyboard_from_the_best_match_to_fedavg(alone: Path, page: Page) -> None:
    page.open(alone)
    page.run("document.querySelector('input[type=range]').focus()")
    assert page.text("[data-fact=ess]") == "50.0 %", "what the command line shows"
    assert page.text("[data-fact=wrongMix]") == "8.6 %"
    assert "30.2 %" in page.text("[data-fact=fedavgMix]")
    facts = [f"[data-fact={name}]" for name in ("ess", "wrongMix", "squaredDistance", "lam")]
    before = [page.text(fact) for fact in facts]
    bars, mix = heights(page, "weights"), heights(page, "marginal")
    point = page.run("document.querySelector('[data-chart=simplex] .now').getAttribute('cx')")
    page.press("ArrowRight", 5)
    after = [page.text(fact) for fact in facts]
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert heights(page, "weights") != bars
    assert heights(page, "marginal") != mix
    assert page.run("document.querySelector('[data-chart=simplex] .now').getAttribute('cx')") != point
    assert after[0] in page.run("document.querySelector('input[type=range]').getAttribute('aria-valuetext')")
    page.press("End")
    assert (page.text("[data-fact=ess]"), page.text("[data-fact=lam]")) == ("100.0 %", "∞")
    rows = "[...document.querySelectorAll('[data-fact=table] tr')]"
    columns = page.run(f"{rows}.map((row) => [2, 3].map((i) => row.cells[i].textContent))")
    assert len(columns) == 6
    assert all(fedavg == fedpals for fedavg, fedpals in columns)
    page.press("Home")
    assert (page.text("[data-fact=ess]"), page.text("[data-fact=lam]")) == ("31.9 %", "→ 0")
    assert page.complaints == []


def test_nothing_lies_above_the_highest_gridline(alone: Path, page: Page) -> None:
    page.open(alone)
    above = """['weights', 'marginal', 'tradeoff'].map((chart) => {
      const f = document.querySelector(`[data-chart=${chart}]`);
      const number = (e, name) => Number(e.getAttribute(name));
      const marks = [...f.querySelectorAll('circle')].map((e) => number(e, 'cy'));
      const squares = [...f.querySelectorAll('rect')].map((e) => number(e, 'y') + (e.matches('.mark') ? 5 : 0));
      const grid = [...f.querySelectorAll('.grid')].filter((e) => number(e, 'x1') !== number(e, 'x2'));
      return Math.min(...grid.map((e) => number(e, 'y1'))) - Math.min(...marks, ...squares);
    })"""
    for key in ("Home", "End"):
        page.run("document.querySelector('input[type=range]').focus()")
        page.press(key)
        assert max(page.run(above)) <= 0.01


def test_the_slider_can_be_reached_by_keyboard_alone(alone: Path, page: Page) -> None:
    page.open(alone)
    page.press("Tab")
    assert page.run("document.activeElement.type") == "range"
    assert page.run("document.activeElement.labels[0].textContent").startswith("Effective sample size")


def test_a_choice_switches_every_view_of_the_federation(report: Path, page: Page) -> None:
    page.open(report)
    visible = (
        "[...document.querySelectorAll('[data-federation]')].filter((e) => !e.hidden).map((e) => e.dataset.federation)"
    )
    assert page.run(visible) == ["C = 6", "C = 6"]  # the paper's
    page.run(
        "{ const s = document.querySelector('[data-federation=\"C = 6\"] select'); s.focus(); s.selectedIndex = 0;"
        " s.dispatchEvent(new Event('change')) }"
    )
    assert page.run(visible) == ["C = 3", "C = 3"]
    values = "[...document.querySelectorAll('select.federation')].map((s) => s.value)"
    assert set(page.run(values)) == {"0"}
    assert page.run("document.activeElement.closest('[data-federation]').dataset.federation") == "C = 3"
    assert page.complaints == []


def test_a_method_can_be_hidden_and_shown(report: Path, page: Page) -> None:
    page.open(report)
    lines = """[...document.querySelectorAll('[id*="-curve-"][id*="-method-1-line"]')]"""
    displays = f"{lines}.map((line) => getComputedStyle(line).display)"
    assert page.run(displays) == ["inline", "inline"]
    page.run('document.querySelector(\'[data-view^="Test accuracy against"] [data-method="1"]\').focus()')
    page.press(" ")
    assert page.run("document.activeElement.getAttribute('aria-pressed')") == "false"
    assert page.run(displays) == ["none", "none"]


@pytest.mark.parametrize("which", PAGES)
@pytest.mark.parametrize("width", [320, 400, 1300])
def test_no_page_scrolls_sideways(which: str, width: int, page: Page, request: pytest.FixtureRequest) -> None:
    page.resize(width, 700, mobile=width < 500)
    page.open(request.getfixturevalue(which))
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("innerWidth") == width
    page.run("for (const d of document.querySelectorAll('details')) d.open = true")
    page.settle()
    assert page.run("document.documentElement.scrollWidth") <= width


def test_figures_are_described_and_ids_are_unique(report: Path, page: Page) -> None:
    page.open(report)
    figures = "[...document.querySelectorAll('svg:not([aria-hidden])')].filter((svg) => !svg.closest('[hidden]'))"
    undescribed = f"{figures}.filter((svg) => !svg.getAttribute('aria-label')).length"
    assert page.run(undescribed) == 0
    ids = page.run("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    broken = (
        "[...document.querySelectorAll('use')].filter((u) => {"
        " const id = (u.getAttribute('href') || u.getAttribute('xlink:href')).slice(1);"
        " return !document.getElementById(id) }).length"
    )
    assert page.run(broken) == 0


@pytest.mark.parametrize("which", ["front", "report"])
def test_it_prints_without_cutting_columns(which: str, page: Page, request: pytest.FixtureRequest) -> None:
    page.resize(718, 1000)  # a page of A4 with its margins
    page.open(request.getfixturevalue(which))
    page.send("Emulation.setEmulatedMedia", media="print")
    page.settle()
    cut = "[...document.querySelectorAll('.scroll')].filter((s) => s.offsetParent && s.scrollWidth > 718).length"
    assert page.run(cut) == 0
    pdf = page.send("Page.printToPDF", printBackground=True)["data"]
    assert len(pdf) > 20_000


def test_a_study_shows_light_curves_estimates_and_weights(study: Path, page: Page) -> None:
    page.open(study)
    assert page.text(".light") in ("All is well", "Look closer", "Do not rely on this yet")
    titles = page.run("[...document.querySelectorAll('figcaption')].map((f) => f.firstChild.textContent)")
    assert titles == [
        "Estimated target accuracy",
        "Target accuracy",
        "Effective sample size",
        "Weights of the clients",
        "Label mix",
    ]
    assert page.run("[...document.querySelectorAll('.study svg')].every((s) => s.getAttribute('aria-label'))")
    assert "± " in page.text(".study tbody tr td:nth-child(4)")
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.complaints == []
