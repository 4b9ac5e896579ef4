"""The one client step: how a client turns the global parameters into its own, on every engine.

The parameters of a network are one flat float32 vector, of which the layers hold views. A client's
round takes that vector and the client's samples and returns a new vector; methods differ only in the
hooks of a `ClientRule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpals.engine.augmentation import augmented
from fedpals.engine.flat_model import FlatModel
from fedpals.engine.gradients import fastest
from fedpals.engine.plan import Plan
from fedpals.errors import InputError
from fedpals.labels import Indices, Vector
from fedpals.methods import ClientRule
from fedpals.rng import generator, integer_seed
from fedpals.shift import FeatureSums, HeldOutFeatures, Tally
from fedpals.shift.candidates import Comparison
from fedpals.shift.gaussian import WIDEST


@dataclass(frozen=True, eq=False)
class Update:
    """What a client sends back."""

    vector: Tensor
    loss: float | None
    """Mean loss over the steps; None where the client does not tell it."""
    steps: int
    state: Tensor | None = None
    """The rule's new vector of this client."""


@dataclass(frozen=True, eq=False)
class Client:
    """A client's samples, prepared for the network, and the address of its draws."""

    x: Tensor
    y: Tensor
    """To train with."""
    labels: int
    """K."""
    number: int = 0
    seed: int = 0
    held_out: tuple[Tensor, Tensor] | None = None
    """Inputs and labels that it keeps out of training."""

    def train(
        self,
        model: FlatModel,
        start: Tensor,
        rule: ClientRule,
        plan: Plan,
        round_number: int,
        *,
        server: Tensor | None = None,
        state: Tensor | None = None,
    ) -> Update:
        """Train for one round from ``start``; ``server`` and ``state`` are the rule's vectors of server and client.

        Whatever the network draws from torch's generator, as Dropout does, has an address too.
        """
        counts = torch.bincount(self.y, minlength=self.labels)
        rng = generator(self.seed, "batches", round_number, self.number)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(integer_seed(self.seed, "torch", round_number, self.number))
            return local_update(model, start, self.x, self.y, counts, rule, plan, rng, server=server, client=state)

    def loss(self, model: FlatModel, vector: Tensor) -> float:
        """Return the mean loss of the parameters ``vector`` on the samples to train with."""
        return mean_loss(model, vector, self.x, self.y)

    def tally(self, model: FlatModel) -> Tally:
        """Add up what the network, as it is, makes of the samples held out."""
        x, y = self._held_out()
        return Tally.of(y.cpu().numpy(), model.logits(x).double().cpu().numpy())

    def compare(self, model: FlatModel, vectors: Sequence[Tensor]) -> Comparison:
        """Add up what the network makes of the samples held out, with each of several parameters."""
        x, y = self._held_out()
        outputs = []
        for vector in vectors:
            model.load(vector)
            outputs.append(model.logits(x).double().cpu().numpy())
        return Comparison.of(y.cpu().numpy(), outputs)

    def feature_sums(self, model: FlatModel) -> FeatureSums:
        """Add up what the network's last layer sees of the samples to train with."""
        features, y = _features(model, self.x, self.y)
        return FeatureSums.of(features, y, self.labels)

    def training_features(self, model: FlatModel) -> tuple[Vector, Indices]:
        """Return what the network's last layer sees of the samples to train with."""
        return _features(model, self.x, self.y)

    def held_out_features(self, model: FlatModel) -> HeldOutFeatures:
        """Return what the network's last layer sees of the samples held out."""
        return HeldOutFeatures(*_features(model, *self._held_out()))

    def _held_out(self) -> tuple[Tensor, Tensor]:
        if self.held_out is None or not len(self.held_out[1]):
            raise InputError("this client holds no samples out, so it cannot say what a model makes of them")
        return self.held_out


def _features(model: FlatModel, x: Tensor, y: Tensor) -> tuple[Vector, Indices]:
    """Return what the last layer sees, (n, d), with the labels."""
    features = model.features(x)
    if features is None:
        raise InputError("the network's last layer is not linear with a bias, so it has no features to tell of")
    if not 0 < features.shape[1] <= WIDEST:
        raise InputError(f"the network's last layer sees {features.shape[1]} features; at most {WIDEST} are told of")
    return features.double().cpu().numpy(), y.cpu().numpy()


