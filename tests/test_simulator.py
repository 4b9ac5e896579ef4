"""Whole runs: propositions, determinism, refusal of bad updates, resume."""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch.nn.functional import cross_entropy

from fedpals import checkpoint, solve
from fedpals.data import Dataset, Federation
from fedpals.errors import InputError
from fedpals.privacy import noisy_counts, repair
from fedpals.record import Record
from fedpals.run import Run
from fedpals.server import DivergedError
from fedpals.shift import FeatureSums, Tally, gaussian_head, pooled, target_accuracy
from fedpals.shift.calibration import calibrate
from fedpals.simulator import Simulation, State, simulate
from fedpals.training import Update
from fedpals.worker import Job, ProcessPool, SerialPool, Worker

SMALL: dict[str, Any] = {"task": "digits", "labels_per_client": 3, "clients": 6, "model": "logistic", "rounds": 3}

FEDAVG_AND_FEDPALS: tuple[tuple[str, dict[str, Any]], ...] = (("fedavg", {}), ("fedpals", {"lam": 0.0}))


def final_vector(record: Record) -> torch.Tensor:
    return State.load(record.checkpoint).vector


def test_fedpals_at_infinite_lambda_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    fedavg = simulate(Run(**SMALL, method="fedavg"), tmp_path)
    fedpals = simulate(Run(**SMALL, method="fedpals", lam=math.inf), tmp_path)
    assert torch.equal(final_vector(fedavg), final_vector(fedpals))


def federation_with_equal_class_conditionals() -> Federation:
    """Clients that hold the same few samples of each label in different numbers: label shift exactly."""
    rng = np.random.default_rng(0)
    per_label, labels = 4, 3
    base = rng.normal(size=(labels, per_label, 5)).astype(np.float32)
    copies = [[3, 1, 0], [0, 2, 2], [1, 1, 4]]
    x, y, clients, at = [], [], [], 0
    for row in copies:
        for label, times in enumerate(row):
            x.append(np.tile(base[label], (times, 1)))
            y.append(np.full(times * per_label, label))
        size = sum(row) * per_label
        clients.append(np.arange(at, at + size))
        at += size
    held = rng.normal(size=(6, 5)).astype(np.float32)
    x.append(held)
    y.append(np.array([0, 1, 2, 0, 1, 2]))
    everything = np.concatenate(y)
    dataset = Dataset("toy", np.concatenate(x), everything, ("a", "b", "c"), {"train": np.arange(at)})
    target = np.array([0.5, 0.2, 0.3]) @ (np.array(copies) / np.array(copies).sum(axis=1, keepdims=True))
    return Federation(dataset, tuple(clients), np.arange(at, at + 3), np.arange(at + 3, at + 6), target)


def test_a_fedsgd_round_with_covered_target_is_a_gradient_step_on_the_target(tmp_path: Path) -> None:
    """Proposition 1: Σ α_i w_i = w − η ∇R_T, with R_T = Σ_y T(y) E[ℓ | Y = y]."""
    del tmp_path
    run = Run(**{**SMALL, "method": "fedsgd+fedpals", "lam": 0.0, "learning_rate": 0.3})
    worker = Worker(run)
    federation = federation_with_equal_class_conditionals()
    worker.federation = federation
    worker.model = type(worker.model)(torch.nn.Linear(5, 3))
    simulation = Simulation(worker, SerialPool(worker))
    start = simulation.state.vector.clone()
    simulation.advance()
    assert federation.coverage.covered
    worker.model.load(start)
    x, y = (torch.from_numpy(np.asarray(a)) for a in (federation.dataset.x, federation.dataset.y))
    everyone = torch.from_numpy(np.concatenate(federation.clients))
    x, y = x[everyone], y[everyone]
    risk = sum(
        t * cross_entropy(worker.model.network(x[y == label]), y[y == label])
        for label, t in enumerate(federation.target.tolist())
    )
    assert isinstance(risk, torch.Tensor)
    expected = start - 0.3 * worker.model.gradient(risk)
    assert torch.allclose(simulation.state.vector, expected, atol=2e-7)


