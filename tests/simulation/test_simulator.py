"""Whole runs: propositions, determinism, refusal of bad updates, resume."""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedpals.data import Dataset, Federation
from fedpals.engine.client import Update
from fedpals.engine.server import DivergedError
from fedpals.simulation.pools import ProcessPool, SerialPool
from fedpals.simulation.record import Record
from fedpals.simulation.rounds import Simulation
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.worker import Job, Worker
from tests.runs import SMALL, check_saved_model, final_vector, lines_of, result_of

FEDAVG_AND_FEDPALS: tuple[tuple[str, dict[str, Any]], ...] = (("fedavg", {}), ("fedpals", {"lam": 0.0}))


def test_fedpals_at_infinite_lambda_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    fedavg = simulate(Run.of(**SMALL, method="fedavg"), tmp_path)
    fedpals = simulate(Run.of(**SMALL, method="fedpals", lam=math.inf), tmp_path)
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


def test_a_worker_computes_in_one_thread() -> None:
    code = (
        "import numpy as np, torch, threadpoolctl\n"
        "from fedpals.simulation.run import Run\nfrom fedpals.simulation.worker import Worker\n"
        f"Worker(Run.of(**{SMALL}, method='fedavg'))\n"
        "threads = [pool['num_threads'] for pool in threadpoolctl.threadpool_info() if pool['user_api'] == 'blas']\n"
        "print(torch.get_num_threads(), *threads)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert set(done.stdout.split()) == {"1"}, done.stderr


def test_a_fedsgd_round_with_covered_target_is_a_gradient_step_on_the_target(tmp_path: Path) -> None:
    """Proposition 1: Σ α_i w_i = w − η ∇R_T, with R_T = Σ_y T(y) E[ℓ | Y = y]."""
    del tmp_path
    run = Run.of(**{**SMALL, "method": "fedsgd+fedpals", "lam": 0.0, "learning_rate": 0.3})
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
    record = simulate(Run.of(**SMALL, method=name, participation=participation), tmp_path)
    told = result_of(record)["selected"]
    assert set(told) == {"raw", "prior", "gaussian"}
    assert all(0 <= s["test"]["accuracy"] <= 1 for s in told.values())
    assert torch.isfinite(final_vector(record)).all()


def test_oracle_clients_follow_the_target(tmp_path: Path) -> None:
    run = Run.of(**SMALL, method="oracle")
    simulate(run, tmp_path)
    counts = Worker(run).federation.counts
    pooled = counts.sizes @ np.asarray(counts.marginals) / counts.total
    assert pooled == pytest.approx(Worker(run).federation.target, abs=0.02)


def test_clients_without_weight_are_not_trained(tmp_path: Path) -> None:
    record = simulate(Run.of(**{**SMALL, "clients": 10}, method="fedpals", lam=0.0), tmp_path)
    weights = record.weights()
    used = sum(a > 0 for a in weights[0].alpha)
    assert used < 9
    assert [line["trained"] for line in lines_of(record)] == [used] * 3
    assert len(weights) == 1


@pytest.mark.parametrize(("method", "model"), [("fedavg", "cnn"), ("scaffold", "logistic"), ("afl", "cnn")])
def test_the_same_bits_with_one_or_two_workers(method: str, model: str, tmp_path: Path) -> None:
    run = Run.of(**{**SMALL, "model": model}, method=method)
    alone = simulate(run, tmp_path / "one")
    with ProcessPool(run, 2) as pool:
        shared = simulate(run, tmp_path / "two", make_pool=lambda _: pool)
    assert torch.equal(final_vector(alone), final_vector(shared))
    assert result_of(alone) == result_of(shared)


@pytest.mark.parametrize("method", ["scaffold+fedpals", "afl"])
def test_a_stopped_run_continues_with_the_same_bits(method: str, tmp_path: Path) -> None:
    run = Run.of(**{**SMALL, "rounds": 6, "participation": 0.6}, method=method)
    unbroken = simulate(run, tmp_path / "a")
    rounds = iter(range(100))
    half = simulate(run, tmp_path / "b", stop=lambda: next(rounds) == 3)
    assert half.unfinished
    assert len(lines_of(half)) == 3
    whole = simulate(run, tmp_path / "b")
    assert torch.equal(final_vector(unbroken), final_vector(whole))
    assert result_of(unbroken) == result_of(whole)

    def without_time(record: Record) -> list[dict[str, Any]]:
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines_of(record)]

    assert without_time(unbroken) == without_time(whole)


