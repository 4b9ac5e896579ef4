"""The client's side: its label counts for any ClientApp, and a ready step for every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedpals.data.partitions import held_out
from fedpals.engine.client import Client
from fedpals.engine.flat_model import FlatModel
from fedpals.engine.plan import Plan
from fedpals.errors import InputError
from fedpals.flower import messages
from fedpals.flower.messages import Introduction
from fedpals.labels.private import secure_counts
from fedpals.rng import generator
from fedpals.shift import FeatureSums

_NOISY = "fedpals.noisycounts"
"""Where a node's state keeps its noisy counts."""


def add_labelcounts(app: ClientApp, counts: Callable[[Context], npt.ArrayLike]) -> None:
    """Let ``app`` answer the server's one question: how many training samples of each label it has.

    ``counts`` returns K whole numbers, in the order of the target's labels, such as
    ``np.bincount(labels, minlength=K)``.
    """

    def introduce(context: Context) -> Introduction:
        values = np.asarray(counts(context))
        if values.ndim != 1 or values.dtype.kind not in "bui":
            raise InputError(f"label counts must be whole numbers, one per label, not {values.dtype} {values.shape}")
        return Introduction(values.tolist(), _number(context))

    _answer(app, messages.LABELCOUNTS, lambda _, context: messages.labelcounts(introduce(context)))


@dataclass(frozen=True, eq=False)
class Trainee:
    """What a client trains: its samples, a network to train them with, and how.

    With ``count_epsilon`` all that the server learns of its labels is their noisy counts, so that it tells neither
    tallies nor sums of features, which are exact.
    """

    model: FlatModel
    x: Tensor
    y: Tensor
    labels: int
    """K."""
    plan: Plan = field(default_factory=Plan)
    number: int = 0
    """Which client this is: part of the address of its draws."""
    seed: int = 0
    held_out: float | None = None
    """Share of each label, rounded down, that it keeps out of training, to tally the global models on."""
    count_epsilon: float | None = None
    """ε of the noise that it adds to its label counts before it tells them."""
    rounds: int | None = None
    """Of the whole training, where the plan has a schedule."""

    def __post_init__(self) -> None:
        if self.held_out is not None and not 0 < self.held_out < 1:
            raise InputError(f"held_out is {self.held_out}; it must be between 0 and 1, for instance 0.1")
        if self.held_out is not None and self.count_epsilon is not None:
            raise InputError(
                "held_out and count_epsilon: tallies of held-out samples tell how many there are of each label, hence "
                "what the noise is to hide; give one of them"
            )

    @cached_property
    def client(self) -> Client:
        """The client that every engine trains; what it holds out is the simulator's split for its seed and number."""
        if self.held_out is None:
            return Client(self.x, self.y, self.labels, self.number, self.seed)
        rng = generator(self.seed, "held out", self.number)
        parts = held_out(self.y.cpu().numpy(), np.arange(len(self.y)), self.held_out, rng)
        training, held = (torch.from_numpy(part).to(self.y.device) for part in parts)
        own = self.x[held], self.y[held]
        return Client(self.x[training], self.y[training], self.labels, self.number, self.seed, own)

    @property
    def counts(self) -> Sequence[int]:
        """K label counts of the samples to train with."""
        return torch.bincount(self.client.y, minlength=self.labels).tolist()

    def feature_sums(self) -> FeatureSums:
        """Add up what the network's last layer sees of the samples to train with."""
        if self.count_epsilon is not None:
            raise InputError("this client tells its label counts with noise; sums of features would tell them exactly")
        return self.client.feature_sums(self.model)

    def load(self, arrays: ArrayRecord) -> Tensor:
        """Put the global arrays into the network and return them as a vector."""
        self.model.network.load_state_dict(arrays.to_torch_state_dict())
        return self.model.vector.clone()


def client_app(load: Callable[[Context], Trainee]) -> ClientApp:
    """Return a ClientApp that trains as the server's method says; ``load`` makes this node's client.

    All that a rule keeps between rounds comes with the messages, so that a node may be restarted.
    """
    app = ClientApp()

    def loaded(content: RecordDict, context: Context) -> Trainee:
        trainee = load(context)
        trainee.load(_arrays(content))
        return trainee

    def introduce(_: RecordDict, context: Context) -> RecordDict:
        trainee = load(context)
        own = trainee.client.held_out
        counts, number = _reported_counts(trainee, context), _number(context)
        return messages.labelcounts(Introduction(counts, number, len(own[1]) if own else 0, trainee.count_epsilon))

    def loss(content: RecordDict, context: Context) -> RecordDict:
        trainee = loaded(content, context)
        return messages.loss(trainee.client.loss(trainee.model, trainee.model.vector.clone()))

    def tally(content: RecordDict, context: Context) -> RecordDict:
        trainee = loaded(content, context)
        return messages.sums(trainee.client.tally(trainee.model))

    def held_out_features(content: RecordDict, context: Context) -> RecordDict:
        trainee = loaded(content, context)
        return messages.sums(trainee.client.held_out_features(trainee.model))

    _answer(app, messages.LABELCOUNTS, introduce)
    _answer(app, messages.LOSS, loss)
    _answer(app, messages.TALLY, tally)
    _answer(app, messages.FEATURESUMS, lambda *asked: messages.sums(loaded(*asked).feature_sums()))
    _answer(app, messages.FEATURES, held_out_features)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        trainee, content = load(context), message.content
        rule, server, state = messages.read_job(content)
        start, number = trainee.load(_arrays(content)), messages.read_round(content)
        plan = trainee.plan.at(number, trainee.rounds)
        update = trainee.client.train(trainee.model, start, rule, plan, number, server=server, state=state)
        # Noise would hide that counts have changed, and a restarted node would spend ε again to repeat them.
        repeated = trainee.counts if trainee.count_epsilon is None else None
        metrics: dict[str, float] = {"num-examples": max(0, sum(_reported_counts(trainee, context)))}
        if update.loss is not None:
            metrics["train_loss"] = update.loss
        arrays = ArrayRecord(dict(trainee.model.network.state_dict()))
        return Message(messages.answer(arrays, metrics, rule, update.state, repeated), reply_to=message)

    return app


def _answer(app: ClientApp, question: str, answer: Callable[[RecordDict, Context], RecordDict]) -> None:
    """Let ``app`` answer a question of the server."""

    @app.query(question.removeprefix("query."))
    def reply(message: Message, context: Context) -> Message:
        return Message(answer(message.content, context), reply_to=message)


def _reported_counts(trainee: Trainee, context: Context) -> list[int]:
    """Return the counts to report; noise is drawn once and remembered for the run, because every draw spends ε."""
    if trainee.count_epsilon is None:
        return list(trainee.counts)
    if _NOISY not in context.state:
        counts = secure_counts(trainee.counts, trainee.count_epsilon).tolist()
        context.state[_NOISY] = MetricRecord({"counts": counts})
    return context.state.metric_records[_NOISY]["counts"]  # type: ignore[return-value]


def _number(context: Context) -> int | None:
    number = context.node_config.get("partition-id")
    return number if isinstance(number, int) else None


def _arrays(content: RecordDict) -> ArrayRecord:
    return next(iter(messages.own(content.array_records).values()))