@pytest.mark.parametrize("rule", ["fedavg", "fedsgd", "fedprox", "scaffold", "fedrs"])
@pytest.mark.parametrize("weighting", ["", "afl", "fedpals"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_every_rule_runs_with_every_weighting(rule: str, weighting: str, participation: float, tmp_path: Path) -> None:
    name = "+".join(part for part in (rule, weighting) if part)
    record = simulate(Run(**SMALL, method=name, participation=participation), tmp_path)
    told = record.result()["selected"]
    assert set(told) == {"raw", "prior", "gaussian"}
    assert all(0 <= s["test"]["accuracy"] <= 1 for s in told.values())
    assert torch.isfinite(final_vector(record)).all()


def test_oracle_clients_follow_the_target(tmp_path: Path) -> None:
    run = Run(**SMALL, method="oracle")
    simulate(run, tmp_path)
    counts = Worker(run).federation.counts
    pooled = counts.sizes @ np.asarray(counts.marginals) / counts.total
    assert pooled == pytest.approx(Worker(run).federation.target, abs=0.02)


def test_clients_without_weight_are_not_trained(tmp_path: Path) -> None:
    record = simulate(Run(**{**SMALL, "clients": 10}, method="fedpals", lam=0.0), tmp_path)
    weights = record.weights()
    used = sum(a > 0 for a in weights[0]["alpha"])
    assert used < 9
    assert [line["trained"] for line in record.metrics()] == [used] * 3
    assert len(weights) == 1


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "afl"])
def test_the_same_bits_with_one_or_two_workers(method: str, tmp_path: Path) -> None:
    run = Run(**SMALL, method=method)
    alone = simulate(run, tmp_path / "one")
    with ProcessPool(run, 2) as pool:
        shared = simulate(run, tmp_path / "two", make_pool=lambda _: pool)
    assert torch.equal(final_vector(alone), final_vector(shared))
    assert alone.result() == shared.result()


@pytest.mark.parametrize("method", ["scaffold+fedpals", "afl"])
def test_a_stopped_run_continues_with_the_same_bits(method: str, tmp_path: Path) -> None:
    run = Run(**{**SMALL, "rounds": 6, "participation": 0.6}, method=method)
    unbroken = simulate(run, tmp_path / "a")
    rounds = iter(range(100))
    half = simulate(run, tmp_path / "b", stop=lambda: next(rounds) == 3)
    assert half.unfinished
    assert len(half.metrics()) == 3
    whole = simulate(run, tmp_path / "b")
    assert torch.equal(final_vector(unbroken), final_vector(whole))
    assert unbroken.result() == whole.result()

    def without_time(record: Record) -> list[dict[str, Any]]:
        return [{k: v for k, v in line.items() if k != "seconds"} for line in record.metrics()]

    assert without_time(unbroken) == without_time(whole)


def test_a_killed_run_continues_with_the_same_bits(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 40, "model": "cnn"}
    code = (
        "import sys; from pathlib import Path; from fedpals.run import Run; from fedpals.simulator import simulate\n"
        f"simulate(Run(**{settings!r}, method='fedavg'), Path(sys.argv[1]))"
    )
    run = Run(**settings, method="fedavg")
    record = Record(run, tmp_path / "killed")
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "killed")])
    deadline = time.monotonic() + 60
    while not record.checkpoint.is_file() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert record.unfinished, "the run must be killed in the middle for this test to say anything"
    continued = simulate(run, tmp_path / "killed")
    unbroken = simulate(run, tmp_path / "unbroken")
    assert torch.equal(final_vector(unbroken), final_vector(continued))
    assert [m["round"] for m in continued.metrics()] == list(range(1, 41))


def test_a_finished_run_is_not_computed_again(tmp_path: Path) -> None:
    run = Run(**SMALL, method="fedavg")
    simulate(run, tmp_path)
    seen: list[Any] = []
    simulate(run, tmp_path, callbacks=[seen.append])
    assert seen == []


class Sabotaged:
    """Some clients send nonsense."""

    def __init__(self, worker: Worker, spoil: dict[int, Any]) -> None:
        self.worker, self.spoil = worker, spoil
        self.asked: list[int] = []

    def train(self, jobs: Sequence[Job]) -> Iterable[Update]:
        for job in jobs:
            self.asked.append(job.client)
            update = self.worker.train(job)
            yield replace(update, vector=self.spoil[job.client](update.vector)) if job.client in self.spoil else update

    def losses(self, jobs: Sequence[Job]) -> Iterable[float]:
        return map(self.worker.loss, jobs)


