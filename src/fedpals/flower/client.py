"""The client side: label counts for any ClientApp, and a ready-made ClientApp for every method."""

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

_NOISY_COUNTS = "fedpals.noisycounts"
"""Key of the noisy counts in a node's state."""


def add_labelcounts(app: ClientApp, counts: Callable[[Context], npt.ArrayLike]) -> None:
    """Let ``app`` send the server its number of training samples of each label.

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
    """A client's samples, the network to train on them, and the training plan.

    With ``count_epsilon`` the server learns nothing about the labels but their noisy counts: the client then sends no
    tallies and no sums of features, which would be exact.
    """

    model: FlatModel
    x: Tensor
    y: Tensor
    labels: int
    """Number of labels, K."""
    plan: Plan = field(default_factory=Plan)
    number: int = 0
    """Number of this client; its random draws depend on it."""
    seed: int = 0
    held_out: float | None = None
    """Share of each label's samples, rounded down, to hold out of training and evaluate the global models on."""
    count_epsilon: float | None = None
    """ε of the noise added to the label counts before they are sent."""
    rounds: int | None = None
    """Number of rounds of the whole training; needed if the plan has a schedule."""

    def __post_init__(self) -> None:
        if self.held_out is not None and not 0 < self.held_out < 1:
            raise InputError(f"held_out is {self.held_out}; it must be between 0 and 1, for instance 0.1")
        if self.held_out is not None and self.count_epsilon is not None:
            raise InputError(
                "held_out and count_epsilon: tallies of held-out samples reveal how many there are of each label, "
                "which the noise should hide; give one of them"
            )

    @cached_property
    def client(self) -> Client:
        """The client as every engine trains it; its held-out samples are the simulator's for its seed and number."""
        if self.held_out is None:
            return Client(self.x, self.y, self.labels, self.number, self.seed)
        rng = generator(self.seed, "held out", self.number)
        parts = held_out(self.y.cpu().numpy(), np.arange(len(self.y)), self.held_out, rng)
        training, held = (torch.from_numpy(part).to(self.y.device) for part in parts)
        own = self.x[held], self.y[held]
        return Client(self.x[training], self.y[training], self.labels, self.number, self.seed, own)

    @property
    def counts(self) -> Sequence[int]:
        """Counts of the training samples by label, (K,)."""
        return torch.bincount(self.client.y, minlength=self.labels).tolist()

    def feature_sums(self) -> FeatureSums:
        """Add up the inputs of the network's last layer over the training samples."""
        if self.count_epsilon is not None:
            raise InputError("this client adds noise to its label counts; sums of features would reveal them exactly")
        return self.client.feature_sums(self.model)

    def load(self, arrays: ArrayRecord) -> Tensor:
        """Put the global arrays into the network and return them as a vector."""
        self.model.network.load_state_dict(arrays.to_torch_state_dict())
        return self.model.vector.clone()


def client_app(load: Callable[[Context], Trainee]) -> ClientApp:
    """Return a ClientApp that trains as the server's method requires; ``load`` returns this node's client.

    The messages carry everything that a rule needs from earlier rounds, so a node can be restarted at any time.
    """
    app = ClientApp()

    def load_with_arrays(content: RecordDict, context: Context) -> Trainee:
        trainee = load(context)
        trainee.load(_arrays(content))
        return trainee

    def introduce(_: RecordDict, context: Context) -> RecordDict:
        trainee = load(context)
        samples = trainee.client.held_out
        held_out = len(samples[1]) if samples else 0
        counts, number = _reported_counts(trainee, context), _number(context)
        return messages.labelcounts(Introduction(counts, number, held_out, trainee.count_epsilon))

    def loss(content: RecordDict, context: Context) -> RecordDict:
        trainee = load_with_arrays(content, context)
        return messages.loss(trainee.client.loss(trainee.model, trainee.model.vector.clone()))

    def tally(content: RecordDict, context: Context) -> RecordDict:
        trainee = load_with_arrays(content, context)
        return messages.sums(trainee.client.tally(trainee.model))

    def compare(content: RecordDict, context: Context) -> RecordDict:
        trainee = load(context)
        vectors = [trainee.load(arrays) for arrays in messages.read_candidates(content)]
        return messages.sums(trainee.client.compare(trainee.model, vectors))

    def feature_sums(content: RecordDict, context: Context) -> RecordDict:
        return messages.sums(load_with_arrays(content, context).feature_sums())

    def held_out_features(content: RecordDict, context: Context) -> RecordDict:
        trainee = load_with_arrays(content, context)
        return messages.sums(trainee.client.held_out_features(trainee.model))

    _answer(app, messages.LABELCOUNTS, introduce)
    _answer(app, messages.LOSS, loss)
    _answer(app, messages.TALLY, tally)
    _answer(app, messages.COMPARISON, compare)
    _answer(app, messages.FEATURESUMS, feature_sums)
    _answer(app, messages.FEATURES, held_out_features)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        trainee, content = load(context), message.content
        rule, server, state = messages.read_job(content)
        start, number = trainee.load(_arrays(content)), messages.read_round(content)
        plan = trainee.plan.at(number, trainee.rounds)
        update = trainee.client.train(trainee.model, start, rule, plan, number, server=server, state=state)
        # With noise a change of the counts would not be seen, and a restarted node would spend ε again to repeat them.
        counts = trainee.counts if trainee.count_epsilon is None else None
        metrics: dict[str, float] = {"num-examples": max(0, sum(_reported_counts(trainee, context)))}
        if update.loss is not None:
            metrics["train_loss"] = update.loss
        arrays = ArrayRecord(dict(trainee.model.network.state_dict()))
        return Message(messages.answer(arrays, metrics, rule, update.state, counts), reply_to=message)

    return app


def _answer(app: ClientApp, question: str, answer: Callable[[RecordDict, Context], RecordDict]) -> None:
    """Register the app's answer to a question of the server."""

    @app.query(question.removeprefix("query."))
    def reply(message: Message, context: Context) -> Message:
        return Message(answer(message.content, context), reply_to=message)


def _reported_counts(trainee: Trainee, context: Context) -> list[int]:
    """Return the counts to report; noise is drawn once and stored for the run, because every draw spends ε."""
    if trainee.count_epsilon is None:
        return list(trainee.counts)
    if _NOISY_COUNTS not in context.state:
        counts = secure_counts(trainee.counts, trainee.count_epsilon).tolist()
        context.state[_NOISY_COUNTS] = MetricRecord({"counts": counts})
    return context.state.metric_records[_NOISY_COUNTS]["counts"]  # type: ignore[return-value]


def _number(context: Context) -> int | None:
    number = context.node_config.get("partition-id")
    return number if isinstance(number, int) else None


def _arrays(content: RecordDict) -> ArrayRecord:
    return next(iter(messages.own(content.array_records).values()))
