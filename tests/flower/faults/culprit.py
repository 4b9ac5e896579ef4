"""What a client of the example app does wrong: a copy of this file becomes a part of the app (`deployed`)."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

CULPRIT = 1
FOREVER = 3600.0
GO = "go"
"""File that ends the wait of held clients."""
VICTIM = "victim"
"""File with the id of the honest client's node."""

Act = Callable[[ClientApp, Message, Context], Message]
"""Answers a message; the first argument is the honest app."""


class Misbehaving(ClientApp):
    """The honest app, except for what ``act`` does instead."""

    def __init__(self, honest: ClientApp, act: Act) -> None:
        super().__init__()
        self.honest, self.act = honest, act

    def __call__(self, message: Message, context: Context) -> Message:
        return self.act(self.honest, message, context)


def lying(change: Callable[[ArrayRecord, ArrayRecord], None]) -> Act:
    """Change the culprit's arrays in round 1, given those that it started from."""

    def act(honest: ClientApp, message: Message, context: Context) -> Message:
        reply = honest(message, context)
        if is_culprit(context) and trains(message) == 1:
            change(message.content.array_records["arrays"], reply.content.array_records["arrays"])
        return reply

    return act


def claiming(honest: ClientApp, message: Message, context: Context) -> Message:
    """Let the culprit claim 10¹² samples in every message that holds its counts."""
    reply = honest(message, context)
    return claim(reply) if is_culprit(context) else reply


def claim(reply: Message) -> Message:
    """Change the counts in a reply to 10¹² samples, all with the first label."""
    for record in reply.content.metric_records.values():
        if isinstance(counts := record.get("counts"), list):
            record["counts"] = [10**12] + [0] * (len(counts) - 1)
    return reply


def silent(honest: ClientApp, message: Message, context: Context) -> Message:
    """Let the culprit never answer when it is to train."""
    if is_culprit(context) and trains(message):
        time.sleep(FOREVER)
    return honest(message, context)


class _Forged(Message):
    """A message whose contents name another sender than its envelope; SuperLink reads the envelope alone."""

    def deflate(self) -> bytes:
        own = self.metadata.src_node_id
        self.metadata.__dict__["_src_node_id"] = int(Path(os.environ["TMPDIR"], VICTIM).read_text(encoding="utf-8"))
        try:
            return super().deflate()
        finally:
            self.metadata.__dict__["_src_node_id"] = own


_Forged.__qualname__ = Message.__qualname__  # it is sent by this name


def forging(honest: ClientApp, message: Message, context: Context) -> Message:
    """Let the culprit's first update be sent in the name of the honest client."""
    reply = honest(message, context)
    if not is_culprit(context):
        Path(os.environ["TMPDIR"], VICTIM).write_text(str(context.node_id), encoding="utf-8")
    elif trains(message) == 1:
        reply.__class__ = _Forged
    return reply


def forgetful(*clients: int) -> Act:
    """Let clients have an app without the line that answers for label counts."""

    def act(honest: ClientApp, message: Message, context: Context) -> Message:
        forgets = context.node_config["partition-id"] in clients and message.metadata.message_type.startswith("query.")
        return (ClientApp() if forgets else honest)(message, context)

    return act


def held(number: int) -> Act:
    """Let all clients leave a sign that they train in a round, and wait until they may go on."""

    def act(honest: ClientApp, message: Message, context: Context) -> Message:
        if trains(message) == number:
            folder = Path(os.environ["TMPDIR"])
            (folder / f"training-{os.getpid()}").touch()
            deadline = time.monotonic() + FOREVER
            while not (folder / GO).exists() and time.monotonic() < deadline:
                time.sleep(0.1)
        return honest(message, context)

    return act


def trains(message: Message) -> int | None:
    """Return the round in which a message asks to train; None if it asks for something else."""
    if message.metadata.message_type != "train":
        return None
    return int(str(message.content.config_records["config"]["server-round"]))


def is_culprit(context: Context) -> bool:
    return context.node_config["partition-id"] == CULPRIT


def _nan(_: ArrayRecord, after: ArrayRecord) -> None:
    for key, array in after.items():
        after[key] = Array(np.full_like(array.numpy(), np.nan))


def _times(factor: float) -> Callable[[ArrayRecord, ArrayRecord], None]:
    def change(before: ArrayRecord, after: ArrayRecord) -> None:
        for key, array in after.items():
            start = before[key].numpy()
            after[key] = Array((start + factor * (array.numpy() - start)).astype(start.dtype))

    return change


def _giant(before: ArrayRecord, after: ArrayRecord) -> None:
    for key, array in before.items():
        after[key] = Array((array.numpy() + 1e30).astype(array.numpy().dtype))


def _flat(_: ArrayRecord, after: ArrayRecord) -> None:
    for key, array in after.items():
        after[key] = Array(array.numpy().reshape(1, -1))


def _header(_: ArrayRecord, after: ArrayRecord) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**11,)})
    for key, array in after.items():
        after[key] = Array(array.dtype, array.shape, array.stype, file.getvalue())


LIES: dict[str, Act] = {
    "NaN everywhere": lying(_nan),
    "header of 10¹¹ floats": lying(_header),
    "another shape": lying(_flat),
    "update × −50": lying(_times(-50.0)),
    "update of 10³⁰": lying(_giant),
}
"""Updates that are to be refused."""
