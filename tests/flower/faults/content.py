"""Messages that lie or cannot be read: one client of six sends them, in every round."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from fedpals.rng import generator
from tests.flower.faults.harness import Fault, Verdict
from tests.flower.faults.scene import Scene, initial, judge, six
from tests.flower.grids import Spoil
from tests.flower.test_bytes import mutated, npy

REFUSED = (Verdict.REFUSED,)
KNOWN = (Verdict.REFUSED, Verdict.WARNED)
"""A lie that may be true: it is refused, or somebody is warned."""


def faults() -> Iterator[Fault]:
    """Yield all faults of messages."""
    for name, change in UPDATES.items():
        yield Fault(f"update: {name}", REFUSED, partial(judge, Scene(spoiling("train", change))))
    for name, replace in BYTES.items():
        yield Fault(f"bytes: {name}", REFUSED, partial(judge, Scene(spoiling("train", _bytes(replace)))))
    for name, factor in FACTORS.items():
        yield Fault(f"lie: {name}", KNOWN, partial(judge, Scene(spoiling("train", partial(scaled, factor=factor)))))
    for name, counts in COUNTS.items():
        scene = Scene(spoiling("query.labelcounts", partial(_claim, counts=counts)))
        yield Fault(f"counts: {name}", REFUSED, partial(judge, scene))
    giant = partial(_claim, counts=[10**12, 0, 0])
    yield Fault("counts: 10¹² samples", KNOWN, partial(judge, Scene(spoiling("query.labelcounts", giant))))
    capped = Scene(spoiling("query.labelcounts", giant), settings={"max_samples": 50})
    yield Fault("counts: 10¹² samples, max_samples=50", (Verdict.WARNED,), partial(judge, capped))
    unharmed = (Verdict.OK, Verdict.WARNED, Verdict.REFUSED)
    for name, metrics in METRICS.items():
        change = partial(_replace, name="metrics", record=metrics)
        yield Fault(f"metrics: {name}", unharmed, partial(judge, Scene(spoiling("train", change))))
    for name, (kind, change) in FORGED.items():
        for whose, sender in {"another client": six().node(OTHER), "nobody": 5}.items():
            scene = Scene(partial(_forge, kind=kind, change=change, sender=sender))
            yield Fault(f"sent as {whose}: {name}", REFUSED, partial(judge, scene))
    for name, spoil in REPLIES.items():
        yield Fault(f"reply: {name}", REFUSED, partial(judge, Scene(spoil)))


def spoiling(kind: str, change: Callable[[RecordDict], None]) -> Spoil:
    def spoil(reply: Message) -> Message:
        if reply.metadata.message_type == kind:
            change(reply.content)
        return reply

    return spoil


def _forge(reply: Message, kind: str, change: Callable[[RecordDict], None], sender: int) -> Message:
    """Write another sender into the answers to one kind of question; SuperLink does not check it."""
    if reply.metadata.message_type == kind:
        reply.metadata.__dict__["_src_node_id"] = sender
        change(reply.content)
    return reply


def _array(key: str, value: Any) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content.array_records["arrays"][key] = Array(np.asarray(value))

    return change


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[RecordDict], None]:
    def apply(content: RecordDict) -> None:
        honest = content.array_records["arrays"]["weight"]
        content.array_records["arrays"]["weight"] = Array("float32", (4, 3), "numpy.ndarray", change(honest.data))

    return apply


def scaled(content: RecordDict, factor: float) -> None:
    """Send the update times ``factor``: the first round's, since a client remembers its start."""
    start = initial()
    for key in ("weight", "bias"):
        before, after = start[key].numpy(), content.array_records["arrays"][key].numpy()
        lie = before + np.float64(factor) * (after - before)
        largest = np.finfo(np.float32).max
        content.array_records["arrays"][key] = Array(lie.clip(-largest, largest).astype(np.float32))


def _claim(content: RecordDict, counts: list[Any]) -> None:
    record = next(iter(content.metric_records.values()))
    record["counts"] = counts