def test_a_killed_run_continues_with_the_same_bits(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 40, "model": "cnn"}
    code = (
        "import sys; from pathlib import Path; from fedpals.simulation.run import Run\n"
        "from fedpals.simulation.simulator import simulate\n"
        f"simulate(Run.of(**{settings!r}, method='fedavg'), Path(sys.argv[1]))"
    )
    run = Run.of(**settings, method="fedavg")
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
    assert [m["round"] for m in lines_of(continued)] == list(range(1, 41))


def test_a_finished_run_is_not_computed_again(tmp_path: Path) -> None:
    run = Run.of(**SMALL, method="fedavg")
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
    worker = Worker(Run.of(**SMALL, method="fedavg"))
    pool = Sabotaged(worker, {1: lambda v: v * math.nan, 3: lambda v: v[:-1]})
    simulation = Simulation(worker, pool)
    line = simulation.advance().to_json()
    assert [r["client"] for r in line["refused"]] == [1, 3]
    assert "NaN or infinite" in line["refused"][0]["reason"]
    assert "parameters instead of" in line["refused"][1]["reason"]
    assert list(line["weights"]["participants"]) == [0, 2, 4]
    sizes = worker.federation.counts.sizes[[0, 2, 4]]
    assert list(line["weights"]["alpha"]) == (sizes / sizes.sum()).tolist()
    assert torch.isfinite(simulation.state.vector).all()


def test_a_client_that_gets_weight_through_a_refusal_is_trained_then() -> None:
    worker = Worker(Run.of(**{**SMALL, "clients": 10}, method="fedpals", lam=0.0))
    first = Simulation(worker, SerialPool(worker))
    told = first.advance().to_json()["weights"]
    weights = dict(zip(told["participants"], told["alpha"], strict=True))
    heaviest = max(weights, key=lambda i: weights[i])
    pool = Sabotaged(worker, {heaviest: lambda v: v * math.inf})
    simulation = Simulation(worker, pool)
    told = simulation.advance().to_json()["weights"]
    assert heaviest not in told["participants"]
    assert sum(told["alpha"]) == pytest.approx(1)
    assert {i for i, a in zip(told["participants"], told["alpha"], strict=True) if a > 0} <= set(pool.asked)


@pytest.mark.parametrize("held_out", [None, 0.25])
def test_a_run_that_diverges_is_finished_with_what_was_selected_before(held_out: float | None, tmp_path: Path) -> None:
    run = Run.of(**{**SMALL, "rounds": 4, "held_out": held_out}, method="fedavg")
    calls = {"n": 0}

    class Failing(Sabotaged):
        def train(self, jobs: Sequence[Job]) -> Iterable[Update]:
            calls["n"] += 1
            self.spoil = {job.client: lambda v: v * math.nan for job in jobs} if calls["n"] == 3 else {}
            return super().train(jobs)

    record = simulate(run, tmp_path, make_pool=lambda worker: Failing(worker, {}))
    result, unbroken = result_of(record), simulate(run, tmp_path / "unbroken")
    assert (result["rounds"], result["diverged"], "diverged" in result_of(unbroken)) == (2, True, False)
    lines = lines_of(record)
    assert [line["loss"] for line in lines] == [line["loss"] for line in lines_of(unbroken)[:2]]
    best = max(lines, key=lambda line: line["raw"]["validation"]["accuracy"])
    assert result["selected"]["raw"]["test"] == best["raw"]["test"]
    assert "recommended" not in result["selected"]
    check_saved_model(record, "raw", "model") if held_out is None else record.tallies()


