"""The client's side: its label counts for any ClientApp, and a ready step for every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedpals.errors import InputError
from fedpals.flower import messages
from fedpals.rng import generator
from fedpals.training import FlatModel, Plan, local_update, mean_loss

_NAME = messages.LABELCOUNTS.removeprefix("query.")


def add_labelcounts(app: ClientApp, counts: Callable[[Context], npt.ArrayLike]) -> None:
    """Let ``app`` answer the server's one question: how many training samples of each label it has.

    ``counts`` returns K whole numbers, in the order of the target's labels, such as
    ``np.bincount(labels, minlength=K)``.
    """

    @app.query(_NAME)
    def answer(message: Message, context: Context) -> Message:
        values = np.asarray(counts(context))
        if values.ndim != 1 or values.dtype.kind not in "bui":
            raise InputError(f"label counts must be whole numbers, one per label, not {values.dtype} {values.shape}")
        number = context.node_config.get("partition-id")
        told = messages.labelcounts(values.tolist(), number if isinstance(number, int) else None)
        return Message(told, reply_to=message)


@dataclass(frozen=True, eq=False)
class Trainee:
    """What a client trains: its samples, a network to train them with, and how."""

    model: FlatModel
    x: Tensor
    y: Tensor
    labels: int
    """K."""
    plan: Plan = field(default_factory=Plan)
    number: int = 0
    """Which client this is: part of the address of its draws."""
    seed: int = 0

    @property
    def counts(self) -> Sequence[int]:
        """K label counts."""
        return torch.bincount(self.y, minlength=self.labels).tolist()

    def load(self, arrays: ArrayRecord) -> Tensor:
        """Put the global arrays into the network and return them as a vector."""
        self.model.network.load_state_dict(arrays.to_torch_state_dict())
        return self.model.vector.clone()


def client_app(load: Callable[[Context], Trainee]) -> ClientApp:
    """Return a ClientApp that trains as the server's method says; ``load`` makes this node's client.

    All that a rule keeps between rounds comes with the messages, so that a node may be restarted.
    """
    app = ClientApp()
    add_labelcounts(app, lambda context: np.array(load(context).counts))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        trainee, content = load(context), message.content
        rule, server, client = messages.read_job(content)
        start = trainee.load(_arrays(content))
        marginal = torch.bincount(trainee.y, minlength=trainee.labels) / len(trainee.y)
        rng = generator(trainee.seed, "batches", messages.read_round(content), trainee.number)
        update = local_update(
            trainee.model, start, trainee.x, trainee.y, marginal, rule, trainee.plan, rng, server=server, client=client
        )
        metrics = {"train_loss": update.loss, "num-examples": len(trainee.y)}
        arrays = ArrayRecord(dict(trainee.model.network.state_dict()))
        return Message(messages.answer(arrays, metrics, rule, update.state, trainee.counts), reply_to=message)

    @app.query(messages.LOSS.removeprefix("query."))
    def loss(message: Message, context: Context) -> Message:
        trainee = load(context)
        start = trainee.load(_arrays(message.content))
        return Message(messages.loss(mean_loss(trainee.model, start, trainee.x, trainee.y)), reply_to=message)

    return app


def _arrays(content: RecordDict) -> ArrayRecord:
    return next(iter(messages.own(content.array_records).values()))
