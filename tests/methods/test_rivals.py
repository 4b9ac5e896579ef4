"""Methods that others proposed: independent implementations in float64, and what must hold of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpals import LabelCounts
from fedpals.engine.client import batches, local_update
from fedpals.engine.flat_model import FlatModel
from fedpals.engine.plan import Plan
from fedpals.errors import InputError
from fedpals.labels import Vector
from fedpals.methods import METHODS, ClientRule, build_method, register
from fedpals.methods.calibrated_logits import CalibratedLogits
from fedpals.methods.discrepancy import Discrepancy
from fedpals.methods.importance_weighted import ImportanceWeighted
from fedpals.methods.restricted_softmax import BinarySoftmax, GradedSoftmax
from fedpals.methods.weighting import Weighting
from fedpals.models import build
from fedpals.models.compiled.kernel import Kernel
from fedpals.rng import generator
from fedpals.simulation.run import Run
from fedpals.simulation.server_view import learned_prior
from fedpals.simulation.simulator import simulate
from tests.runs import SMALL, final_vector, result_of, view_of

TARGET = np.array([0.5, 0.3, 0.0, 0.2])
OWN = np.array([2, 12, 6, 0])
"""Label counts of a client: T(y)/S_i(y) is 5, 0.5, 0, and one that it cannot have."""
POPULATION = LabelCounts.of([OWN, [10, 0, 30, 20]])


def softmax(z: Vector) -> Vector:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def trained(rule: ClientRule, server: Tensor | None, factor: Vector, offset: Vector, weights: Vector) -> float:
    """Train logistic regression with a rule, and by formulas in float64; return the largest difference."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), np.repeat(np.arange(4), OWN)
    inputs, labels = torch.from_numpy(x).float(), torch.from_numpy(y)
    model, plan = FlatModel(nn.Linear(3, 4)), Plan(epochs=3, batch_size=7, learning_rate=0.3)
    start = torch.from_numpy(rng.normal(size=16)).float()
    update = local_update(model, start, inputs, labels, torch.from_numpy(OWN), rule, plan, generator(0), server=server)
    W, b = np.split(start.double().numpy(), [12])
    W, x = W.reshape(4, 3), inputs.double().numpy()
    for _, _, rows in batches(inputs, labels, plan, generator(0)):
        h, truth = x[rows.numpy()], np.eye(4)[y[rows.numpy()]]
        errors = factor * (softmax(factor * (h @ W.T + b) + offset) - truth) * (truth @ weights)[:, None] / len(rows)
        W, b = W - 0.3 * errors.T @ h, b - 0.3 * errors.sum(axis=0)
    assert not np.allclose(W, start[:12].double().reshape(4, 3), atol=1e-2)
    return float(np.abs(update.vector.double().numpy() - np.concatenate([W.reshape(-1), b])).max())


NO_CHANGE = np.ones(4), np.zeros(4), np.ones(4)


def test_fedrs_of_the_paper_and_graded() -> None:
    binary, graded = np.array([1, 1, 1, 0.3]), np.array([0.3 + 0.7 * 2 / 12, 1.0, 0.3 + 0.7 * 6 / 12, 0.3])
    assert trained(BinarySoftmax(absent_factor=0.3), None, binary, *NO_CHANGE[1:]) < 1e-6
    assert trained(GradedSoftmax(absent_factor=0.3), None, graded, *NO_CHANGE[1:]) < 1e-6


def test_both_fedrs_agree_where_a_client_has_equally_many_samples_of_each_of_its_labels() -> None:
    counts = torch.tensor([7, 0, 7, 7])
    maps = [rule(absent_factor=0.4).logit_map(counts)[0] for rule in (BinarySoftmax, GradedSoftmax)]
    assert torch.equal(*maps)
    assert GradedSoftmax(absent_factor=1.0).logit_map(torch.from_numpy(OWN))[0].tolist() == [1, 1, 1, 1]