def test_bad_updates_are_refused_and_the_rest_weighed_afresh() -> None:
    worker = Worker(Run(**SMALL, method="fedavg"))
    pool = Sabotaged(worker, {1: lambda v: v * math.nan, 3: lambda v: v[:-1]})
    simulation = Simulation(worker, pool)
    line = simulation.advance()
    assert [r["client"] for r in line["refused"]] == [1, 3]
    assert "NaN or infinite" in line["refused"][0]["reason"]
    assert "parameters instead of" in line["refused"][1]["reason"]
    assert line["weights"]["participants"] == [0, 2, 4]
    sizes = worker.federation.counts.sizes[[0, 2, 4]]
    assert line["weights"]["alpha"] == (sizes / sizes.sum()).tolist()
    assert torch.isfinite(simulation.state.vector).all()


def test_a_client_that_gets_weight_through_a_refusal_is_trained_then() -> None:
    worker = Worker(Run(**{**SMALL, "clients": 10}, method="fedpals", lam=0.0))
    first = Simulation(worker, SerialPool(worker))
    told = first.advance()["weights"]
    weights = dict(zip(told["participants"], told["alpha"], strict=True))
    heaviest = max(weights, key=lambda i: weights[i])
    pool = Sabotaged(worker, {heaviest: lambda v: v * math.inf})
    simulation = Simulation(worker, pool)
    told = simulation.advance()["weights"]
    assert heaviest not in told["participants"]
    assert sum(told["alpha"]) == pytest.approx(1)
    assert {i for i, a in zip(told["participants"], told["alpha"], strict=True) if a > 0} <= set(pool.asked)


@pytest.mark.parametrize("held_out", [None, 0.25])
def test_a_run_that_diverges_is_finished_with_what_was_selected_before(held_out: float | None, tmp_path: Path) -> None:
    run = Run(**{**SMALL, "rounds": 4, "held_out": held_out}, method="fedavg")
    calls = {"n": 0}

    class Failing(Sabotaged):
        def train(self, jobs: Sequence[Job]) -> Iterable[Update]:
            calls["n"] += 1
            self.spoil = {job.client: lambda v: v * math.nan for job in jobs} if calls["n"] == 3 else {}
            return super().train(jobs)

    record = simulate(run, tmp_path, make_pool=lambda worker: Failing(worker, {}))
    result, unbroken = record.result(), simulate(run, tmp_path / "unbroken")
    assert (result["rounds"], result["diverged"], "diverged" in unbroken.result()) == (2, True, False)
    lines = record.metrics()
    assert [line["loss"] for line in lines] == [line["loss"] for line in unbroken.metrics()[:2]]
    best = max(lines, key=lambda line: line["raw"]["validation"]["accuracy"])
    assert result["selected"]["raw"]["test"] == best["raw"]["test"]
    assert "recommended" not in result["selected"]
    check_saved_model(record, "raw", "model") if held_out is None else record.tallies()


def test_a_client_whose_loss_overflows_is_refused(tmp_path: Path) -> None:
    run = Run(**{**SMALL, "rounds": 1}, method="fedavg")

    class Overflowing(SerialPool):
        def train(self, jobs: Sequence[Job]) -> Iterable[Update]:
            updates = zip(jobs, super().train(jobs), strict=True)
            return (replace(u, loss=math.inf) if job.client == 2 else u for job, u in updates)

    (line,) = simulate(run, tmp_path, make_pool=Overflowing).metrics()
    assert line["refused"] == [{"client": 2, "reason": "its loss is inf"}]
    assert math.isfinite(line["loss"])


def test_what_diverges_at_once_has_nothing_to_select(tmp_path: Path) -> None:
    run = Run(**{**SMALL, "rounds": 4}, method="fedavg")
    spoil = {i: lambda v: v * math.nan for i in range(10)}
    with pytest.raises(DivergedError, match=r"round 1: no client .* try a smaller learning_rate than"):
        simulate(run, tmp_path, make_pool=lambda worker: Sabotaged(worker, spoil))
    assert not Record(run, tmp_path).finished


