"""`fedpals report` as a user types it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedpals import Federation, InputError, train
from fedpals.report.finished import read
from tests.cli.test_weights import refused, run
from tests.report import made

pytest.importorskip("matplotlib", reason="figures need the extra 'plots'")

from fedpals.report.page import write_report

SMALL = made.DEFINITION.replace(
    '["table", "curve", "distance", "dynamics", "labels", "heatmap", "weights"]', '["table", "heatmap"]'
)


def test_a_page_and_files_of_every_table_and_figure(tmp_path: Path) -> None:
    made.results(tmp_path / "results" / "made", SMALL)
    process = run("report", "results/made", "-o", "out", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "Report: out/index.html\n"
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    exhibits = ("table", "heatmap-c-3", "heatmap-c-6")
    assert names == {
        "index.html",
        "made.html",
        "explorer.html",
        "made/table.png",  # figures of single federations are vector graphics alone
        *(f"made/{name}.{suffix}" for name in exhibits for suffix in ("svg", "csv", "tex")),
    }
    table = (tmp_path / "out" / "made" / "table.tex").read_text()
    assert "% fedpals reproduce made" in table
    assert r"C = 3 & as trained & $\mathbf{92.0 \pm 2.8}$ & $65.0 \pm 7.1$" in table
    assert "C = 3,in the paper,92.4,2.1,,67.1,22" in (tmp_path / "out" / "made" / "table.csv").read_text()
    page = (tmp_path / "out" / "made.html").read_text()
    for words in (
        "Methods under label shift",
        "Table 1",
        "2 rounds instead of 150",
        'title="chosen: ess = 0.25; 2 seeds; selected round 2 on average"><span>92.0 ± 2.8</span>',
        "fedpals reproduce made",
        "2026-01-02",
        "task = digits, model = logistic",
        'href="made/table.csv"',
    ):
        assert words in page


def test_the_same_results_make_the_same_bytes(tmp_path: Path) -> None:
    finished = made.finished(show=["distance"])
    for name in ("a", "b"):
        write_report([finished], tmp_path / name)
    files = [path for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(files) == 7
    for path in files:
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_finished_runs_without_an_experiment(tmp_path: Path) -> None:
    quick = ("--task", "digits", "--model", "logistic", "--clients", "4", "--rounds", "2")
    assert run("run", *quick, "--method", "fedavg,fedpals", "--seeds", "2", cwd=tmp_path).returncode == 0
    (finished,), _ = read([tmp_path / "runs"])
    assert [row.name for row in finished.rows] == ["digits-C3"]
    assert [method.name for method in finished.methods] == ["FedAvg", "FedPALS (ESS 0.5)"]
    assert [len(finished.members(finished.rows[0], method)) for method in finished.methods] == [2, 2]
    (federation,) = finished.federations
    assert (federation.counts.shape, federation.ess) == ((3, 10), 0.5)
    process = run("report", "runs", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    front, page = ((tmp_path / "report" / name).read_text() for name in ("index.html", "runs.html"))
    assert re.search(r"<h2>Use (FedAvg|FedPALS \(ESS 0\.5\))", front)
    assert '"title": "Label mix"' in page
    assert (tmp_path / "report" / "runs" / "dynamics.csv").read_text().startswith("row,round,FedAvg mean %")


def test_runs_without_target_samples(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(90, 2)), np.arange(90) % 3
    federation = Federation.of(x + y[:, None], y, client=np.arange(90) // 30, target=[0.1, 0.2, 0.7])
    train(federation, methods=["fedavg", "fedpals"], rounds=2, out=tmp_path / "runs", progress=False)
    process = run("report", "runs", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    front, page = ((tmp_path / "report" / name).read_text() for name in ("index.html", "runs.html"))
    assert "<rect" in front, "a picture of the weights"
    assert "Estimated target accuracy" in page
    assert "Accuracy per label" not in page


def test_different_settings_are_never_averaged_as_seeds_and_a_copied_run_counts_once(tmp_path: Path) -> None:
    quick = ("--task", "digits", "--model", "logistic", "--clients", "4", "--rounds", "1", "--method", "fedavg")
    for rate in ("0.1", "0.001"):
        assert run("run", *quick, "--learning-rate", rate, "--seeds", "2", cwd=tmp_path).returncode == 0
    assert run("run", *quick, "--learning-rate", "0.1", "--clients", "5", cwd=tmp_path).returncode == 0
    first = next(tmp_path.glob("runs/digits-C3/fedavg/0-*"))
    shutil.copytree(first, tmp_path / "runs" / "copy")
    (finished,), _ = read([tmp_path / "runs"])
    assert [row.name for row in finished.rows] == ["digits-C3 [clients=4]", "digits-C3 [clients=5]"]
    four, five = finished.rows
    cells = {method.name: len(finished.members(four, method)) for method in finished.methods}
    assert cells == {"FedAvg": 0, "FedAvg [learning_rate=0.1]": 2, "FedAvg [learning_rate=0.001]": 2}
    assert [len(finished.members(five, method)) for method in finished.methods if method.name == "FedAvg"] == [1]


def test_all_results_below_a_folder_and_those_without_runs_yet(tmp_path: Path) -> None:
    made.results(tmp_path / "a" / "made")
    made.results(tmp_path / "b" / "made")
    made.results(tmp_path / "b" / "begun", runs=[])
    experiments, empty = read([tmp_path])
    assert [finished.name for finished in experiments] == ["made", "made-2"]
    assert empty == ["begun"]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    error = refused("report", "nothing", cwd=tmp_path)
    assert "nothing: no results there, neither experiment.toml nor finished runs" in error
    assert "fedpals reproduce" in error
    assert not (tmp_path / "report").exists()
    with pytest.raises(InputError, match="absent: no such folder"):
        read([tmp_path / "absent"])
    with pytest.raises(InputError, match="begun: no finished run yet"):
        read([made.results(tmp_path / "begun", runs=[])])


def test_the_papers_tables_come_first_then_its_figures_then_the_rest(tmp_path: Path) -> None:
    for name, source in (("a", ""), ("b", "Figure 2"), ("c", "Table PACS"), ("d", "Table 1")):
        made.results(tmp_path / name, SMALL.replace('"Table 1"', f'"{source}"'))
    experiments, _ = read([tmp_path])
    assert [finished.name for finished in experiments] == ["d", "c", "b", "a"]


def test_broken_files_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"experiment\.toml: not a TOML file"):
        read([made.results(tmp_path / "made", "title = ")])
    folder = tmp_path / "runs" / "digits-C3" / "fedavg" / "0-aaaaaaaa"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    with pytest.raises(InputError, match=r"no run there \(config\.toml\)"):
        read([tmp_path / "runs"])
    (folder / "config.toml").write_text('task = "digits"\nmethod = "fedavg"\n')
    with pytest.raises(InputError, match="without its end"):
        read([tmp_path / "runs"])
    (tmp_path / "blocked").write_text("a file where a folder should be")
    made.results(tmp_path / "good", SMALL)
    assert "cannot be written" in refused("report", "good", "-o", "blocked/report", cwd=tmp_path)