def test_fedlc_takes_margins_from_counts() -> None:
    margins = np.array([2**-0.25, 12**-0.25, 6**-0.25, 100.0])
    assert trained(CalibratedLogits(calibration=0.8), None, np.ones(4), -0.8 * margins, np.ones(4)) < 1e-6


def test_fedlc_without_margins_is_fedavg_and_with_them_leaves_absent_labels_alone() -> None:
    assert trained(CalibratedLogits(calibration=0.0), None, *NO_CHANGE) < 1e-6
    model, x, y = FlatModel(nn.Linear(2, 3)), torch.randn(9, 2), torch.tensor([0, 1, 1] * 3)
    start = model.vector.clone()
    counts = torch.tensor([3, 6, 0])
    end = local_update(model, start, x, y, counts, CalibratedLogits(), Plan(batch_size=3), generator(0)).vector
    assert torch.equal(end[4:6], start[4:6])
    assert not torch.equal(end[:4], start[:4])


def iw(source: str, clip: float = 10.0) -> ImportanceWeighted:
    rule = build_method("iwerm", {"importance_source": source, "importance_clip": clip}).rule
    assert isinstance(rule, ImportanceWeighted)
    return rule


@pytest.mark.parametrize(
    ("rule", "ratios", "normaliser"),
    [
        (iw("client"), [5, 0.5, 0, 0], (2 * 5 + 12 * 0.5) / 20),
        (iw("client", clip=2.0), [2, 0.5, 0, 0], (2 * 2 + 12 * 0.5) / 20),
        (iw("pooled"), [0.5 * 80 / 12, 0.3 * 80 / 12, 0, 0.2 * 80 / 20], 1.0),
        (iw("pooled", clip=2.5), [2.5, 2, 0, 0.8], (12 * 2.5 + 12 * 2 + 20 * 0.8) / 80),
    ],
)
def test_importance_weights(rule: ImportanceWeighted, ratios: list[float], normaliser: float) -> None:
    server = rule.server_vector((), POPULATION, TARGET)
    weights = rule.label_weights(torch.from_numpy(OWN), server)
    assert weights is not None
    assert weights.tolist() == pytest.approx([r / normaliser for r in ratios], rel=1e-6)
    assert trained(rule, server, *NO_CHANGE[:2], np.array(ratios) / normaliser) < 1e-6


def test_what_clients_are_told() -> None:
    assert METHODS["iwerm"].rule is ImportanceWeighted
    assert [entry.rule.tells_target for entry in METHODS.values() if entry.rule].count(True) == 1
    told = iw("client").server_vector((), POPULATION, TARGET)
    assert told is not None
    assert told.tolist() == pytest.approx(TARGET.tolist())


def test_a_client_without_any_label_of_the_target_stays_where_it_is() -> None:
    rule, counts = iw("client"), torch.tensor([0, 0, 5, 0])
    server = rule.server_vector((), POPULATION, TARGET)
    model, x, y = FlatModel(nn.Linear(2, 4)), torch.randn(5, 2), torch.full((5,), 2)
    start = model.vector.clone()
    update = local_update(model, start, x, y, counts, rule, Plan(), generator(0), server=server)
    assert torch.equal(update.vector, start)
    assert update.loss == 0.0


@pytest.mark.parametrize("source", ["client", "pooled"])
@pytest.mark.parametrize("name", ["cnn", "logistic"])
def test_iwerm_is_fedavg_bit_for_bit_where_clients_have_the_target_marginal(source: str, name: str) -> None:
    counts = np.array([3, 6, 9, 0, 12, 6, 3, 9, 0, 0])
    population = LabelCounts.of([counts, 2 * counts])
    server = iw(source).server_vector((), population, counts / counts.sum())
    y = torch.repeat_interleave(torch.arange(10), torch.from_numpy(counts))
    x = torch.randn(len(y), 1, 8, 8, generator=torch.Generator().manual_seed(0))
    model = FlatModel(build(name, shape=(1, 8, 8), classes=10, seed=0))
    start, plan = model.vector.clone(), Plan(batch_size=10)
    ends = [
        local_update(model, start, x, y, torch.from_numpy(counts), rule, plan, generator(0), server=told).vector
        for rule, told in ((ClientRule(), None), (iw(source), server))
    ]
    assert torch.equal(*ends)


