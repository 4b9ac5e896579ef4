"""A user's own clients and target on the command line, and predictions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.cli.test_weights import refused, run

RNG = np.random.default_rng(0)
Y = np.repeat([0, 1], 60)
X = RNG.normal(size=(120, 3)) + Y[:, None]
HOSPITAL = np.tile(np.repeat(["Cleveland", "Hungary"], [40, 20]), 2)
NAMES = np.array(["healthy", "sick"])
FAST = ("--rounds", "2", "--method", "fedavg,fedpals")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.savez(tmp_path / "hospitals.npz", x=X, y=Y, labels=NAMES, hospital=HOSPITAL)
    np.savez(tmp_path / "new.npz", x=X[:7])
    (tmp_path / "T.csv").write_text("label,probability\nhealthy,0.35\nsick,0.65\n")
    with (tmp_path / "patients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "chol", "site", "bp", "diagnosis"])
        for x, site, y in zip(X, HOSPITAL, Y, strict=True):
            writer.writerow([x[0], x[1], site, x[2], NAMES[y]])
    return tmp_path


def ok(*arguments: str, cwd: Path) -> str:
    done = run(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join(done.stdout.split())


OWN = ("run", "--task", "hospitals.npz", "--client-key", "hospital")


def test_t_alone_shows_estimates_and_says_so(folder: Path) -> None:
    text = ok(*OWN, "--target", "T.csv", "--seeds", "2", *FAST, cwd=folder)
    assert "estimated on the clients' held-out samples, without target samples" in text
    assert "no target sample is used to choose anything" in text
    assert "difference to FedAvg" in text
    (line, *_) = sorted(folder.glob("runs/hospitals/fedavg/0-*/metrics.jsonl"))
    scores = json.loads(line.read_text().splitlines()[0])["raw"]
    assert set(scores) == {"clients"}
    assert {"log_loss", "balanced_accuracy", "auc", "per_label"} <= scores["clients"].keys()


def test_a_client_as_target_is_only_tested_on(folder: Path) -> None:
    text = ok(*OWN, "--target-client", "Hungary", *FAST, cwd=folder)
    assert "on test samples" in text
    assert list(folder.glob("runs/hospitals-Hungary/fedpals-essauto/0-*/result.json"))


def test_a_table_and_its_predictions(folder: Path) -> None:
    columns = ("--label-column", "diagnosis", "--client-column", "site")
    ok("run", "--task", "patients.csv", *columns, "--target", "T.csv", "--rounds", "2", cwd=folder)
    (record,) = folder.glob("runs/patients/fedpals-essauto/0-*")
    (folder / "new.csv").write_text("bp,age,chol\n0.5,1,2\n,1,2\n")
    assert "has a missing value" in refused("predict", str(record), "new.csv", cwd=folder)
    (folder / "new.csv").write_text("bp,age,chol,comment\n0.5,1,2,x\n-3,-1,-2,y\n")
    ok("predict", str(record), "new.csv", "-o", "predictions.csv", cwd=folder)
    header, first, second = csv.reader((folder / "predictions.csv").read_text().splitlines())
    assert header == ["input", "label", "certainty", "healthy", "sick"]
    assert (first[1], second[1]) == ("sick", "healthy")
    assert float(first[3]) + float(first[4]) == pytest.approx(1, abs=1e-5)
    (folder / "new.csv").write_text("bp,ag,chol\n0.5,1,2\n")
    assert "no column 'age', which the model was trained with; did you mean 'ag'" in refused(
        "predict", str(record), "new.csv", cwd=folder
    )


def test_predictions_for_another_target_and_other_inputs(folder: Path) -> None:
    ok(*OWN, "--target", "T.csv", *FAST, cwd=folder)
    (record,) = folder.glob("runs/hospitals/fedavg/0-*")
    (folder / "other.csv").write_text("healthy,0.9\nsick,0.1\n")
    for target in ((), ("--target", "other.csv")):
        ok("predict", str(record), "new.npz", "--use", "prior", "-o", f"{len(target)}.csv", *target, cwd=folder)
    own, other = (np.loadtxt(folder / f"{n}.csv", delimiter=",", skiprows=1, usecols=(3, 4)) for n in (0, 2))
    odds = (other[:, 0] / other[:, 1]) / (own[:, 0] / own[:, 1])
    assert np.allclose(odds, (0.9 / 0.1) / (0.35 / 0.65), rtol=1e-3)
    np.savez(folder / "wrong.npz", x=X[:, :2])
    assert "samples with 3 columns" in refused("predict", str(record), "wrong.npz", cwd=folder)
    assert "no such file or folder" in refused("predict", str(record), "none.npz", cwd=folder)
    assert "--use is 'best'" in refused("predict", str(record), "new.npz", "--use", "best", cwd=folder)


def test_a_folder_of_images_by_client_and_label(folder: Path) -> None:
    for client, shade in (("north", 40), ("south", 200)):
        for label, value in (("cat", 0), ("dog", 30)):
            place = folder / "images" / client / label
            place.mkdir(parents=True)
            for i in range(8):
                pixels = np.clip(RNG.normal(shade + value, 9, (16, 16, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.png")
    (folder / "T.csv").write_text("cat,0.2\ndog,0.8\n")
    settings = ("--image-size", "16", "--rounds", "1", "--held-out", "0.25")
    ok("run", "--task", "images", "--target", "T.csv", *settings, cwd=folder)
    (record,) = folder.glob("runs/images/fedpals-essauto/0-*")
    text = ok("predict", str(record), "images", cwd=folder)
    assert "north/cat/0.png" in text


def test_changed_data_are_another_run_and_a_changed_file_is_not_resumed(folder: Path) -> None:
    ok(*OWN, "--target", "T.csv", "--rounds", "1", cwd=folder)
    assert len(list(folder.glob("runs/hospitals/fedpals-essauto/*"))) == 1
    changed: dict[str, Any] = {"x": X + 1e-3, "y": Y, "labels": NAMES, "hospital": HOSPITAL}
    np.savez(folder / "hospitals.npz", **changed)
    ok(*OWN, "--target", "T.csv", "--rounds", "1", cwd=folder)
    assert len(list(folder.glob("runs/hospitals/fedpals-essauto/*"))) == 2
    (folder / "T.csv").write_text("healthy,0.3\nsick,0.7\n")
    ok(*OWN, "--target", "T.csv", "--rounds", "1", cwd=folder)
    assert len(list(folder.glob("runs/hospitals/fedpals-essauto/*"))) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--client-key", "hospitals", "--target", "T.csv"), "has no array hospitals, which client_key names"),
        (("--client-key", "hospital"), "T is missing; give target"),
        (("--client-key", "hospital", "--target-client", "Hungry"), "not a client; did you mean 'Hungary'"),
        (("--client-key", "hospital", "--target", "none.csv"), "none.csv: no such file"),
        (("--client-key", "hospital", "--target", "T.csv", "--target-client", "Hungary"), "give one of them"),
        ((), "holds the array 'hospital', which nothing uses; if it names the clients give client_key='hospital'"),
        (("--client-key", "hospital", "--target", "T.csv", "--beta", "1"), "beta does not apply"),
    ],
)
def test_bad_requests_name_argument_value_and_remedy(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused("run", "--task", "hospitals.npz", *arguments, cwd=folder)
    assert not (folder / "runs").exists()
