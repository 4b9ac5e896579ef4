"""A Flower grid inside this process: messages go to the real handlers, faults are made on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedpals.flower import Trainee, client_app
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker

SMALL: dict[str, Any] = {"task": "digits", "labels_per_client": 3, "clients": 6, "model": "logistic", "rounds": 5}

Spoil = Callable[[Message], Message | None]
"""Changes a reply, or loses it (None)."""


class FakeGrid(Grid):
    """Nodes with an app and a context each; ``spoil`` holds what happens to replies of a node."""

    def __init__(self, app: ClientApp, partitions: Iterable[int], *, run_config: dict[str, Any] | None = None) -> None:
        self.app = app
        self.contexts: dict[int, Context] = {}
        self.spoil: dict[int, Spoil] = {}
        self.offline: set[int] = set()
        self.hanging: set[int] = set()
        """Nodes that are connected and do not answer."""
        self.sent: list[Message] = []
        self.waiting: dict[str, Message] = {}
        for i in partitions:
            self.join(i, run_config)

    def join(self, partition: int, run_config: dict[str, Any] | None = None, node: int | None = None) -> int:
        # Node ids are in no order, as Flower's are.
        node = node or 1000 + (partition * 7919) % 104729
        config: dict[str, Any] = {"partition-id": partition}
        self.contexts[node] = Context(1, node, config, RecordDict(), run_config or {})
        return node

    def node(self, partition: int) -> int:
        return next(n for n, c in self.contexts.items() if c.node_config["partition-id"] == partition)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self.sent)}"
            self.sent.append(message)
            self.waiting[message.metadata.message_id] = message
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies; a lost one has expired, as no test waits for it, unless its node is slow."""
        replies = []
        for message_id in list(message_ids):
            message = self.waiting[message_id]
            node = message.metadata.dst_node_id
            if node in self.hanging:
                continue
            del self.waiting[message_id]
            spoilt = self.flowers_error(5, message) if node in self.offline else self.answered(message)
            replies.append(self.flowers_error(3, message) if spoilt is None else spoilt)
        return replies

    def answered(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        try:
            reply = self.app(message, self.contexts[node])
        except Exception as error:  # noqa: BLE001 -- as Flower's client process does
            reply = Message(Error(2, repr(error)), reply_to=message)
        return self.spoil[node](reply) if node in self.spoil else reply

    @staticmethod
    def flowers_error(code: int, message: Message) -> Message:
        """An error that Flower reports in its own name."""
        report = Message(Error(code, "unavailable"), reply_to=message)
        report.metadata.__dict__["_src_node_id"] = 1
        return report

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        del timeout
        return self.pull_messages(self.push_messages(list(messages)))

    def kinds(self, kind: str) -> list[int]:
        """The nodes that were sent a kind of message."""
        return [m.metadata.dst_node_id for m in self.sent if m.metadata.message_type == kind]

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError


@cache
def worker(**settings: Any) -> Worker:
    return Worker(Run.of(**{**SMALL, **settings}))


def app_of(worker: Worker, **settings: Any) -> ClientApp:
    """The clients of a run as a ClientApp; ``settings`` are a trainee's."""

    def load(context: Context) -> Trainee:
        number = int(context.node_config["partition-id"])
        own = worker.client(number)
        labels = len(worker.federation.dataset.labels)
        return Trainee(worker.model, own.x, own.y, labels, worker.run.plan, number, worker.run.seed, **settings)

    return client_app(load)


def grid_of(worker: Worker, **settings: Any) -> FakeGrid:
    return FakeGrid(app_of(worker, **settings), range(len(worker.federation.clients)))


def initial(worker: Worker) -> ArrayRecord:
    """The parameters that a run starts from."""
    fresh = Worker(worker.run)
    return ArrayRecord(dict(fresh.model.network.state_dict()))


def flat(arrays: ArrayRecord, like: Worker) -> torch.Tensor:
    """Arrays as the simulator's vector."""
    like.model.network.load_state_dict(arrays.to_torch_state_dict())
    return like.model.vector.clone()


def spoiling(kind: str, spoil: Spoil) -> Spoil:
    """Spoil the answers to one kind of question."""
    return lambda reply: spoil(reply) if reply.metadata.message_type == kind else reply


def answer(spoil: Callable[[ArrayRecord], None]) -> Spoil:
    """Spoil the arrays of an answer."""

    def spoilt(reply: Message) -> Message:
        spoil(reply.content.array_records["fedpals.sums"])
        return reply

    return spoilt


def change(**values: Any) -> Callable[[ArrayRecord], None]:
    def apply(record: ArrayRecord) -> None:
        for key, value in values.items():
            record[key] = Array(np.asarray(value))

    return apply


def changed(key: str, by: Callable[[np.ndarray], Any]) -> Callable[[ArrayRecord], None]:
    return lambda record: change(**{key: by(record[key].numpy())})(record)
