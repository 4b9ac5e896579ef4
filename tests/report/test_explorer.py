from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpals
from fedpals.labels import LabelCounts
from fedpals.report.explorer import POINTS, explore, write_explorer
from tests.cli.test_weights import NEW_STORE, STORES, refused, run
from tests.report.made import COUNTS, LABELS, TARGET

pytest.importorskip("jinja2", reason="pages need the extra 'plots'")


def explorer_data(counts: Any = COUNTS, target: Any = TARGET, **options: Any) -> dict[str, Any]:
    table = LabelCounts.of(counts)
    return explore(table, np.asarray(target), name="x", **options)


def data(page: str) -> Any:
    """What the page's own script reads."""
    match = re.search(r'<script type="application/json" class="data">(.*?)</script>', page, re.DOTALL)
    assert match
    return json.loads(match[1])


def test_steps_are_exact_solutions_from_the_limit_to_fedavg() -> None:
    steps = explorer_data()["steps"]
    assert len(steps) == POINTS + 2
    assert (steps[0]["lam"], steps[-1]["lam"], steps[-1]["ess"]) == (0.0, None, 1.0)
    spacing = np.diff([step["ess"] for step in steps])
    assert spacing == pytest.approx(spacing[0], abs=1e-5)
    order = [3, 0, 1, 2]  # by size
    for step in steps[1:-1:7]:
        solved = fedpals.solve(COUNTS, TARGET, ess=step["ess"])
        assert step["alpha"] == pytest.approx(solved.alpha[order].tolist(), abs=2e-5)
        assert step["marginal"] == pytest.approx(solved.marginal.tolist(), abs=2e-5)
        assert step["squaredDistance"] == pytest.approx(solved.squared_distance, rel=1e-3, abs=1e-9)
        assert step["lam"] == pytest.approx(solved.lam, rel=1e-3)
        wrong = 0.5 * np.abs(solved.marginal - TARGET).sum()
        assert step["wrongMix"] == pytest.approx(wrong, abs=2e-5)


def test_it_starts_where_it_is_asked_to() -> None:
    steps, start = (explorer_data(ess=0.8)[key] for key in ("steps", "start"))
    assert steps[start]["ess"] == pytest.approx(0.8, abs=1e-6)
    assert [step["ess"] for step in steps] == sorted(step["ess"] for step in steps)
    assert explorer_data(ess=0.01)["start"] == 0


def test_it_says_what_would_help_with_the_names_of_its_own_labels() -> None:
    assert explorer_data()["shortage"] == ""
    for labels in (("cat", "dog"), ("owl", "fox")):
        table = LabelCounts.of([[90, 10], [80, 20]], labels=labels)
        told = explore(table, np.array([0.3, 0.7]), name="x")["shortage"]
        assert told.startswith(f"The best mix has too little of {labels[1]} (20 % instead of 70 %).")
        assert told.endswith(f"A new client with 100 % {labels[1]} would help most.")


def test_three_labels_have_a_simplex_and_others_none() -> None:
    simplex = explorer_data()["simplex"]
    assert len(simplex["hull"]) == 4
    assert simplex["clients"][0] == [0, 0.5, 0.5]
    assert explorer_data([[1, 2], [2, 1]], [0.5, 0.5])["simplex"] is None


def test_a_target_that_fedavg_matches_has_nothing_in_between() -> None:
    assert [step["ess"] for step in explorer_data([[1, 2], [2, 1]], [0.5, 0.5])["steps"]] == [1.0, 1.0]


def test_ten_thousand_clients_are_a_small_page(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(100, 0.2), 10_000)
    counts = LabelCounts.of(rng.poisson(shares * rng.integers(10, 500, (10_000, 1))))
    path = tmp_path / "explorer.html"
    write_explorer(counts, rng.dirichlet(np.ones(100)), path, name="many")
    assert path.stat().st_size < 200_000
    (explorer,) = data(path.read_text())["federations"]
    assert (len(explorer["clients"]), explorer["allClients"]) == (50, 10_000)
    assert (len(explorer["labels"]), explorer["allLabels"]) == (40, 100)
    assert explorer["sizes"] == sorted(explorer["sizes"], reverse=True)


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><b>"
    counts = LabelCounts.of(COUNTS, clients=[evil, "b", "c", "d"], labels=[*LABELS[:2], evil + "2"])
    path = tmp_path / "explorer.html"
    write_explorer(counts, np.array(TARGET), path, name=evil)
    page = path.read_text()
    assert "alert(1)</script>" not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert data(page)["federations"][0]["clients"][1] == evil


def test_as_a_user_types_it(tmp_path: Path) -> None:
    process = run("weights", STORES, "--target", NEW_STORE, "--ess", "0.6", "--explore", "e.html", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "Explorer: e.html" in process.stdout
    (explorer,) = data((tmp_path / "e.html").read_text())["federations"]
    assert explorer["steps"][explorer["start"]]["ess"] == pytest.approx(0.6, abs=1e-6)
    assert explorer["name"] == "Weights of stores.csv for the target new-store.csv"
    assert explorer["clients"][0] == "Market Square"


def test_bad_input(tmp_path: Path) -> None:
    error = refused("weights", STORES, "--target", NEW_STORE, "--explore", "e.pdf", cwd=tmp_path)
    assert "e.pdf: a page is written as .html" in error
    assert list(tmp_path.iterdir()) == []