def test_a_client_whose_loss_overflows_is_refused(tmp_path: Path) -> None:
    run = Run.of(**{**SMALL, "rounds": 1}, method="fedavg")

    class Overflowing(SerialPool):
        def train(self, jobs: Sequence[Job]) -> Iterable[Update]:
            updates = zip(jobs, super().train(jobs), strict=True)
            return (replace(u, loss=math.inf) if job.client == 2 else u for job, u in updates)

    (line,) = lines_of(simulate(run, tmp_path, make_pool=Overflowing))
    assert line["refused"] == [{"client": 2, "reason": "its loss is inf"}]
    assert math.isfinite(line["loss"])


def test_what_diverges_at_once_has_nothing_to_select(tmp_path: Path) -> None:
    run = Run.of(**{**SMALL, "rounds": 4}, method="fedavg")
    spoil = {i: lambda v: v * math.nan for i in range(10)}
    with pytest.raises(DivergedError, match=r"round 1: no client .* try a smaller learning_rate than"):
        simulate(run, tmp_path, make_pool=lambda worker: Sabotaged(worker, spoil))
    assert not Record(run, tmp_path).finished


def test_early_stopping_and_selection_use_validation_only(tmp_path: Path) -> None:
    record = simulate(Run.of(**{**SMALL, "rounds": 60, "patience": 4}, method="fedavg"), tmp_path)
    lines = lines_of(record)
    selections = {name: result_of(record)["selected"][name] for name in ("raw", "prior")}
    for name, selected in selections.items():
        accuracies = [line[name]["validation"]["accuracy"] for line in lines]
        assert selected["round"] == accuracies.index(max(accuracies)) + 1
        assert selected["test"] == lines[selected["round"] - 1][name]["test"]
    newest = max(s["round"] for s in selections.values())
    assert len(lines) == min(60, newest + 4)


def test_early_stopping_needs_no_target_sample_where_clients_hold_samples_out(tmp_path: Path) -> None:
    record = simulate(Run.of(**{**SMALL, "rounds": 60, "patience": 4, "held_out": 0.25}, method="fedavg"), tmp_path)
    told = {name: s["round"] for name, s in result_of(record)["selected"].items() if not name.startswith("gaussian")}
    newest = max(number for name, number in told.items() if name.endswith("/estimate"))
    assert len(lines_of(record)) == min(60, newest + 4)
    assert len(lines_of(record)) < 60


def test_the_saved_models_are_the_selected_ones(tmp_path: Path) -> None:
    run = Run.of(**SMALL, method="fedavg")
    record = simulate(run, tmp_path)
    for name, file in (("raw", "model"), ("prior", "model-prior"), ("gaussian", "model-gaussian")):
        check_saved_model(record, name, file)


def test_the_synthetic_experiment(tmp_path: Path) -> None:
    """FedPALS is at least as good as FedAvg at every δ, and accuracy falls as d(T, S) grows."""
    means: dict[str, list[float]] = {"fedavg": [], "fedpals": []}
    distances = []
    for delta in (0.0, 0.25, 0.5, 0.75, 1.0):
        for method, extra in FEDAVG_AND_FEDPALS:
            accuracies = []
            for seed in range(5):
                settings = {"rounds": 40, "batch_size": 8, "delta": delta, "seed": seed, **extra}
                run = Run.of(task="synthetic", method=method, **settings)
                record = simulate(run, tmp_path)
                accuracies.append(result_of(record)["selected"]["raw"]["test"]["accuracy"])
            means[method].append(float(np.mean(accuracies)))
        distances.append(result_of(record)["projection_distance"])
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
            run = Run.of(task="fashion-mnist", labels_per_client=3, method=method, **settings)
            record = simulate(run, tmp_path)
            accuracies.setdefault(method, []).append(result_of(record)["selected"]["raw"]["test"]["accuracy"])
    assert np.mean(accuracies["fedpals"]) > np.mean(accuracies["fedavg"]) + 0.05, accuracies