def test_one_full_step_with_pooled_weights_follows_the_gradient_of_the_target_risk() -> None:
    """Σ n_i/N of the clients' steps = −η ∇ Σ_y T(y)·(mean loss of all samples with label y)."""
    rng = np.random.default_rng(1)
    table = np.asarray(POPULATION.table, dtype=np.int64)
    model, rule = FlatModel(nn.Linear(3, 4)), iw("pooled", clip=1e6)
    start = model.vector.clone()
    server = rule.server_vector((), POPULATION, TARGET)
    xs = [torch.from_numpy(rng.normal(size=(n, 3))).float() for n in table.sum(axis=1)]
    ys = [torch.repeat_interleave(torch.arange(4), torch.from_numpy(row)) for row in table]
    plan = Plan(steps=1, batch_size=1000, learning_rate=0.5)
    ends = [
        local_update(model, start, x, y, torch.from_numpy(row), rule, plan, generator(0), server=server).vector
        for x, y, row in zip(xs, ys, table, strict=True)
    ]
    moved = sum(n / 80 * (end - start).double() for n, end in zip(table.sum(axis=1), ends, strict=True))
    x, y = torch.cat(xs).double(), torch.cat(ys)
    W, b = (part.requires_grad_() for part in (start.double()[:12], start.double()[12:]))
    losses = nn.functional.cross_entropy(x @ W.view(4, 3).T + b, y, reduction="none")
    risk = sum(TARGET[k] * losses[y == k].mean() for k in range(4))
    wanted = -0.5 * torch.cat(torch.autograd.grad(torch.as_tensor(risk), [W, b]))
    assert torch.allclose(torch.as_tensor(moved), wanted, atol=1e-6)


def test_the_mix_that_iwerm_has_learned_is_that_of_its_weights(tmp_path: Path) -> None:
    """The prior correction must not repeat what the weights did: pooled and unclipped, p_α is T itself."""
    keys = {**SMALL, "rounds": 1, "method": "iwerm", "importance_source": "pooled", "importance_clip": 1e6}
    record = simulate(Run.of(**keys), tmp_path)
    view = view_of(record)
    target, counts = np.array(view["target"]), np.array(view["counts"])
    known = np.where(counts.any(axis=0), target, 0.0)
    prior = learned_prior(record.run, record.lines(), LabelCounts.of(counts), target)
    assert prior == pytest.approx(known / known.sum(), abs=1e-6)


def test_feddisco_is_the_formula() -> None:
    counts = LabelCounts.of([[8, 2, 0], [1, 6, 3], [5, 5, 40], [10, 0, 0]])
    target, participants = np.array([0.2, 0.3, 0.5]), np.array([3, 0, 2])
    d = [np.sqrt(0.8**2 + 0.3**2 + 0.5**2), np.sqrt(0.6**2 + 0.1**2 + 0.5**2), np.sqrt(0.1**2 + 0.2**2 + 0.3**2)]
    raw = [max(n / 70 - 0.7 * one / sum(d) + 0.05, 0) for n, one in zip((10, 10, 50), d, strict=True)]
    found = Discrepancy(discrepancy_weight=0.7, discrepancy_offset=0.05).weigh(counts, target, participants, None)
    assert raw[0] == 0
    assert found.tolist() == pytest.approx([one / sum(raw) for one in raw])