def test_early_stopping_and_selection_use_validation_only(tmp_path: Path) -> None:
    record = simulate(Run(**{**SMALL, "rounds": 60, "patience": 4}, method="fedavg"), tmp_path)
    lines = record.metrics()
    selections = {name: record.result()["selected"][name] for name in ("raw", "prior")}
    for name, selected in selections.items():
        accuracies = [line[name]["validation"]["accuracy"] for line in lines]
        assert selected["round"] == accuracies.index(max(accuracies)) + 1
        assert selected["test"] == lines[selected["round"] - 1][name]["test"]
    newest = max(s["round"] for s in selections.values())
    assert len(lines) == min(60, newest + 4)


def test_early_stopping_needs_no_target_sample_where_clients_hold_samples_out(tmp_path: Path) -> None:
    record = simulate(Run(**{**SMALL, "rounds": 60, "patience": 4, "held_out": 0.25}, method="fedavg"), tmp_path)
    told = {name: s["round"] for name, s in record.result()["selected"].items() if not name.startswith("gaussian")}
    newest = max(number for name, number in told.items() if name.endswith("/estimate"))
    assert len(record.metrics()) == min(60, newest + 4)
    assert len(record.metrics()) < 60


def test_the_saved_models_are_the_selected_ones(tmp_path: Path) -> None:
    run = Run(**SMALL, method="fedavg")
    record = simulate(run, tmp_path)
    for name, file in (("raw", "model"), ("prior", "model-prior"), ("gaussian", "model-gaussian")):
        check_saved_model(record, name, file)


def check_saved_model(record: Record, name: str, file: str) -> None:
    """Use a saved model as its file says, on the test set."""
    worker = Worker(record.run)
    x, y = worker.samples(worker.federation.test)
    tensors, facts = checkpoint.load(record.path / f"{file}.safetensors")
    shift = tensors.pop("prior_shift", torch.zeros(10))
    temperature = tensors.pop("temperature", 1.0)
    stands_for = tensors.pop("stands_for", torch.arange(10))
    displaced = tensors.pop("displaced_axes", None), tensors.pop("displaced_centres", None)
    worker.model.network.load_state_dict(tensors)
    outputs = worker.model.logits(x).double() / temperature + shift
    if displaced[0] is not None and displaced[1] is not None:
        features = worker.model.features(x)
        assert features is not None
        apart = (features.double() @ displaced[0].T)[:, None] - displaced[1]
        outputs += torch.where(stands_for == torch.arange(10), 0.0, 0.5 * apart.square().sum(dim=2))
    predicted = stands_for[outputs.argmax(dim=1)]
    told = record.result()["selected"][name]
    assert float((predicted == y).double().mean()) == pytest.approx(told["test"]["accuracy"])
    assert facts["round"] == told["round"]


HELD_OUT = Run(**{**SMALL, "rounds": 6, "batch_size": 8}, method="fedpals", ess=0.5, held_out=0.25)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return simulate(HELD_OUT, tmp_path_factory.mktemp("held out"))


def test_every_correction_is_selected_by_every_rule(held_out: Record) -> None:
    lines, selected = held_out.metrics(), held_out.result()["selected"]
    scores: dict[str, Callable[[Any], float]] = {
        "": lambda told: told["validation"]["accuracy"],
        "/estimate": lambda told: told["clients"]["target_accuracy"],
        "/pooled": lambda told: told["clients"]["accuracy"],
    }
    corrections = ("raw", "prior", "calibrated")
    last = {"gaussian", "gaussian/estimate", "recommended"}
    assert set(selected) == {correction + rule for correction in corrections for rule in scores} | last
    assert {selected[name]["round"] for name in last} == {len(lines)}
    for correction in corrections:
        for rule, score in scores.items():
            found = [score(line[correction]) for line in lines]
            chosen = selected[correction + rule]
            assert (chosen["round"], chosen["score"]) == (found.index(max(found)) + 1, max(found))
            assert chosen["test"] == lines[chosen["round"] - 1][correction]["test"]