def _replace(content: RecordDict, name: str, record: MetricRecord | None) -> None:
    del content[name]
    if record is not None:
        content[name] = record


def _drop(key: str) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        del content.array_records["arrays"][key]

    return change


def _remove(content: RecordDict) -> None:
    del content["arrays"]


def _double(content: RecordDict) -> None:
    content["more"] = ArrayRecord(dict(content.array_records["arrays"]))


def _pickle(_: bytes) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    return file.getvalue()


def _lose(reply: Message) -> Message | None:
    return None if reply.metadata.message_type == "train" else reply


def _fail(reply: Message) -> Message:
    if reply.metadata.message_type != "train":
        return reply
    report = Message(Error(2, "out of memory"), reply_to=reply)
    report.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
    return report


def _answer_something_else(reply: Message) -> Message:
    if reply.metadata.message_type == "train":
        for name in list(reply.content):
            del reply.content[name]
    return reply


UPDATES = {
    "NaN everywhere": _array("weight", np.full((4, 3), np.nan, np.float32)),
    "one infinite value": _array("bias", np.array([0, np.inf, 0], np.float32)),
    "another shape": _array("weight", np.ones((3, 4), np.float32)),
    "a shape that would broadcast": _array("weight", np.ones(3, np.float32)),
    "more dimensions": _array("weight", np.ones((1, 4, 3), np.float32)),
    "float64": _array("weight", np.ones((4, 3))),
    "complex numbers": _array("weight", np.ones((4, 3), np.complex64)),
    "text": _array("bias", np.array(["a", "b", "c"])),
    "whole numbers as floats": _array("seen", np.array(7.0)),
    "an unknown array": _array("other", np.ones(1, np.float32)),
    "an array is missing": _drop("bias"),
    "no arrays": _remove,
    "two sets of arrays": _double,
}
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda _: b"",
    "nonsense": lambda _: b"nonsense",
    "cut off": lambda data: data[:-5],
    "header of 10¹¹ floats": lambda _: npy("(100000000000,)"),
    "header of the right shape and no data": lambda _: npy("(4, 3)"),
    "header with negative sizes": lambda _: npy("(-4, 3)", data=bytes(48)),
    "header of code": lambda _: npy("(__import__('os').getpid(), 3)", data=bytes(48)),
    "header that is nested deeply": lambda _: npy("(" * 2000 + ")" * 2000),
    "a pickle": _pickle,
    "changed at random": lambda data: mutated(data[:20], generator(0, "mutated")),
}
FACTORS = {"update × −50": -50.0, "update × 1,000": 1e3, "update × 10³⁰": 1e30, "update × 10³⁷": 1e37}
COUNTS: dict[str, list[Any]] = {
    "negative": [-5, 20, 20],
    "fractional": [5.5, 20.0, 20.0],
    "NaN": [float("nan"), 20.0, 20.0],
    "infinite": [float("inf"), 20.0, 20.0],
    "a label too many": [5, 20, 20, 1],
    "a label too few": [5, 20],
    "beyond exact numbers": [2**60, 0, 0],
    "none": [],
}
METRICS = {
    "NaN": MetricRecord({"train_loss": float("nan"), "num-examples": 1}),
    "−10⁹ examples": MetricRecord({"train_loss": 1.0, "num-examples": -(10**9)}),
    "a list": MetricRecord({"train_loss": [1.0, 2.0], "num-examples": 1}),
    "none": None,
}
OTHER = 3
"""An honest client, which has weight."""
FORGED: dict[str, tuple[str, Callable[[RecordDict], None]]] = {
    "an honest update": ("train", lambda _: None),
    "update × −3": ("train", partial(scaled, factor=-3.0)),
    "NaN everywhere": ("train", UPDATES["NaN everywhere"]),
    "counts": ("query.labelcounts", partial(_claim, counts=[1, 1, 900])),
}
"""What the culprit sends under a name that is not its own."""
REPLIES: dict[str, Spoil] = {
    "lost in every round": _lose,
    "the client raises an error": _fail,
    "empty": _answer_something_else,
}
