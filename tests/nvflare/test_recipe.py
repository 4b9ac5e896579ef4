"""The job that a recipe writes: T is in the server's part alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpals.errors import InputError
from fedpals.nvflare import FedPALSRecipe

SITES = ["cleveland", "hungary", "va"]
TARGET = [0.0703125, 0.9296875]


def recipe(folder: Path, **given: Any) -> FedPALSRecipe:
    script = folder / "client.py"
    script.write_text("import nvflare.client as flare\n", encoding="utf-8")
    settings: dict[str, Any] = {
        "model": torch.nn.Linear(13, 2),
        "target": TARGET,
        "sites": SITES,
        "num_rounds": 3,
        "train_script": str(script),
        "ess": 0.25,
    }
    return FedPALSRecipe(**{**settings, **given})


def test_only_the_servers_app_holds_the_target(tmp_path: Path) -> None:
    recipe(tmp_path, method="scaffold+fedpals").export(str(tmp_path / "jobs"))
    job = tmp_path / "jobs" / "fedpals"
    meta = json.loads((job / "meta.json").read_text())
    assert meta["deploy_map"] == {"app_server": ["server"], **{f"app_{site}": [site] for site in SITES}}
    with_target = [path for path in job.rglob("*") if path.is_file() and b"0.9296875" in path.read_bytes()]
    assert with_target == [job / "app_server/config/config_fed_server.json"]
    (workflow,) = json.loads(with_target[0].read_text())["workflows"]
    assert workflow["path"] == "fedpals.nvflare.controller.LabelAwareController"
    assert workflow["args"]["target"] == TARGET
    assert workflow["args"]["options"] == {"ess": 0.25}
    for site in SITES:
        files = sorted(path.name for path in (job / f"app_{site}").rglob("*") if path.is_file())
        assert files == ["client.py", "config_fed_client.json"]


def test_training_starts_from_the_parameters_that_were_given(tmp_path: Path) -> None:
    model = torch.nn.Linear(13, 2)
    recipe(tmp_path, model=model).export(str(tmp_path / "jobs"))
    initial = torch.load(tmp_path / "jobs/fedpals/app_server/custom/initial.pt", weights_only=True)
    assert all(torch.equal(initial[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"sites": []}, "names of the sites"),
        ({"sites": ["a", "a"]}, "each once"),
        ({"min_clients": 4}, "between 1 and the 3 sites"),
        ({"train_script": "nowhere.py"}, "no file here"),
        ({"ess": "many"}, "ess"),
        ({"proximal_weight": 1.0}, "no option of the method 'fedpals'"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason):
        recipe(tmp_path, **given)