def test_clients_estimate_target_accuracy_from_samples_that_took_no_part_in_training(held_out: Record) -> None:
    federation = Worker(HELD_OUT).federation
    whole = HELD_OUT.data_task.federation(HELD_OUT.seed)
    y = federation.dataset.y
    for rest, kept, all_of_it in zip(federation.clients, federation.held_out, whole.clients, strict=True):
        assert sorted([*rest, *kept]) == sorted(all_of_it)
        assert (np.bincount(y[kept], minlength=10) == np.bincount(y[all_of_it], minlength=10) // 4).all()
    assert held_out.read_json("weights.json")["counts"] == federation.table.tolist()
    chosen = held_out.result()["selected"]["raw/estimate"]
    told = pooled(held_out.tallies())
    assert target_accuracy(told, federation.target).value == chosen["score"]
    estimate = target_accuracy(told, federation.target)
    line = held_out.metrics()[chosen["round"] - 1]["raw"]["clients"]
    assert line["standard_error"] == pytest.approx(estimate.standard_error)
    assert line["accuracy"] == told.correct.sum() / told.samples.sum()


def test_the_models_that_are_saved_are_those_that_the_estimate_selected(held_out: Record) -> None:
    worker = Worker(HELD_OUT)
    federation = worker.federation
    everything = {
        "test": worker.samples(federation.test),
        "clients": worker.samples(np.concatenate(federation.held_out)),
    }
    for correction in ("raw", "prior", "calibrated"):
        told = held_out.result()["selected"][f"{correction}/estimate"]
        name = "model" if correction == "raw" else f"model-{correction}"
        tensors, facts = checkpoint.load(held_out.path / f"{name}.safetensors")
        shift = tensors.pop("prior_shift", torch.zeros(10))
        temperature = tensors.pop("temperature", torch.ones(()))
        worker.model.network.load_state_dict(tensors)
        outputs = {
            part: (worker.model.logits(x).double() / temperature + shift).numpy() for part, (x, _) in everything.items()
        }
        accuracy = (outputs["test"].argmax(axis=1) == everything["test"][1].numpy()).mean()
        assert accuracy == pytest.approx(told["test"]["accuracy"])
        tally = Tally.of(everything["clients"][1].numpy(), outputs["clients"])
        assert target_accuracy(tally, federation.target).value == pytest.approx(told["score"])
        assert facts["round"] == told["round"]


def test_the_gaussian_head_is_made_of_what_the_participants_of_the_last_round_train_with(held_out: Record) -> None:
    worker = Worker(HELD_OUT)
    tensors, _ = checkpoint.load(held_out.path / "model-gaussian.safetensors")
    worker.model.load(State.load(held_out.checkpoint).vector)
    sums = []
    for i in range(len(worker.federation.clients)):
        x, y = worker.client(i)
        sums.append(FeatureSums.of(x.flatten(1).double().numpy(), y.numpy(), 10))  # a logistic model sees pixels
    head = gaussian_head(sums, worker.federation.target)
    np.testing.assert_allclose(tensors["1.weight"], head.weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(tensors["1.bias"], head.bias, rtol=1e-4)
    x, y = worker.samples(np.concatenate(worker.federation.held_out))
    tally = Tally.of(y.numpy(), head(x.flatten(1).double().numpy()))
    told = held_out.result()["selected"]["gaussian/estimate"]["score"]
    assert told == pytest.approx(target_accuracy(tally, worker.federation.target).value)


UNKNOWN = Run(
    task="digits", beta=2.0, clients=4, model="logistic", rounds=12, method="fedpals", ess=0.5, held_out=0.5,
    learning_rate=0.1, batch_size=8,
)  # fmt: skip


@pytest.mark.parametrize("estimate", ["bbse", "em"])
def test_a_target_that_is_unknown_is_learned_from_its_inputs(estimate: str, tmp_path: Path) -> None:
    run = UNKNOWN.model_copy(update={"target_estimate": estimate})
    record = simulate(run, tmp_path / "unbroken")
    told, federation = record.read_json("weights.json"), run.build_federation()
    assert told["exact_target"] == federation.target.tolist()
    clients = federation.table.sum(axis=0) / federation.table.sum()
    wrong = [np.abs(np.asarray(T) - federation.target).sum() for T in (told["target"], clients)]
    assert wrong[0] < 0.6 * wrong[1]
    first, last = (np.array(record.metrics()[i]["weights"]["alpha"]) for i in (0, -1))
    known = solve(federation.table, federation.target, ess=0.5).alpha
    assert np.abs(last - known).sum() < np.abs(first - known).sum()  # which are FedAvg's
    rounds = iter(range(100))
    assert simulate(run, tmp_path / "stopped", stop=lambda: next(rounds) == 5).unfinished
    resumed = simulate(run, tmp_path / "stopped")
    assert resumed.result() == record.result()
    assert resumed.read_json("weights.json") == told


def test_labels_of_the_target_do_not_take_part_in_the_estimate() -> None:
    worker = Worker(UNKNOWN.model_copy(update={"target_estimate": "bbse"}))
    dataset, validation = worker.federation.dataset, worker.federation.validation
    start = worker.model.vector.clone()
    found = []
    for labels in (dataset.y, np.where(np.isin(np.arange(len(dataset.y)), validation), 0, dataset.y)):
        worker.federation = replace(worker.federation, dataset=replace(dataset, y=labels))
        simulation = Simulation(worker, SerialPool(worker), State(0, start.clone()))
        for _ in range(3):
            simulation.advance()
        found.append(simulation.server.target)
    np.testing.assert_array_equal(found[0], found[1])


def test_the_recommended_layer_is_the_geometric_mean_of_the_networks_own_and_the_gaussian_head(tmp_path: Path) -> None:
    record = simulate(UNKNOWN, tmp_path)
    worker = Worker(UNKNOWN)
    simulation = Simulation(worker, SerialPool(worker), State.load(record.checkpoint))
    target, y = simulation.server.target, simulation.labels("clients")
    own = simulation.logits(simulation.state.model)
    tensors, _ = checkpoint.load(record.model.with_stem("model-gaussian"))
    assert tensors.pop("stands_for").tolist() == list(range(10))  # the clients have all labels of the target
    worker.model.network.load_state_dict(tensors)
    gaussian = simulation.logits(worker.model.vector.clone())
    calibrations = (
        calibrate(own["clients"], y, target, simulation.server.prior_shift),
        calibrate(gaussian["clients"], y, target, np.where(target > 0, 0.0, -np.inf)),
    )
    p, q = (softmax(c(z["test"]), axis=1) for c, z in zip(calibrations, (own, gaussian), strict=True))
    found = record.result()["selected"]["recommended"]["test"]["accuracy"]
    assert found == pytest.approx((np.sqrt(p * q).argmax(axis=1) == simulation.labels("test")).mean(), abs=1e-9)
    check_saved_model(record, "recommended", "model-recommended")


def test_a_label_that_nobody_has_is_left_to_the_gaussian_head(tmp_path: Path) -> None:
    record = simulate(Run(**{**SMALL, "labels_per_client": 2, "held_out": 0.25}, method="fedavg"), tmp_path)
    counts, target = (np.array(record.read_json("weights.json")[key]) for key in ("counts", "target"))
    assert (counts.sum(axis=0) == 0)[target > 0].any()
    selected = record.result()["selected"]
    assert selected["recommended"]["test"] == selected["gaussian"]["test"]
    for name in ("gaussian", "recommended"):
        assert "displaced_axes" in checkpoint.load(record.path / f"model-{name}.safetensors")[0]
        check_saved_model(record, name, f"model-{name}")


def test_a_label_that_only_the_last_participants_lack_is_left_to_the_network(tmp_path: Path) -> None:
    run = Run(**{**SMALL, "seed": 1, "participation": 0.4, "held_out": 0.25, "rounds": 2}, method="fedavg")
    record = simulate(run, tmp_path)
    selected, line = record.result()["selected"], record.metrics()[-1]["calibrated"]
    assert selected["recommended"]["test"] == line["test"]
    assert selected["recommended"]["score"] == line["clients"]["target_accuracy"]
    check_saved_model(record, "recommended", "model-recommended")


class Odd(torch.nn.Module):
    """A network that goes on after its last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layer(x.flatten(1)) * 0.5)


def odd(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    del shape, classes
    return Odd()


def test_a_network_that_does_not_end_in_a_linear_layer_has_no_gaussian_head(tmp_path: Path) -> None:
    record = simulate(Run(**{**SMALL, "model": f"{__name__}:odd"}, method="fedavg"), tmp_path)
    assert set(record.result()["selected"]) == {"raw", "prior"}
    assert not (record.path / "model-gaussian.safetensors").exists()


def test_momentum_repeats_a_share_of_the_last_move(tmp_path: Path) -> None:
    run = Run(**SMALL, method="fedavg", server_momentum=0.6)
    worker = Worker(run)
    simulation = Simulation(worker, SerialPool(worker))
    before, velocity = simulation.state.vector.clone(), torch.zeros_like(simulation.state.vector)
    for number in range(1, SMALL["rounds"] + 1):
        jobs = [Job(number, i, before) for i in range(len(worker.federation.clients))]
        sizes = torch.from_numpy(worker.federation.counts.sizes / worker.federation.counts.total)
        updates = torch.stack([worker.train(job).vector.double() for job in jobs])
        velocity = 0.6 * velocity + (sizes @ updates).float() - before
        simulation.advance()
        assert torch.allclose(simulation.state.vector, before + velocity, atol=1e-6)
        before = simulation.state.vector.clone()
    rounds = iter(range(100))
    assert simulate(run, tmp_path, stop=lambda: next(rounds) == 2).unfinished
    assert torch.equal(final_vector(simulate(run, tmp_path)), before)


def test_the_running_mean_is_what_is_evaluated_and_never_what_is_trained(tmp_path: Path) -> None:
    plain, averaged = (Run(**SMALL, method="fedavg", averaging=decay) for decay in (None, 0.75))
    vectors: list[torch.Tensor] = []
    means: list[torch.Tensor] = []

    def advance(run: Run, seen: list[torch.Tensor]) -> None:
        worker = Worker(run)
        simulation = Simulation(worker, SerialPool(worker))
        for _ in range(SMALL["rounds"]):
            line = simulation.advance()
            seen.append(simulation.state.model)
            worker.model.load(simulation.state.model)
            x, y = worker.samples(worker.federation.test)
            right = (worker.model.logits(x).argmax(dim=1) == y).double().mean()
            assert line["raw"]["test"]["accuracy"] == pytest.approx(float(right))
        assert torch.equal(simulation.state.vector, vectors[-1])

    advance(plain, vectors)
    advance(averaged, means)
    expected = vectors[0].double()
    for number, (vector, mean) in enumerate(zip(vectors, means, strict=True), 1):
        decay = 0.0 if number == 1 else min(0.75, number / (number + 5))
        expected = decay * expected + (1 - decay) * vector.double()
        assert torch.allclose(mean.double(), expected, atol=1e-7)
    rounds = iter(range(100))
    assert simulate(averaged, tmp_path / "stopped", stop=lambda: next(rounds) == 2).unfinished
    resumed, unbroken = simulate(averaged, tmp_path / "stopped"), simulate(averaged, tmp_path / "unbroken")
    assert resumed.result() == unbroken.result()


@pytest.mark.parametrize("how", ["two workers", "stopped"])
def test_the_same_bits_with_samples_held_out(how: str, held_out: Record, tmp_path: Path) -> None:
    if how == "two workers":
        with ProcessPool(HELD_OUT, 2) as pool:
            again = simulate(HELD_OUT, tmp_path, make_pool=lambda _: pool)
    else:
        rounds = iter(range(100))
        assert simulate(HELD_OUT, tmp_path, stop=lambda: next(rounds) == 2).unfinished
        again = simulate(HELD_OUT, tmp_path)
    assert again.result() == held_out.result()
    assert [t.to_json() for t in again.tallies()] == [t.to_json() for t in held_out.tallies()]
    for name in ("model", "model-prior", "model-calibrated", "model-gaussian", "model-recommended"):
        ours, theirs = (checkpoint.load(r.path / f"{name}.safetensors")[0] for r in (held_out, again))
        assert all(torch.equal(ours[key], theirs[key]) for key in ours.keys() | theirs.keys())


def test_a_share_that_holds_nothing_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"held_out is 0\.001: no client .* give a larger share"):
        simulate(Run(**SMALL, method="fedavg", held_out=0.001), tmp_path)


def test_private_counts_are_all_that_the_server_knows_of_the_clients(tmp_path: Path) -> None:
    exact, private = (
        simulate(Run(**SMALL, method="fedpals", ess=0.5, count_epsilon=epsilon), tmp_path) for epsilon in (None, 0.1)
    )
    run, known = private.run, private.read_json("weights.json")
    federation = Worker(run).federation
    assert known["exact_counts"] == exact.read_json("weights.json")["counts"] == federation.table.tolist()
    repaired = repair(noisy_counts(federation.counts, 0.1, run.seed))
    assert known["counts"] == np.asarray(repaired.table).tolist() != known["exact_counts"]
    told = private.weights()[0]
    alpha = np.zeros(len(federation.clients))
    alpha[told["participants"]] = told["alpha"]  # noise may hide a client, whose size is then 0
    assert alpha == pytest.approx(solve(repaired, federation.target, ess=0.5).alpha)
    assert not np.allclose(alpha, exact.weights()[0]["alpha"], atol=1e-3)
    off = known["spread"]
    assert all(low - 1e-9 <= high for low, high in zip(off["lower"], off["upper"], strict=True))
    assert 0 < off["moved"] < 1
    assert "exact_counts" not in exact.read_json("weights.json")


def test_an_empty_client_is_not_trained_whatever_its_noisy_counts_say() -> None:
    worker = Worker(Run(**SMALL, method="fedavg", count_epsilon=1.0))
    federation = worker.federation
    worker.federation = replace(federation, clients=(np.empty(0, dtype=np.int64), *federation.clients[1:]))
    simulation = Simulation(worker, SerialPool(worker))
    counts = simulation.server.counts
    simulation.server.counts = replace(
        counts, table=np.maximum(np.asarray(counts.table), 1.0), sizes=np.maximum(counts.sizes, 10.0)
    )
    assert 0 not in simulation.advance()["weights"]["participants"]


def test_counts_with_hardly_any_noise_change_next_to_nothing(tmp_path: Path) -> None:
    exact, private = (
        simulate(Run(**SMALL, method="fedpals", ess=0.5, count_epsilon=epsilon), tmp_path) for epsilon in (None, 100.0)
    )
    assert private.read_json("weights.json")["counts"] == exact.read_json("weights.json")["counts"]
    assert torch.equal(final_vector(private), final_vector(exact))


def test_the_synthetic_experiment(tmp_path: Path) -> None:
    """FedPALS is at least as good as FedAvg at every δ, and accuracy falls as d(T, S) grows."""
    means: dict[str, list[float]] = {"fedavg": [], "fedpals": []}
    distances = []
    for delta in (0.0, 0.25, 0.5, 0.75, 1.0):
        for method, extra in FEDAVG_AND_FEDPALS:
            accuracies = []
            for seed in range(5):
                settings = {"rounds": 40, "batch_size": 8, "delta": delta, "seed": seed, **extra}
                run = Run(task="synthetic", method=method, **settings)
                record = simulate(run, tmp_path)
                accuracies.append(record.result()["selected"]["raw"]["test"]["accuracy"])
            means[method].append(float(np.mean(accuracies)))
        distances.append(record.result()["projection_distance"])
    assert distances == sorted(distances)
    assert all(p >= a - 1e-9 for p, a in zip(means["fedpals"], means["fedavg"], strict=True)), means
    assert means["fedpals"][0] > means["fedpals"][-1] + 0.003, means
    assert all(a >= b - 0.002 for a, b in itertools.pairwise(means["fedpals"])), means


@pytest.mark.skipif(not Path("/usr/share/datasets/fashion-mnist").is_dir(), reason="Fashion-MNIST is not installed")
def test_fedpals_is_well_above_fedavg_on_fashion_mnist(tmp_path: Path) -> None:
    accuracies: dict[str, list[float]] = {}
    for method, extra in FEDAVG_AND_FEDPALS:
        for seed in range(3):
            sizes = {"samples_per_client": 300, "validation_samples": 300, "test_samples": 600}
            settings = {"rounds": 25, "batch_size": 16, "seed": seed, **sizes, **extra}
            run = Run(task="fashion-mnist", labels_per_client=3, method=method, **settings)
            record = simulate(run, tmp_path)
            accuracies.setdefault(method, []).append(record.result()["selected"]["raw"]["test"]["accuracy"])
    assert np.mean(accuracies["fedpals"]) > np.mean(accuracies["fedavg"]) + 0.05, accuracies
