"""What the tests of the strategies share: counts and a target, an app as Flower's quickstart has it, and a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpals import solve
from fedpals.flower import FedPALS, LabelAware, add_labelcounts
from tests.flower.grids import FakeGrid

COUNTS = [[30, 10, 0], [0, 20, 20], [10, 10, 40], [5, 5, 5]]
TARGET = [0.7, 0.2, 0.1]
QUIET: dict[str, Any] = {"fraction_evaluate": 0.0, "wait": 0.05}


def start() -> ArrayRecord:
    return ArrayRecord(
        {
            "weight": Array(np.arange(6, dtype=np.float32).reshape(2, 3)),
            "half": Array(np.ones(2, dtype=np.float16)),
            "double": Array(np.array(0.125)),
            "seen": Array(np.array(7)),
        }
    )


def plain_app(counts: Callable[[int], Any] = lambda i: COUNTS[i]) -> ClientApp:
    """A ClientApp as Flower's quickstart has it, with the one line added; client i adds i + 1 to every array."""
    app = ClientApp()
    add_labelcounts(app, lambda context: counts(int(context.node_config["partition-id"])))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        values = {key: array.numpy() for key, array in message.content.array_records["arrays"].items()}
        arrays = ArrayRecord({key: Array(np.asarray(v + v.dtype.type(number + 1))) for key, v in values.items()})
        metrics = MetricRecord({"train_loss": float(number), "num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        metrics = MetricRecord({"eval_loss": float(number), "num-examples": sum(COUNTS[number])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def four() -> FakeGrid:
    return FakeGrid(plain_app(), range(4))


def fedpals(**settings: Any) -> FedPALS:
    return FedPALS(TARGET, ess=0.6, **{**QUIET, **settings})


def expected(counts: list[list[int]], clients: list[int], ess: float = 0.6) -> dict[int, float]:
    alpha = solve([counts[i] for i in clients], TARGET, ess=ess).alpha.tolist()
    return dict(zip(clients, alpha, strict=True))


def alpha_of(server: LabelAware) -> dict[int, float]:
    result = server.rounds[-1]
    return dict(zip(result.participants.tolist(), result.alpha.tolist(), strict=True))


def reply_of(reply: Message) -> Message:
    """The message that ``reply`` answers, for another answer to it."""
    return Message(RecordDict(), reply_to=reply)


class StoppedError(Exception):
    """The server's process ends."""
