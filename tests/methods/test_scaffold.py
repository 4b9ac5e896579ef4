"""SCAFFOLD against option II of its paper in float64, with any optimiser, and with weights that change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpals import LabelCounts
from fedpals.engine.client import Update, batches, local_update
from fedpals.engine.flat_model import FlatModel
from fedpals.engine.plan import Plan
from fedpals.engine.server import Server
from fedpals.engine.state import ServerState
from fedpals.labels import Vector
from fedpals.methods import build_method
from fedpals.methods.scaffold import Scaffold
from fedpals.rng import generator
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.worker import Worker
from tests.runs import SMALL, final_vector


def option_two(worker: Worker, drawn: Sequence[Sequence[int]], plan: Plan) -> Vector:
    """SCAFFOLD as its paper has it: c_i by option II, c by the changes of the participants; logistic regression."""
    rate, sizes = plan.learning_rate, worker.federation.counts.sizes
    w = worker.model.vector.double().numpy().copy()
    c, own = np.zeros_like(w), {i: np.zeros_like(w) for i in range(len(sizes))}
    for number, participants in enumerate(drawn, start=1):
        ends, change = {}, np.zeros_like(w)
        for i in participants:
            client, v, steps = worker.client(i), w.copy(), 0
            x, y = client.x.flatten(1).double().numpy(), client.y.numpy()
            for _, _, rows in batches(client.x, client.y, plan, generator(0, "batches", number, i)):
                W, b = v[:-10].reshape(10, -1), v[-10:]
                z = x[rows.numpy()] @ W.T + b
                e = np.exp(z - z.max(axis=1, keepdims=True))
                errors = (e / e.sum(axis=1, keepdims=True) - np.eye(10)[y[rows.numpy()]]) / len(rows)
                gradient = np.concatenate([(errors.T @ x[rows.numpy()]).reshape(-1), errors.sum(axis=0)])
                v, steps = v - rate * (gradient - own[i] + c), steps + 1
            new = own[i] - c + (w - v) / (steps * rate)
            change += sizes[i] / sizes.sum() * (new - own[i])
            ends[i], own[i] = v, new
        share = sizes[participants] / sizes[participants].sum()
        w, c = np.asarray(sum(a * ends[i] for a, i in zip(share, participants, strict=True))), c + change
    return w


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_with_sgd_it_is_option_two(participation: float, tmp_path: Path) -> None:
    run = Run.of(**{**SMALL, "rounds": 4, "method": "scaffold", "participation": participation})
    record = simulate(run, tmp_path)
    drawn = [line.weights.participants for line in record.lines()]
    assert (len({len(p) for p in drawn}), len(drawn)) == (1, 4)
    found, wanted = final_vector(record).double().numpy(), option_two(Worker(run), [list(p) for p in drawn], run.plan)
    assert np.abs(found - wanted).max() < 1e-6
    plain = final_vector(simulate(Run.of({**run.keys(), "method": "fedavg"}), tmp_path)).double().numpy()
    assert np.abs(plain - wanted).max() > 1e-3


@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "adam"}, {"momentum": 0.9}, {"weight_decay": 0.3}, {"optimizer": "adam", "weight_decay": 0.3}],
)
def test_the_control_variate_is_the_mean_gradient_with_any_optimiser(settings: dict[str, Any]) -> None:
    """Followed step by step with torch's optimisers in float64."""
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.normal(size=(20, 3))).float(), torch.from_numpy(rng.integers(4, size=20))
    server, client = (torch.from_numpy(rng.normal(size=16)).float() * 0.1 for _ in range(2))
    plan = Plan.model_validate({"epochs": 3, "batch_size": 6, "learning_rate": 0.05, **settings})
    model, own = FlatModel(nn.Linear(3, 4)), torch.bincount(y, minlength=4)
    start = model.vector.clone()
    found = local_update(model, start, x, y, own, Scaffold(), plan, generator(0), server=server, client=client)

    w = start.double().requires_grad_()
    decay = plan.weight_decay or 0.0
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam([w], lr=0.05, weight_decay=decay)
        if plan.optimizer == "adam"
        else torch.optim.SGD([w], lr=0.05, momentum=plan.momentum or 0.0, weight_decay=decay)
    )
    gradients = []
    for _, _, rows in batches(x, y, plan, generator(0)):
        loss = cross_entropy(x[rows].double() @ w[:12].view(4, 3).T + w[12:], y[rows])
        gradients.append(torch.autograd.grad(loss, w)[0])
        w.grad = gradients[-1] + server.double() - client.double()
        optimizer.step()
    assert found.state is not None
    assert torch.allclose(found.state.double(), torch.stack(gradients).mean(dim=0), atol=1e-6)
    assert torch.allclose(found.vector.double(), w.detach(), atol=1e-5)


