"""`fedpals estimate-target` as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedpals.data.sources.own import read_inputs
from fedpals.errors import InputError
from fedpals.labels.tables import read_target
from fedpals.simulation.record import Record
from fedpals.simulation.worker import Worker
from tests.cli.test_weights import refused, run
from tests.runs import view_of

QUICK = ("--task", "digits", "--model", "logistic", "--clients", "4", "--beta", "1", "--rounds", "20")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("estimate")
    process = run("run", *QUICK, "--held-out", "0.4", "--batch-size", "8", cwd=folder)
    assert process.returncode == 0, process.stderr
    return next(folder.glob("runs/*/*/*"))


@pytest.fixture(scope="module")
def unlabelled(finished: Path) -> Path:
    """Inputs of the run's target, as a user would store them."""
    federation = Worker(Record.at(finished).run).federation
    path = finished.parents[2] / "unlabelled.npz"
    np.savez(path, x=np.asarray(federation.dataset.x)[federation.test])
    return path


def test_a_table_and_a_file_that_weights_reads(finished: Path, unlabelled: Path, tmp_path: Path) -> None:
    process = run("estimate-target", str(finished), str(unlabelled), "-o", "target.csv", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    output = json.loads(run("estimate-target", str(finished), str(unlabelled), "--json").stdout)
    table = read_target(tmp_path / "target.csv")
    assert list(table.shares) == output["labels"]
    assert list(table.shares.values()) == pytest.approx(output["bbse"]["target"])
    for name in ("bbse", "em"):
        estimate = {key: np.array(output[name][key]) for key in ("target", "lower", "upper")}
        assert estimate["target"].sum() == pytest.approx(1.0)
        assert (estimate["lower"] <= estimate["target"]).all()
        assert (estimate["target"] <= estimate["upper"]).all()
        truth = np.array(view_of(Record.at(finished))["target"])
        assert np.abs(estimate["target"] - truth).sum() < 0.5, "far closer than the clients' own mix"
        assert ((estimate["lower"] <= truth) & (truth <= estimate["upper"])).mean() >= 0.7
        assert all(f"{share:.3f}" in process.stdout for share in estimate["target"])
    counts = (
        "client," + ",".join(output["labels"]) + "\na," + ",".join("9" * 10) + "\nb," + ",".join(map(str, range(10)))
    )
    (tmp_path / "clients.csv").write_text(counts)
    assert run("weights", "clients.csv", "--target", "target.csv", cwd=tmp_path).returncode == 0


def test_without_inputs_it_takes_the_runs_own_test_set(finished: Path, unlabelled: Path) -> None:
    own, given = (
        json.loads(run("estimate-target", str(finished), *paths, "--json", "--level", "0.5").stdout)
        for paths in ((), (str(unlabelled),))
    )
    assert own == given
    assert own["em"]["level"] == 0.5


def test_a_folder_of_images(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for label, shade in (("dark", 40), ("light", 200)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(60):
            pixels = np.clip(rng.normal(shade, 30, (8, 8, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{i}.png")
    target = tmp_path / "target"
    (target / "new").mkdir(parents=True)
    for i in range(8):
        shutil.copy(tmp_path / "photos" / "light" / f"{i}.png", target / "new")
    settings = ("--image-size", "8", "--labels-per-client", "2", "--clients", "3", "--model", "logistic")
    quick = (*settings, "--rounds", "8", "--held-out", "0.4", "--test-samples", "8", "--validation-samples", "4")
    process = run("run", "--task", "photos", *quick, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    folder = next(tmp_path.glob("runs/*/*/*"))
    output = json.loads(run("estimate-target", str(folder), "target", "--json", cwd=tmp_path).stdout)
    assert output["samples"] == 8
    assert output["bbse"]["target"] == pytest.approx([0.0, 1.0])
    assert output["em"]["target"][1] > 0.8


def test_bad_input(finished: Path, unlabelled: Path, tmp_path: Path) -> None:
    folder = str(finished)
    assert "missing.npz: no such file or folder" in refused("estimate-target", folder, "missing.npz", cwd=tmp_path)
    np.savez(tmp_path / "wide.npz", x=np.zeros((4, 1, 9, 9), dtype=np.uint8))
    output = refused("estimate-target", folder, "wide.npz", "-o", "t.csv", cwd=tmp_path)
    assert "wide: these inputs do not fit the model of" in output
    assert "--level is 95" in refused("estimate-target", folder, str(unlabelled), "--level", "95")
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "tallies.json").unlink()
    assert "--held-out 0.1" in refused("estimate-target", str(copy), str(unlabelled))
    assert not (tmp_path / "t.csv").exists()


def test_files_and_folders_that_hold_no_inputs(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no arrays")
    np.savez(tmp_path / "y.npz", y=np.zeros(3))
    np.savez(tmp_path / "none.npz", x=np.zeros((0, 4)))
    (tmp_path / "empty").mkdir()
    for name, words in (
        ("text.npz", r"numpy\.savez\(path, x=x\)"),
        ("y.npz", "has no array x"),
        ("none.npz", "holds no samples"),
        ("empty", "holds no images"),
    ):
        with pytest.raises(InputError, match=words):
            read_inputs(tmp_path / name)


def test_where_bbse_cannot_tell_labels_apart_em_is_shown_and_no_file_is_written(
    finished: Path, unlabelled: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    tallies = json.loads((copy / "tallies.json").read_text())
    for tally in tallies:
        tally["confusion"] = [[y, 0 if y == 1 else predicted, n] for y, predicted, n in tally["confusion"]]
        tally["confusion"] += [[0, 0, 20], [1, 0, 20]]
    (copy / "tallies.json").write_text(json.dumps(tallies))
    output = " ".join(run("estimate-target", str(copy), str(unlabelled)).stdout.split())
    assert "No BBSE: these predictions do not distinguish the labels" in output
    assert "EM" in output
    refusal = refused("estimate-target", str(copy), str(unlabelled), "-o", "t.csv", cwd=tmp_path)
    assert "or write the other estimate, --by em" in refusal
    assert not (tmp_path / "t.csv").exists()
    assert run("estimate-target", str(copy), str(unlabelled), "-o", "t.csv", "--by", "em", cwd=tmp_path).returncode == 0
    assert read_target(tmp_path / "t.csv").shares
