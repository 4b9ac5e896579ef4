"""From arrays to predictions, with T alone: as a user does it, and equal to the simulator's own run bit for bit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedpals as fp
from fedpals.engine.target_model import TargetModel
from fedpals.methods import method_of
from fedpals.shift import homogeneity
from fedpals.shift.evaluation import Correction
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.study.train import _run

RNG = np.random.default_rng(0)
Y = np.repeat([0, 1], 90)
X = RNG.normal(size=(180, 4)) + 1.5 * Y[:, None] * np.array([1, -1, 0, 0.5])
CLIENT = np.tile(np.repeat(["Cleveland", "Hungary", "VA"], [40, 30, 20]), 2)
T = [0.35, 0.65]


class Net(nn.Module):
    """A network with everything that could disturb: Dropout draws, BatchNorm needs two samples at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Halved(fp.ClientRule):
    """Follows half of the gradient."""

    factor: float = 0.5

    def adjust_gradient(self, gradient: Tensor, vector: Tensor, start: Tensor, correction: Tensor | None) -> None:
        del vector, start, correction
        gradient.mul_(self.factor)


def federation(**changes: Any) -> fp.Federation:
    settings: dict[str, Any] = {"client": CLIENT, "labels": ["healthy", "sick"], "target": T, **changes}
    return fp.Federation.of(settings.pop("x", X), settings.pop("y", Y), **settings)


def study(tmp_path: Path, **changes: Any) -> fp.Study:
    settings: dict[str, Any] = {"methods": ["fedavg", "fedpals"], "rounds": 3, "batch_size": 13, "progress": False}
    return fp.train(federation(), out=tmp_path, **{**settings, **changes})


def test_from_arrays_to_predictions_with_t_alone(tmp_path: Path) -> None:
    done = study(tmp_path, model=Net, methods=["fedavg", "fedpals", Halved()], seeds=2, ess=0.5)
    assert done.methods == ("FedAvg", "FedPALS (ESS 0.5)", "Halved")
    table = done.table()
    assert table.estimated
    assert table.uses == ("as trained", "+prior", "calibrated", "recommended")
    assert table.cells["FedAvg", "as trained"].difference is None
    assert table.cells["Halved", "+prior"].seeds == 2
    assert {row["verdict"] for row in table.rows if row["method"] == "Halved"} <= {"better", "equal", "worse"}
    assert {row["verdict"] for row in table.rows if row["method"] == "FedAvg"} == {None}
    assert "the target has no test samples" in str(table)
    model = done.best()
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (180, 2)
    assert np.allclose(probabilities.sum(axis=1), 1)
    model.save(tmp_path / "m.safetensors")
    assert np.array_equal(fp.load(tmp_path / "m.safetensors", Net).predict_proba(X), probabilities)
    with pytest.raises(fp.InputError, match=r"load\('.*', Net\); for the command line .*--model net:Net.* --trust"):
        fp.load(tmp_path / "m.safetensors")
    assert set(model.predict(X)) <= {"healthy", "sick"}


def test_the_ess_is_chosen_while_training_unless_it_or_lam_is_given(tmp_path: Path) -> None:
    methods = ["fedavg", "fedpals", (Halved(), "fedpals")]
    assert study(tmp_path, methods=methods, rounds=1).methods == (
        "FedAvg", "FedPALS (ESS auto)", "Halved+FedPALS (ESS auto)",
    )  # fmt: skip
    assert study(tmp_path, rounds=1, lam=2.0).methods == ("FedAvg", "FedPALS (λ 2)")
    assert study(tmp_path, methods="fedavg", rounds=1).methods == ("FedAvg",)