def test_when_feddisco_is_fedavg() -> None:
    """With equal marginals: if the offset is a/M, or 0 where the marginal is T; or if clients have one size."""
    target = np.array([0.25, 0.75])
    everyone = np.arange(3)

    def gap(rows: list[list[int]], a: float, b: float) -> float:
        counts = LabelCounts.of(rows)
        disco = Discrepancy(discrepancy_weight=a, discrepancy_offset=b).weigh(counts, target, everyone, None)
        return float(np.abs(disco - Weighting().weigh(counts, target, everyone, None)).max())

    assert gap([[1, 3], [2, 6], [5, 15]], 0.5, 0.0) < 1e-12
    assert gap([[3, 1], [6, 2], [15, 5]], 0.3, 0.1) < 1e-12
    assert gap([[2, 2], [2, 2], [2, 2]], 0.5, 0.1) < 1e-12
    assert gap([[3, 1], [6, 2], [15, 5]], 0.5, 0.1) > 0.01
    assert gap([[2, 2], [4, 0], [0, 4]], 0.5, 0.1) > 0.01
    assert gap([[9, 1], [90, 10], [40, 0]], 1e6, 0.1) == 0.0  # nobody would be left


def test_pooled_training_is_one_client_with_all_samples(tmp_path: Path) -> None:
    keys = {**SMALL, "held_out": 0.1, "participation": 0.5}
    pooled, fedavg = Run.of(**keys, method="pooled"), Run.of(**keys, method="fedavg")
    ours, others = pooled.build_federation(), fedavg.build_federation()
    assert ours.clients[0].tolist() == sorted(np.concatenate(others.clients).tolist())
    assert [rows.tolist() for rows in ours.held_out] == [rows.tolist() for rows in others.held_out]
    assert ours.test.tolist() == others.test.tolist()
    record = simulate(pooled, tmp_path)
    assert result_of(record)["clients"] == 1
    assert result_of(record)["selected"].keys() == result_of(simulate(fedavg, tmp_path))["selected"].keys()
    assert all(line.participants == line.trained == 1 for line in record.lines())


def test_a_weighting_does_not_change_pooled_training_and_a_rule_does(tmp_path: Path) -> None:
    vectors = {
        name: final_vector(simulate(Run.of(**{**SMALL, "method": name}), tmp_path))
        for name in ("pooled", "pooled+fedpals", "fedprox+pooled", "pooled+oracle")
    }
    assert torch.equal(vectors["pooled"], vectors["pooled+fedpals"])
    assert not torch.equal(vectors["pooled"], vectors["fedprox+pooled"])
    assert not torch.equal(vectors["pooled"], vectors["pooled+oracle"])


PATHS = dict.fromkeys(METHODS, "loss_and_gradient")
"""How a step of the CNN is computed: all by the compiled step; one that does not say what it does to logits would be
differentiated by torch (``differentiate``)."""


@pytest.mark.parametrize("name", METHODS)
def test_which_way_a_step_of_the_cnn_goes(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken = set()
    for way in ("loss_and_gradient", "differentiate"):
        original = getattr(Kernel, way)

        def watched(*given: object, way: str = way, original: object = original) -> object:
            taken.add(way)
            return original(*given)  # type: ignore[operator]

        monkeypatch.setattr(Kernel, way, watched)
    simulate(Run.of(**{**SMALL, "method": name, "model": "cnn", "rounds": 1}), tmp_path)
    assert taken == {PATHS[name]}


def test_fedrs_alone_is_the_graded_one_and_records_say_so() -> None:
    method = build_method("fedrs+fedpals", {"ess": 0.5, "absent_factor": 0.2})
    assert (method.name, type(method.rule)) == ("fedrs_graded+fedpals", GradedSoftmax)
    assert Run.of(method="fedrs").digest == Run.of(method="fedrs_graded").digest
    assert Run.of(method="fedrs").keys()["method"] == "fedrs_graded"
    with pytest.raises(InputError, match="a method 'fedrs' is there already"):
        register("fedrs", rule=BinarySoftmax)