def batches(
    x: Tensor, y: Tensor, plan: Plan, rng: np.random.Generator, *, smallest: int = 1
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield samples, labels, and which of them a step takes: shuffled epochs, cut into batches; the last may be short.

    A rest of fewer than ``smallest`` samples goes to the batch before it. Samples are copied only to be augmented.
    """
    step = 0
    starts = [start for start in range(0, len(y), plan.batch_size) if start == 0 or len(y) - start >= smallest]
    sizes = [end - start for start, end in zip(starts, [*starts[1:], len(y)], strict=True)]
    for _ in range(plan.epochs) if plan.steps is None else count():
        rows = torch.from_numpy(rng.permutation(len(y))).to(x.device)
        inputs, labels = x, y
        if plan.augment is not None:
            inputs, labels, rows = augmented(x[rows], plan.augment, rng), y[rows], _all_rows(x)
        for batch in torch.split(rows, sizes):
            if step == plan.steps:
                return
            yield inputs, labels, batch
            step += 1


def _whole_batch(x: Tensor, y: Tensor, plan: Plan, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield one step that takes all samples."""
    yield x if plan.augment is None else augmented(x, plan.augment, rng), y, _all_rows(x)


def _all_rows(x: Tensor) -> Tensor:
    return torch.arange(len(x), device=x.device)


def local_update(
    model: FlatModel,
    start: Tensor,
    x: Tensor,
    y: Tensor,
    counts: Tensor,
    rule: ClientRule,
    plan: Plan,
    rng: np.random.Generator,
    *,
    server: Tensor | None = None,
    client: Tensor | None = None,
) -> Update:
    """Train one client for one round.

    Parameters
    ----------
    model
        The network to compute with; its current parameters do not matter.
    start
        The global parameters w_t, a flat vector.
    x, y
        The client's samples, prepared, and their labels.
    counts
        (K,) the client's own label counts.
    rule, plan, rng
        How to train, how long, and the generator that shuffles.
    server, client
        The rule's vectors of the server and of this client, None where it keeps none.
    """
    model.load(start)
    model.network.train()
    weights = model.vector[: model.trained]
    anchor = start[: model.trained]
    correction = rule.correction(server, client, anchor)
    take_step = _OPTIMIZERS[plan.optimizer](weights, plan)
    smallest = 2 if model.normalises_batches else 1  # one sample has no variance that a batch could be normalised by
    loss_and_gradient = fastest(model, rule, counts, x, rule.label_weights(counts, server))
    steps_of = _whole_batch(x, y, plan, rng) if rule.full_batch else batches(x, y, plan, rng, smallest=smallest)
    total = torch.zeros_like(weights) if rule.needs_gradients else None
    losses: list[Tensor | float] = []
    for inputs, labels, rows in steps_of:
        loss, gradient = loss_and_gradient(inputs, labels, rows)
        if total is not None:
            total.add_(gradient)
        rule.adjust_gradient(gradient, weights, anchor, correction)
        if plan.clip_norm is not None:
            gradient.mul_((plan.clip_norm / gradient.norm().clamp(min=1e-12)).clamp(max=1.0))
        take_step(gradient)
        losses.append(loss)
    steps = len(losses)
    state = rule.client_state(client, anchor, weights, None if total is None else total.div_(steps))
    return Update(model.vector.clone(), _mean(losses), steps, state)


def _mean(losses: list[Tensor | float]) -> float:
    """Return the mean of the steps' losses; those of torch stay on its device until here."""
    tensors = [loss for loss in losses if isinstance(loss, Tensor)]
    values = torch.stack(tensors).double() if tensors else torch.tensor(losses, dtype=torch.float64)
    return float(values.mean())


def _sgd(weights: Tensor, plan: Plan) -> Callable[[Tensor], None]:
    """SGD; by hand, because torch's optimiser takes a tenth of a small network's step."""
    velocity: Tensor | None = None

    def take_step(gradient: Tensor) -> None:
        nonlocal velocity
        if plan.weight_decay:
            gradient = gradient.add(weights, alpha=plan.weight_decay)
        if plan.momentum is not None:
            velocity = gradient.clone() if velocity is None else velocity.mul_(plan.momentum).add_(gradient)
            gradient = velocity
        weights.sub_(gradient, alpha=plan.learning_rate)

    return take_step


def _adam(weights: Tensor, plan: Plan) -> Callable[[Tensor], None]:
    decay = plan.weight_decay or 0.0
    optimizer = torch.optim.Adam(
        [weights], lr=plan.learning_rate, weight_decay=decay, fused=True
    )  # one pass, not seven

    def take_step(gradient: Tensor) -> None:
        weights.grad = gradient
        optimizer.step()

    return take_step


_OPTIMIZERS = {"sgd": _sgd, "adam": _adam}


def mean_loss(model: FlatModel, vector: Tensor, x: Tensor, y: Tensor) -> float:
    """Return the mean cross-entropy of the parameters ``vector`` on a client's samples."""
    model.load(vector)
    return float(cross_entropy(model.logits(x), y))