COUNTS = LabelCounts.of([[10, 0], [0, 10]])
CONTROLS = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])]


def after_a_round(name: str, target: list[float], **options: float) -> Server:
    """A server whose two clients have the control variates (1, 0) and (0, 2), and the losses 1 and 0."""
    server = Server(build_method(name, options), COUNTS, np.array(target), ServerState(0, torch.zeros(2)))

    def train(clients: Sequence[int]) -> list[Update]:
        return [Update(torch.ones(2), 0.0, 1, CONTROLS[i]) for i in clients]

    server.advance(np.arange(2), train, lambda clients: [1.0 - i for i in clients])
    return server


def vector(server: Server) -> list[float]:
    assert isinstance(server.rule_vector, Tensor)
    return server.rule_vector.tolist()


def test_c_is_the_mean_for_the_mixture_that_afl_has_moved_to() -> None:
    """q goes from (0.5, 0.5) by 0.1·(1, 0) to (0.6, 0.5), and back to the simplex: (0.55, 0.45)."""
    server = after_a_round("scaffold+afl", [0.5, 0.5], mixture_step=0.1)
    assert vector(server) == pytest.approx([0.55, 0.9])
    again = Server(server.method, COUNTS, server.target, server.state)  # as after an interruption
    assert torch.equal(torch.tensor(vector(again)), torch.tensor(vector(server)))


def test_c_is_the_mean_for_the_target_that_was_estimated_last() -> None:
    """Clients with one label each get the weights T(y) at λ = 0."""
    server = after_a_round("scaffold+fedpals", [0.7, 0.3], lam=0.0)
    assert vector(server) == pytest.approx([0.7, 0.6])
    server.set_target(np.array([0.2, 0.8]))
    assert vector(server) == pytest.approx([0.2, 1.6])


def test_c_is_the_mean_over_clients_that_joined_too() -> None:
    server = after_a_round("scaffold", [0.5, 0.5])
    assert vector(server) == pytest.approx([0.5, 1.0])
    server.admit(LabelCounts.of([[10, 0], [0, 10], [10, 10]]))
    assert vector(server) == pytest.approx([0.25, 0.5])


@pytest.mark.parametrize("method", ["scaffold+afl", "scaffold+fedpals"])
def test_an_interrupted_run_whose_weights_change_has_the_same_bits(method: str, tmp_path: Path) -> None:
    estimate = {"held_out": 0.2, "target_estimate": "em"} if "fedpals" in method else {}
    run = Run.of(**{**SMALL, **estimate, "rounds": 5, "method": method})
    whole = final_vector(simulate(run, tmp_path / "whole"))
    rounds: list[int] = []
    simulate(run, tmp_path / "parts", callbacks=[lambda line: rounds.append(line.round)], stop=lambda: len(rounds) >= 2)
    assert rounds == [1, 2]
    assert torch.equal(final_vector(simulate(run, tmp_path / "parts")), whole)


def test_scaffold_learns_with_adam(tmp_path: Path) -> None:
    """With Adam the way that a client goes says nothing about its gradient: taken for one, nothing was learned."""
    keys = {**SMALL, "rounds": 8, "optimizer": "adam", "learning_rate": 0.003, "labels_per_client": 9}
    losses = [line.loss for line in simulate(Run.of(**keys, method="scaffold"), tmp_path).lines()]
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[-1] < 0.5 * losses[0]