def test_a_study_tells_which_ess_was_chosen(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("agg")
    done = study(tmp_path, seeds=2)
    assert done.methods == ("FedAvg", "FedPALS (ESS auto)")
    assert list(done.choices()) == ["FedPALS (ESS auto)"]
    ax = done.plot("ess")
    band: Any = ax.collections[0]
    chosen = [[line.choice.ess for line in record.lines() if line.choice] for record in done.runs[2:]]
    line: Any = ax.lines[0]
    assert list(line.get_ydata()) == pytest.approx(100 * np.mean(chosen, axis=0))
    heights = band.get_paths()[0].vertices[:, 1]
    assert [heights.min(), heights.max()] == pytest.approx([100 * np.min(chosen), 100 * np.max(chosen)])
    assert ax.get_title() == done.choices()["FedPALS (ESS auto)"]
    rows = [row["ess"] for row in done.history() if "ess" in row and row["correction"] == "raw"]
    assert rows == [ess for run in chosen for ess in run]
    fixed = study(tmp_path, ess=0.5)
    assert fixed.choices() == {}
    with pytest.raises(fp.InputError, match="ess='auto'"):
        fixed.plot("ess")


def test_candidates_are_drawn_with_what_they_were_estimated_to_be_worth(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("agg")
    settings: dict[str, Any] = {"rounds": 3, "batch_size": 13, "progress": False}
    sorted_by_label = np.repeat(["a", "b", "c"], 60)[np.argsort(np.argsort(Y, kind="stable"))]
    own = federation(client=sorted_by_label, target=[0.9, 0.1])
    done = fp.train(own, out=tmp_path, methods=["fedpals"], seeds=2, ess="auto", **settings)
    choices = [(line.round, line.choice) for record in done.runs for line in record.lines() if line.choice]
    losses = [loss - min(choice.losses) for _, choice in choices for loss in choice.losses]
    assert min(losses) == 0.0 < max(losses)
    dots: Any = done.plot("ess").collections[1]
    places = [(number, 100 * ess) for number, choice in choices for ess in choice.candidates]
    assert np.asarray(dots.get_offsets()).tolist() == [pytest.approx(place) for place in places]
    assert list(dots.get_array()) == pytest.approx(losses)


def test_a_model_says_what_was_chosen(tmp_path: Path) -> None:
    done = study(tmp_path, seeds=2, ess=0.5)
    model = done.best(method="fedpals")
    chosen = next(
        r for r in done.runs if (r.run.method.full_title, r.run.seed) == (model.facts.method, model.facts.seed)
    )
    assert model.facts.method == "FedPALS (ESS 0.5)"
    assert any(selected.score == model.facts.estimate for selected in chosen.result().selected.values())
    shown = repr(model)
    assert shown.startswith(f"<TargetModel of FedPALS (ESS 0.5), seed {model.facts.seed}: {model.facts.correction}, ")
    assert model.facts.estimate is not None
    assert f"estimated target accuracy {100 * model.facts.estimate:.1f} ± " in shown
    assert shown.endswith("T: healthy 35.0%, sick 65.0%>")
    model.save(tmp_path / "m.safetensors")
    assert fp.load(tmp_path / "m.safetensors").facts == model.facts
    assert repr(fp.load(chosen.model())).startswith("<TargetModel: raw, round ")


def test_a_table_says_what_a_constant_guess_would_score(tmp_path: Path) -> None:
    """Nothing is to be learned of noise, so a model for nearly one label predicts that label."""
    noise = federation(x=RNG.normal(size=(180, 4)), target=[0.05, 0.95])
    done = fp.train(noise, methods=["fedavg", "fedpals"], rounds=3, seeds=2, ess=0.5, out=tmp_path, progress=False)
    table = done.table()
    text = str(table)
    assert "Always predicting 'sick', the target's most frequent label, would have an accuracy of 95.0 and a" in text
    assert "a balanced accuracy of 50.0" in text
    assert "No better than always predicting 'sick' (by two standard errors): FedAvg as trained, +prior, " in text
    cell, balanced = table.cells["FedAvg", "+prior"], done.table("balanced_accuracy").cells["FedAvg", "+prior"]
    assert cell.balanced_accuracy == pytest.approx(balanced.mean)
    _, below = text.split("balanced accuracy:\n")
    assert f"{100 * balanced.mean:.1f}" in below.splitlines()[0]
    assert max(map(len, text.splitlines()[:6])) == len(text.splitlines()[2]), "it makes the table no wider"
    assert "No better than always" in table._repr_html_()
    assert "Always predicting" not in str(done.table("log_loss"))
    assert "No better" not in str(study(tmp_path, rounds=20, learning_rate=0.1).table())


def test_a_study_tests_label_shift_run_by_run(tmp_path: Path) -> None:
    done = study(tmp_path, methods=["fedavg", "pooled"], seeds=2)
    checks = done.check()
    assert [(row["method"], row["seed"]) for row in checks.rows] == [(m, s) for m in done.methods for s in (0, 1)]
    first = checks.runs[0]
    assert {test.client for test in first.test.clients} == {"Cleveland", "Hungary", "VA"}
    assert first.test == homogeneity(done.runs[0].tallies(), 0, clients=federation().names, labels=["healthy", "sick"])
    together = np.sum([tally.confusion for tally in done.runs[0].tallies()], axis=0)
    assert first.balanced_accuracy == pytest.approx(np.mean(np.diag(together) / together.sum(axis=1)))
    assert f"{first.test.p:.2g}" in str(checks)
    assert "normally FedAvg's" in str(checks)
    assert checks._repr_html_().count("<tr>") == 5


def test_it_is_the_simulators_run_bit_for_bit(tmp_path: Path) -> None:
    (record,) = study(tmp_path / "train", model=Net, methods=["fedpals"]).runs
    run = _run(federation(), record.run.method, Net, {"rounds": 3, "seed": 0, "batch_size": 13})
    other = simulate(run, tmp_path / "simulator")
    assert run.digest == record.run.digest
    assert record.checkpoint.read_bytes() == other.checkpoint.read_bytes()
    assert record.model().read_bytes() == other.model().read_bytes()


def test_dropout_and_any_number_of_workers_give_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(1)
    one = study(tmp_path / "one", model=Net, seeds=2)
    torch.manual_seed(2)  # nothing depends on torch's own generator
    two = study(tmp_path / "two", model=Net, seeds=2, workers=2)
    for first, second in zip(one.runs, two.runs, strict=True):
        assert first.checkpoint.read_bytes() == second.checkpoint.read_bytes()
    state = torch.random.get_rng_state()
    study(tmp_path / "three", model=Net)
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_script_without_a_guard_and_with_its_own_classes_uses_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from dataclasses import dataclass\n"
        "import numpy as np\nimport fedpals as fp\nfrom torch import nn\n"
        "class Mine(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(2, 2)\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
        "@dataclass(frozen=True)\nclass Rule(fp.ClientRule):\n    pass\n"
        "y = np.tile([0, 1], 40)\nx = np.random.default_rng(0).normal(size=(80, 2)) + y[:, None]\n"
        "f = fp.Federation.of(x, y, client=np.repeat([0, 1], 40), target=[0.3, 0.7])\n"
        "s = fp.train(f, model=Mine, methods=[Rule(), 'fedavg'], rounds=1, seeds=2, workers=2, progress=False)\n"
        "print(len(s.runs))\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "4"


def test_a_study_resumes_and_a_finished_one_returns_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = study(tmp_path)
    monkeypatch.setattr("fedpals.simulation.computing.compute", lambda *_, **__: pytest.fail("computed again"))
    again = study(tmp_path)
    assert [r.path for r in again.runs] == [r.path for r in first.runs]


def test_changed_data_network_or_method_are_other_runs() -> None:
    def digest(f: fp.Federation, model: Any = "mlp", method: Any = "fedavg") -> str:
        return _run(f, method_of(method), model, {"rounds": 2, "seed": 0}).digest

    other = X.copy()
    other[17, 2] += 1e-3
    digests = {
        digest(federation()),
        digest(federation(x=other)),
        digest(federation(target=[0.36, 0.64])),
        digest(federation(scale="none")),
        digest(federation(), Net),
        digest(federation(), lambda: nn.Linear(4, 2)),
        digest(federation(), method=Halved()),
        digest(federation(), method=Halved(0.25)),
    }
    assert len(digests) == 8
    assert digest(federation()) in digests


def test_the_target_may_be_a_client_or_samples_which_are_only_tested_on(tmp_path: Path) -> None:
    done = fp.train(federation(target="Hungary"), rounds=2, out=tmp_path, progress=False)
    assert done.has_test
    assert not done.table().estimated
    assert done.runs[0].result().test_samples == 60
    samples = federation(target=(X[:50], Y[:50]))
    assert samples.test.size == 50
    assert samples.target.tolist() == [1.0, 0.0]


def test_what_people_have_their_samples_in() -> None:
    torch_data = [(torch.from_numpy(x).float(), int(y)) for x, y in zip(X[:60], Y[:60], strict=True)]
    mapping = {"A": (X[:60].tolist(), Y[:60]), "B": (torch.from_numpy(X[60:]), torch.from_numpy(Y[60:]))}
    plain = fp.Federation.of(mapping, target=T)
    assert plain.names == ("A", "B")
    assert plain.table.tolist() == [[60, 0], [30, 90]]
    listed = fp.Federation.of({"A": torch_data, "B": (X[60:], Y[60:])}, target=T)
    assert np.allclose(np.asarray(listed.dataset.x), np.asarray(plain.dataset.x), atol=1e-6)
    images = fp.Federation.of(np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1], client=[0, 0, 1, 1], target=T)
    assert images.images
    assert np.asarray(images.dataset.x).shape == (4, 1, 8, 8)


def test_numbers_are_scaled_by_the_clients_alone_and_new_inputs_alike(tmp_path: Path) -> None:
    f = federation(target="VA")
    x = np.asarray(f.dataset.x)[np.concatenate(f.clients)]
    assert np.allclose(x.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(x.std(axis=0), 1, atol=1e-5)
    done = fp.train(f, rounds=2, out=tmp_path, progress=False, methods=["fedavg"])
    model = done.best()
    assert model.scaling is not None
    assert np.allclose(model.scaling.shift, X[CLIENT != "VA"].mean(axis=0))


@pytest.mark.parametrize("impute", ["mean", "median"])
def test_missing_values_are_filled_in_by_what_clients_say(impute: Any) -> None:
    x = X.copy()
    x[::7, 1] = np.nan
    f = federation(x=x, impute=impute, target="VA")
    own = x[CLIENT != "VA", 1]
    expected = (
        np.nanmean(own)
        if impute == "mean"
        else np.sort(own[~np.isnan(own)])[(np.count_nonzero(~np.isnan(own)) - 1) // 2]
    )
    assert f.dataset.scaling is not None
    assert f.dataset.scaling.fill is not None
    assert f.dataset.scaling.fill[1] == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(np.asarray(f.dataset.x)).all()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"target": [0.5, 0.3, 0.2]}, r"target has shape \(3,\) but the clients have 2 labels"),
    ({"target": [0.5, 0.6]}, r"target sums to 1\.1, not 1"),
    ({"target": {"healthy": 0.4, "sik": 0.6}}, "'sik' is none of the labels; did you mean 'sick'"),
    ({"target": "Hungry"}, "'Hungry', which is not a client; did you mean 'Hungary'"),
    (
        {"labels": ["healthy", "sick", "dead"], "target": [0.3, 0.6, 0.1]},
        "no client has a sample of 'dead', 10% of the target",
    ),
    ({"x": np.where(np.arange(4) == 2, np.nan, X)}, r'x\[0, 2\] is missing .* give impute="median"'),
    ({"x": X[:100]}, r"y has shape \(180,\) for 100 samples"),
    ({"client": CLIENT[:5]}, r"client has shape \(5,\) for 180 samples"),
    ({"y": Y + 0.5}, r"y\[0\] is 0\.5; labels are whole numbers from 0, or names"),
    ({"y": np.where(Y, "sick", "well")}, "'well', which is not among labels: healthy, sick"),
    ({"x": np.full((180, 4), "a")}, "samples must be numbers"),
    (
        {"x": np.where(np.arange(720).reshape(180, 4) == 14, "?", X.astype(str)).astype(object)},
        r"column 2 holds '\?' \(row 3\), .* read it as one \(pandas.read_csv\(…, na_values='\?'\)\)",
    ),
    ({"x": X.astype(object)}, r"x holds object; .* give x\.astype\(float\)"),
    ({"x": np.full((180, 4), np.inf)}, r"x\[0, 0\] is inf"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_a_bad_federation_is_refused_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(fp.InputError, match=message) as caught:
        federation(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", [{False: 0.3, True: 0.7}, {0: 0.3, 1: 0.7}, [0.3, 0.7]])
def test_labels_may_be_true_and_false(target: Any) -> None:
    f = federation(y=Y == 1, labels=None, target=target)
    assert f.dataset.labels == ("False", "True")
    assert f.dataset.y.tolist() == Y.tolist()
    assert f.target.tolist() == [0.3, 0.7]


def test_a_table_whose_column_holds_no_numbers_is_refused_by_its_name() -> None:
    pandas: Any = pytest.importorskip("pandas")
    words = np.where(np.arange(180) == 7, "?", "1.0")
    with pytest.raises(fp.InputError, match=r"the column 'ca' holds '\?' \(row 7\), but samples must be numbers"):
        federation(x=pandas.DataFrame({"age": X[:, 0], "ca": words}))
    with pytest.raises(fp.InputError, match=r"the column 'ca' holds numbers .*: astype\(float\)"):
        federation(x=pandas.DataFrame({"age": X[:, 0], "ca": ["1.0"] * 180}))


def test_a_client_without_samples_is_refused() -> None:
    with pytest.raises(fp.InputError, match="client 'B' has no samples; leave it out"):
        fp.Federation.of({"A": (X, Y), "B": (X[:0], Y[:0])}, target=T)


@dataclass(frozen=True)
class Wrong(fp.ClientRule):
    def adjust_gradient(self, gradient: Tensor) -> None:  # type: ignore[override]
        """Too few arguments."""


@dataclass(frozen=True)
class Typo(fp.ClientRule):
    def adjust_gradients(self, gradient: Tensor) -> None:
        """No such hook."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": lambda: nn.Linear(4, 3)}, r"gave \(1, 3\) for one sample, not \(1, 2\)"),
        ({"model": nn.Linear(4, 2)}, "give the class or a function"),
        ({"model": lambda width: nn.Linear(4, width)}, "needs other arguments"),
        ({"methods": [Wrong()]}, "Wrong.adjust_gradient cannot be called"),
        ({"methods": [Typo()]}, "Typo.adjust_gradients is no hook of ClientRule; did you mean 'adjust_gradient'"),
        ({"methods": [Halved]}, r"give an object of it, Halved\(\)"),
        ({"methods": [3]}, "give a name, or an object"),
        ({"methods": []}, "methods is empty"),
        ({"methods": ["fedpal"]}, "did you mean 'fedpals'"),
        ({"methods": ["fedavg"], "ess": 0.5}, "none of the methods takes it"),
        ({"methods": [Halved(), Halved()]}, "'halved' appears twice"),
        ({"learning_rat": 1}, "'learning_rat' is not a setting of train; did you mean 'learning_rate'"),
        ({"rounds": 0}, "rounds is 0"),
        ({"seeds": 0}, "seeds is 0; give at least one"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(fp.InputError, match=message):
        study(tmp_path, **settings)


def test_models_refuse_other_inputs_by_name(tmp_path: Path) -> None:
    model = study(tmp_path, methods=["fedavg"]).best()
    with pytest.raises(fp.InputError, match="samples with 4 columns"):
        model.predict_proba(X[:, :3])
    with pytest.raises(fp.InputError, match="row 1 has a missing value"):
        model.predict_proba(np.where(np.arange(180)[:, None] == 1, np.nan, X))
    with pytest.raises(fp.InputError, match="no such file"):
        fp.load(tmp_path / "nothing.safetensors")


def test_another_target_is_another_prior(tmp_path: Path) -> None:
    (record,) = study(tmp_path, methods=["fedavg"]).runs
    raw, prior = (TargetModel.load(record.model(c)) for c in (Correction.RAW, Correction.PRIOR))
    own = prior.predict_proba(X, target=T)
    assert np.allclose(own, prior.predict_proba(X))
    odds = raw.predict_proba(X, target=[0.9, 0.1]) / raw.predict_proba(X)
    ratio = (odds[:, 0] / odds[:, 1]) / (0.9 / 0.1) * (raw.facts.prior[0] / raw.facts.prior[1])
    assert np.allclose(ratio, 1, rtol=1e-6)


def test_history_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need the extra 'plots'")
    done = study(tmp_path, seeds=2)
    rows = done.history()
    assert len(rows) == 2 * 2 * 3 * 3
    assert {"method", "seed", "round", "correction", "estimated_accuracy", "estimated_auc"} <= rows[0].keys()
    ax = done.plot("log_loss", correction="prior")
    assert len(ax.lines) == 2
    assert "estimated target log loss" in ax.get_ylabel()
    with pytest.raises(fp.InputError, match="metric is 'f2'"):
        done.table("f2")


def test_a_page_about_a_study_with_t_alone(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="pages need the extra 'plots'")
    from fedpals.report.watched import watched

    done = study(tmp_path / "runs", methods=["fedavg", "fedpals", Halved()], seeds=2, ess=0.5)
    page = done.report(tmp_path / "page.html").read_text(encoding="utf-8")
    match = re.search(r'class="study-data">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    (own,) = json.loads(match[1])["federations"]
    rows = {(row["method"], row["use"]): row for row in own["table"]["rows"]}
    cell = done.table().cells["FedPALS (ESS 0.5)", "+prior"]
    row = rows["FedPALS (ESS 0.5)", "+prior"]
    assert row["estimate"].startswith(f"{100 * cell.mean:.1f} ± ")
    assert row["difference"] == f"{100 * (cell.difference or 0):+.1f} ± {100 * (cell.error or 0):.1f}"
    assert {row["test"] for row in rows.values()} == {""}, "there are no target samples"
    assert own["light"] in ("green", "amber", "red")
    assert [c["title"] for c in own["charts"]] == [
        "Estimated target accuracy",
        "Effective sample size",
        "Weights of the clients",
        "Label mix",
    ]
    assert {run.method for run in watched([tmp_path / "runs"])} >= {"FedAvg", "FedPALS (ESS 0.5)"}
    with pytest.raises(fp.InputError, match=r"a page is written as \.html"):
        done.report(tmp_path / "page.pdf")


def test_settings_that_people_expect_change_the_run(tmp_path: Path) -> None:
    plain = study(tmp_path, methods=["fedavg"]).runs[0].checkpoint.read_bytes()
    for settings in ({"momentum": 0.9}, {"weight_decay": 0.1}, {"clip_norm": 0.01}, {"schedule": "cosine"}):
        assert study(tmp_path, methods=["fedavg"], **settings).runs[0].checkpoint.read_bytes() != plain
    assert Run.of(method="fedavg").keys().keys().isdisjoint({"momentum", "weight_decay", "clip_norm", "schedule"})
