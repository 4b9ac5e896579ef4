"""Whole runs with what goes beyond the paper: samples held out, unknown targets, last layers, private counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

from fedpals import solve
from fedpals.engine import checkpoint
from fedpals.engine.evaluation import Part
from fedpals.engine.last_layer import Layer
from fedpals.errors import InputError
from fedpals.labels.private import noisy_counts, repair
from fedpals.rng import generator
from fedpals.shift import (
    FeatureSums,
    Tally,
    ccvr_head,
    fed3r_head,
    fedcgs_head,
    fedcof_head,
    gaussian_head,
    pooled,
    target_accuracy,
)
from fedpals.shift.calibration import calibrate
from fedpals.shift.evaluation import Correction, Evaluation
from fedpals.simulation.pools import ProcessPool, SerialPool
from fedpals.simulation.record import Record
from fedpals.simulation.rounds import Simulation
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.state import SimulationState
from fedpals.simulation.worker import Job, Worker
from tests.runs import SMALL, check_saved_model, final_vector, lines_of, result_of, view_of

HELD_OUT = Run.of(**{**SMALL, "rounds": 6, "batch_size": 8}, method="fedpals", ess=0.5, held_out=0.25)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return simulate(HELD_OUT, tmp_path_factory.mktemp("held out"))


def test_every_correction_is_selected_by_every_rule(held_out: Record) -> None:
    lines, selected = lines_of(held_out), result_of(held_out)["selected"]
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
    whole = HELD_OUT.data.federation(HELD_OUT.seed)
    y = federation.dataset.y
    for rest, kept, all_of_it in zip(federation.clients, federation.held_out, whole.clients, strict=True):
        assert sorted([*rest, *kept]) == sorted(all_of_it)
        assert (np.bincount(y[kept], minlength=10) == np.bincount(y[all_of_it], minlength=10) // 4).all()
    assert view_of(held_out)["counts"] == federation.table.tolist()
    chosen = result_of(held_out)["selected"]["raw/estimate"]
    told = pooled(held_out.tallies())
    assert target_accuracy(told, federation.target).value == chosen["score"]
    estimate = target_accuracy(told, federation.target)
    line = lines_of(held_out)[chosen["round"] - 1]["raw"]["clients"]
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
        told = result_of(held_out)["selected"][f"{correction}/estimate"]
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
    worker.model.load(SimulationState.load(held_out.checkpoint).vector)
    sums = []
    for i in range(len(worker.federation.clients)):
        own = worker.client(i)
        sums.append(
            FeatureSums.of(own.x.flatten(1).double().numpy(), own.y.numpy(), 10)
        )  # a logistic model sees pixels
    head = gaussian_head(sums, worker.federation.target)
    np.testing.assert_allclose(tensors["1.weight"], head.weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(tensors["1.bias"], head.bias, rtol=1e-4)
    x, y = worker.samples(np.concatenate(worker.federation.held_out))
    tally = Tally.of(y.numpy(), head(x.flatten(1).double().numpy()))
    told = result_of(held_out)["selected"]["gaussian/estimate"]["score"]
    assert told == pytest.approx(target_accuracy(tally, worker.federation.target).value)


def test_heads_of_other_authors_are_evaluated_where_a_run_asks_for_them(held_out: Record, tmp_path: Path) -> None:
    run = Run.of({**HELD_OUT.keys(), "heads": "fedcgs+fed3r+fedcof+ccvr"})
    selected = simulate(run, tmp_path).result().selected
    before = held_out.result().selected
    assert {evaluation: selected[evaluation] for evaluation in before} == before
    assert {evaluation.value for evaluation in set(selected) - set(before)} == {
        f"{head}{rule}" for head in ("fedcgs", "fed3r", "fedcof", "ccvr") for rule in ("", "/estimate")
    }
    worker = Worker(run)
    clients = [worker.client(i) for i in range(len(worker.federation.clients))]
    told = [(own.x.flatten(1).double().numpy(), own.y.numpy()) for own in clients]
    sums, target = [FeatureSums.of(*own, 10) for own in told], worker.federation.target
    features, y = np.concatenate([f for f, _ in told]), np.concatenate([y for _, y in told])
    by_label = [FeatureSums.of(features[y == label], y[y == label], 10) for label in range(10)]
    heads: dict[Evaluation, Layer] = {
        Evaluation.FEDCGS: fedcgs_head(sums, target),
        Evaluation.FED3R: fed3r_head(sums, target),
        Evaluation.FEDCOF: fedcof_head(sums, target),
        Evaluation.CCVR: ccvr_head(by_label, target, generator(run.seed, "virtual features")),
    }
    x, truth = worker.samples(worker.federation.test)
    for evaluation, head in heads.items():
        correct = head(x.flatten(1).double().numpy()).argmax(axis=1) == truth.numpy()
        test = selected[evaluation].test
        assert test is not None
        assert test.accuracy == pytest.approx(correct.mean(), abs=1 / len(truth))


def test_a_head_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InputError, match=r"heads is 'fedcgs\+fed3'; 'fed3' is none of .* did you mean 'fed3r'"):
        Run.of({**SMALL, "heads": "fedcgs+fed3"})


UNKNOWN = Run.of(
    task="digits", beta=2.0, clients=4, model="logistic", rounds=12, method="fedpals", ess=0.5, held_out=0.5,
    learning_rate=0.1, batch_size=8,
)  # fmt: skip


@pytest.mark.parametrize("estimate", ["bbse", "em"])
def test_a_target_that_is_unknown_is_learned_from_its_inputs(estimate: str, tmp_path: Path) -> None:
    run = Run.of({**UNKNOWN.keys(), "target_estimate": estimate})
    record = simulate(run, tmp_path / "unbroken")
    told, federation = view_of(record), run.build_federation()
    assert told["exact_target"] == federation.target.tolist()
    clients = federation.table.sum(axis=0) / federation.table.sum()
    wrong = [np.abs(np.asarray(T) - federation.target).sum() for T in (told["target"], clients)]
    assert wrong[0] < 0.6 * wrong[1]
    first, last = (np.array(lines_of(record)[i]["weights"]["alpha"]) for i in (0, -1))
    known = solve(federation.table, federation.target, ess=0.5).alpha
    assert np.abs(last - known).sum() < np.abs(first - known).sum()  # which are FedAvg's
    rounds = iter(range(100))
    assert simulate(run, tmp_path / "stopped", stop=lambda: next(rounds) == 5).unfinished
    resumed = simulate(run, tmp_path / "stopped")
    assert result_of(resumed) == result_of(record)
    assert view_of(resumed) == told


def test_labels_of_the_target_do_not_take_part_in_the_estimate() -> None:
    worker = Worker(Run.of({**UNKNOWN.keys(), "target_estimate": "bbse"}))
    dataset, validation = worker.federation.dataset, worker.federation.validation
    start = worker.model.vector.clone()
    found = []
    for labels in (dataset.y, np.where(np.isin(np.arange(len(dataset.y)), validation), 0, dataset.y)):
        worker.federation = replace(worker.federation, dataset=replace(dataset, y=labels))
        simulation = Simulation(worker, SerialPool(worker), SimulationState(0, start.clone()))
        for _ in range(3):
            simulation.advance()
        found.append(simulation.server.target)
    np.testing.assert_array_equal(found[0], found[1])


def test_the_recommended_layer_is_the_geometric_mean_of_the_networks_own_and_the_gaussian_head(tmp_path: Path) -> None:
    record = simulate(UNKNOWN, tmp_path)
    worker = Worker(UNKNOWN)
    simulation = Simulation(worker, SerialPool(worker), SimulationState.load(record.checkpoint))
    evaluator = simulation.evaluator
    target, y = simulation.server.target, evaluator.truth(Part.CLIENTS)
    own = evaluator.logits(simulation.state.model)
    tensors, _ = checkpoint.load(record.model(Correction.GAUSSIAN))
    assert tensors.pop("stands_for").tolist() == list(range(10))  # the clients have all labels of the target
    worker.model.network.load_state_dict(tensors)
    gaussian = evaluator.logits(worker.model.vector.clone())
    calibrations = (
        calibrate(own[Part.CLIENTS], y, target, simulation.server.prior_shift),
        calibrate(gaussian[Part.CLIENTS], y, target, np.where(target > 0, 0.0, -np.inf)),
    )
    p, q = (softmax(c(z[Part.TEST]), axis=1) for c, z in zip(calibrations, (own, gaussian), strict=True))
    found = result_of(record)["selected"]["recommended"]["test"]["accuracy"]
    assert found == pytest.approx((np.sqrt(p * q).argmax(axis=1) == evaluator.truth(Part.TEST)).mean(), abs=1e-9)
    check_saved_model(record, "recommended", "model-recommended")


def spoiled(run: Run, rounds: int) -> Simulation:
    """Return a run whose model knows nothing any more after ``rounds``."""
    simulation = Simulation(worker := Worker(run), SerialPool(worker))
    for _ in range(rounds):
        simulation.advance()
    simulation.state.vector = torch.zeros_like(simulation.state.vector)
    simulation.state.round += 1
    return simulation


def test_a_model_that_training_has_spoiled_is_not_recommended() -> None:
    run = Run.of(
        **{**SMALL, "rounds": 9, "batch_size": 8, "held_out": 0.3, "model": "mlp", "seed": 2}, method="fedpals"
    )
    worker = Worker(run)
    good = Simulation(worker, SerialPool(worker))
    for _ in range(6):
        good.advance()
    best = good.state.best[Evaluation.CALIBRATED_BY_ESTIMATE]
    found = spoiled(run, 6).last_model()
    assert found.recommended is not None
    assert best.vector is not None
    assert found.recommended.round == best.round
    torch.testing.assert_close(found.recommended.vector, best.vector, rtol=0, atol=0)
    good.state.vector, good.state.round = best.vector, best.round  # as if training had ended there
    expected = good.last_model().recommended
    assert expected is not None
    assert expected.worth == found.recommended.worth == found.selected[Evaluation.RECOMMENDED]
    assert found.selected[Evaluation.RECOMMENDED].score > found.selected[Evaluation.GAUSSIAN_BY_ESTIMATE].score + 0.2


def test_no_earlier_model_takes_the_place_of_one_that_samples_cannot_judge() -> None:
    missing = Run.of(**{**SMALL, "labels_per_client": 2, "held_out": 0.25}, method="fedavg")
    simulation = spoiled(missing, 3)
    recommended = simulation.last_model().recommended
    assert recommended is not None
    assert recommended.round == simulation.state.round


def test_a_label_that_nobody_has_is_recognised_by_the_network_and_the_gaussian_head(tmp_path: Path) -> None:
    record = simulate(Run.of(**{**SMALL, "labels_per_client": 2, "held_out": 0.25}, method="fedavg"), tmp_path)
    counts, target = (np.array(view_of(record)[key]) for key in ("counts", "target"))
    assert (counts.sum(axis=0) == 0)[target > 0].any()
    selected = result_of(record)["selected"]
    assert selected["recommended"]["test"]["log_loss"] != selected["gaussian"]["test"]["log_loss"]
    files = {
        name: checkpoint.load(record.path / f"model-{name}.safetensors")[0] for name in ("gaussian", "recommended")
    }
    head, joined = files["gaussian"], files["recommended"]
    assert torch.equal(joined["stands_for"], head["stands_for"])
    torch.testing.assert_close(joined["displaced_axes"] * 2**0.5, head["displaced_axes"])
    for name in files:
        check_saved_model(record, name, f"model-{name}")


def test_a_label_that_only_the_last_participants_lack_is_left_to_the_network(tmp_path: Path) -> None:
    run = Run.of(**{**SMALL, "seed": 1, "participation": 0.4, "held_out": 0.25, "rounds": 2}, method="fedavg")
    record = simulate(run, tmp_path)
    selected, line = result_of(record)["selected"], lines_of(record)[-1]["calibrated"]
    assert selected["recommended"]["test"] == {**line["test"], "log_loss": pytest.approx(line["test"]["log_loss"])}
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
    record = simulate(Run.of(**{**SMALL, "model": f"{__name__}:odd"}, method="fedavg"), tmp_path)
    assert set(result_of(record)["selected"]) == {"raw", "prior"}
    assert not (record.path / "model-gaussian.safetensors").exists()


def test_momentum_repeats_a_share_of_the_last_move(tmp_path: Path) -> None:
    run = Run.of(**SMALL, method="fedavg", server_momentum=0.6)
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
    plain, averaged = (Run.of(**SMALL, method="fedavg", averaging=decay) for decay in (None, 0.75))
    vectors: list[torch.Tensor] = []
    means: list[torch.Tensor] = []

    def advance(run: Run, seen: list[torch.Tensor]) -> None:
        worker = Worker(run)
        simulation = Simulation(worker, SerialPool(worker))
        for _ in range(SMALL["rounds"]):
            line = simulation.advance().to_json()
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
    assert result_of(resumed) == result_of(unbroken)


@pytest.mark.parametrize("how", ["two workers", "stopped"])
def test_the_same_bits_with_samples_held_out(how: str, held_out: Record, tmp_path: Path) -> None:
    if how == "two workers":
        with ProcessPool(HELD_OUT, 2) as pool:
            again = simulate(HELD_OUT, tmp_path, make_pool=lambda _: pool)
    else:
        rounds = iter(range(100))
        assert simulate(HELD_OUT, tmp_path, stop=lambda: next(rounds) == 2).unfinished
        again = simulate(HELD_OUT, tmp_path)
    assert result_of(again) == result_of(held_out)
    assert [t.to_json() for t in again.tallies()] == [t.to_json() for t in held_out.tallies()]
    for name in ("model", "model-prior", "model-calibrated", "model-gaussian", "model-recommended"):
        ours, theirs = (checkpoint.load(r.path / f"{name}.safetensors")[0] for r in (held_out, again))
        assert all(torch.equal(ours[key], theirs[key]) for key in ours.keys() | theirs.keys())


def test_a_share_that_holds_nothing_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"held_out is 0\.001: no client .* give a larger share"):
        simulate(Run.of(**SMALL, method="fedavg", held_out=0.001), tmp_path)


def test_private_counts_are_all_that_the_server_knows_of_the_clients(tmp_path: Path) -> None:
    exact, private = (
        simulate(Run.of(**SMALL, method="fedpals", ess=0.5, count_epsilon=epsilon), tmp_path) for epsilon in (None, 0.1)
    )
    run, known = private.run, view_of(private)
    federation = Worker(run).federation
    assert known["exact_counts"] == view_of(exact)["counts"] == federation.table.tolist()
    repaired = repair(noisy_counts(federation.counts, 0.1, run.seed))
    assert known["counts"] == np.asarray(repaired.table).tolist() != known["exact_counts"]
    told = private.weights()[0]
    alpha = np.zeros(len(federation.clients))
    alpha[list(told.participants)] = told.alpha  # noise may hide a client, whose size is then 0
    assert alpha == pytest.approx(solve(repaired, federation.target, ess=0.5).alpha)
    assert not np.allclose(alpha, exact.weights()[0].alpha, atol=1e-3)
    off = known["spread"]
    assert all(low - 1e-9 <= high for low, high in zip(off["lower"], off["upper"], strict=True))
    assert 0 < off["moved"] < 1
    assert "exact_counts" not in view_of(exact)


def test_an_empty_client_is_not_trained_whatever_its_noisy_counts_say() -> None:
    worker = Worker(Run.of(**SMALL, method="fedavg", count_epsilon=1.0))
    federation = worker.federation
    worker.federation = replace(federation, clients=(np.empty(0, dtype=np.int64), *federation.clients[1:]))
    simulation = Simulation(worker, SerialPool(worker))
    counts = simulation.server.counts
    simulation.server.counts = replace(
        counts, table=np.maximum(np.asarray(counts.table), 1.0), sizes=np.maximum(counts.sizes, 10.0)
    )
    assert 0 not in simulation.advance().weights.participants


def test_counts_with_hardly_any_noise_change_next_to_nothing(tmp_path: Path) -> None:
    exact, private = (
        simulate(Run.of(**SMALL, method="fedpals", ess=0.5, count_epsilon=epsilon), tmp_path)
        for epsilon in (None, 100.0)
    )
    assert view_of(private)["counts"] == view_of(exact)["counts"]
    assert torch.equal(final_vector(private), final_vector(exact))
