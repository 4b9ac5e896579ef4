"""`fedpals tune` as a user types it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedpals import ess_grid
from fedpals.simulation.ess_search import Candidate, best_candidate
from tests.cli.test_weights import refused, run

QUICK = ("--task", "digits", "--model", "logistic", "--clients", "6", "--rounds", "3", "--batch-size", "16")


def records(folder: Path) -> dict[float, dict[str, Any]]:
    """What the finished runs say, by ESS."""
    found = {}
    for path in folder.glob("runs/*/*/*/result.json"):
        lines = [json.loads(line) for line in (path.parent / "metrics.jsonl").read_text().splitlines()]
        weights = json.loads((path.parent / "weights.json").read_text())
        ess = float(path.parts[-3].removeprefix("fedpals-ess"))
        found[ess] = {**json.loads(path.read_text()), "lines": lines, "weights": weights, "path": path.parent}
    return found


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("tune")
    done = run("tune", *QUICK, "--held-out", "0.3", "--grid", "2", "--workers", "2", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_the_grid_is_the_federations_and_the_choice_is_the_clients(tuned: tuple[Path, str]) -> None:
    folder, output = tuned
    found = records(folder)
    weights = found[1.0]["weights"]
    grid = [round(w.ess, 4) for w in ess_grid(weights["counts"], weights["target"], 2)]
    assert sorted(found) == [*grid, 1.0]
    rows = {line.split()[0]: line for line in output.splitlines() if "±" in line}
    assert list(rows) == [f"{ess:.1%}" for ess in (*grid, 1.0)]
    scores = {ess: r["selected"]["prior/estimate"]["score"] for ess, r in found.items()}
    best = max(found, key=lambda ess: (scores[ess], ess))
    assert [row for row, line in rows.items() if "← chosen" in line] == [f"{best:.1%}"]
    for ess, r in found.items():
        chosen = r["selected"]["prior/estimate"]
        line = r["lines"][chosen["round"] - 1]["prior"]
        assert line["clients"]["target_accuracy"] == chosen["score"]
        cells = rows[f"{ess:.1%}"].split()
        error = line["clients"]["standard_error"]
        assert cells[2:5] == [f"{100 * chosen['score']:.1f}", "±", f"{100 * error:.1f}"]
        assert cells[5:8] == [
            str(chosen["round"]),
            f"{100 * line['validation']['accuracy']:.1f}",
            f"{100 * line['test']['accuracy']:.1f}",
        ]
    assert "shown, but not used to choose" in " ".join(output.split())


def test_labels_that_the_estimate_cannot_speak_about_are_named(tuned: tuple[Path, str]) -> None:
    folder, output = tuned
    known = records(folder)[1.0]["weights"]
    missing = [y for y, n in enumerate(map(sum, zip(*known["counts"], strict=True))) if n == 0 and known["target"][y]]
    assert len(missing) == 1, "this federation lacks one of the target's labels"
    share = known["target"][missing[0]]
    assert f"No client held out samples of {known['labels'][missing[0]]}, {share:.0%} of the target" in output


def test_the_command_it_ends_with_shows_the_chosen_run_without_computing(tuned: tuple[Path, str]) -> None:
    folder, output = tuned
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*/*/*.json*")}
    command = shlex.split(output.splitlines()[-1])
    assert command[:2] == ["fedpals", "run"]
    assert run(*command[1:], cwd=folder).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*/*/*.json*")} == before


def test_it_continues_where_it_stopped(tuned: tuple[Path, str]) -> None:
    folder, output = tuned
    lost = records(folder)[1.0]["path"]
    (lost / "result.json").unlink()
    again = run("tune", *QUICK, "--held-out", "0.3", "--grid", "2", cwd=folder)
    assert again.stdout == output


def test_a_file_and_another_correction(tmp_path: Path) -> None:
    keys = (
        'task = "digits"',
        'model = "logistic"',
        "clients = 5",
        "seed = 1",
        "rounds = 1",
        'method = "fedprox+fedpals"',
    )
    (tmp_path / "c.toml").write_text("\n".join(keys))
    done = run("tune", "c.toml", "--grid", "1", "--correction", "raw", "--out", "other", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "as trained" in done.stdout
    assert "No client held out" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("fedpals run c.toml --held-out 0.1 --ess ")
    assert done.stdout.splitlines()[-1].endswith(" --out other")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ess", "0.5"), "ess is 0.5, but it is what is to be chosen; leave it out"),
        (("--method", "fedprox"), "method is 'fedprox', which has no ESS to choose; join it with fedpals"),
        (("--grid", "0"), "0 is not in the range"),
        (("--held-out", "0.001"), "held_out is 0.001: no client has so many samples"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    assert words in refused("tune", *QUICK, *arguments, cwd=tmp_path).replace("│ ", "")


def test_the_choice_looks_at_the_estimate_alone() -> None:
    def told(ess: float, estimate: float, truth: float) -> Candidate:
        return Candidate(ess, 1.0, 1, estimate, 0.01, truth, truth)

    assert best_candidate([told(0.25, 0.8, 0.9), told(0.5, 0.9, 0.1), told(1.0, 0.7, 0.9)]) == 1
    assert best_candidate([told(0.25, 0.9, 0.9), told(0.5, 0.9, 0.1)]) == 1
