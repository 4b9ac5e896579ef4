"""A training run inside this process with six clients, one of which is at fault, and the judgement of its result."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpals.errors import FedpalsError
from fedpals.flower import FedPALS, LabelAware, add_labelcounts
from fedpals.rng import generator
from tests.flower.faults.harness import Outcome, Verdict
from tests.flower.grids import FakeGrid, Spoil

COUNTS = [[30, 10, 5], [5, 20, 20], [10, 10, 40], [15, 5, 5], [8, 25, 9], [12, 12, 12]]
TARGET = [0.6, 0.3, 0.1]
CULPRIT = 1
IMPOSTOR = 20_000
"""Another node, which says that it is the culprit."""
ROUNDS = 3
SECONDS = 20
"""A wait beyond this is unbounded: every limit of these runs is below 3 s."""


Result = tuple[ArrayRecord, list[str]]
"""Arrays, and what was logged as a warning."""


class _Unbounded(BaseException):
    """The run waits for too long."""


def initial() -> ArrayRecord:
    """Return the arrays that training starts with."""
    rng = generator(0, "faults")
    return ArrayRecord(
        {
            "weight": Array(rng.normal(size=(4, 3)).astype(np.float32)),
            "bias": Array(np.zeros(3, np.float32)),
            "seen": Array(np.array(7)),
        }
    )


def honest_app() -> ClientApp:
    """Return an app as Flower's quickstart has it; clients move a tenth of the way to a point, each to its own."""
    app = ClientApp()
    add_labelcounts(app, lambda context: COUNTS[int(context.node_config["partition-id"])])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        rng = generator(0, "point", int(context.node_config["partition-id"]))
        arrays = ArrayRecord()
        for key, array in message.content.array_records["arrays"].items():
            value = array.numpy()
            if value.dtype.kind == "f":
                value = (value + 0.1 * (rng.normal(size=value.shape) - value)).astype(value.dtype)
            arrays[key] = Array(value)
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def fedpals(**settings: Any) -> LabelAware:
    """Return the strategy; all of its limits are short."""
    limits = {"fraction_evaluate": 0.0, "wait": 2.0, "patience": 0.3, "min_available_nodes": 2}
    return FedPALS(TARGET, ess=0.6, **{**limits, **settings})


def six() -> FakeGrid:
    """Return six honest nodes."""
    return FakeGrid(honest_app(), range(len(COUNTS)))


@dataclass
class Scene:
    """What happens: ``spoil`` changes the culprit's replies, ``arrange`` anything else, ``settings`` the strategy."""

    spoil: Spoil | None = None
    arrange: Callable[[FakeGrid], None] = lambda _: None
    settings: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Result:
        """Return the final arrays and what was logged as a warning."""
        grid = six()
        if self.spoil is not None:
            grid.spoil[grid.node(CULPRIT)] = self.spoil
        self.arrange(grid)
        with warnings_logged() as lines, limited():
            arrays = fedpals(**self.settings).start(grid, initial(), ROUNDS, 2.0).arrays
        return arrays, lines


def ending(run: Callable[[], Result]) -> Outcome | Result:
    """Return the outcome of a run that does not end well, otherwise its result."""
    try:
        return run()
    except _Unbounded:
        return Outcome(Verdict.WAIT, f"no end within {SECONDS} s")
    except FedpalsError as error:
        return Outcome(Verdict.ENDED, str(error))
    except Exception as error:  # noqa: BLE001 -- what a user would see as a traceback
        return Outcome(Verdict.RAW, repr(error))


def judge(scene: Scene) -> Outcome:
    """Compare the result of a scene with those of honest clients, all of them and all but the culprit."""
    result = ending(scene.run)
    if isinstance(result, Outcome):
        return result
    arrays, lines = result
    suspects = (f"client {CULPRIT} ", f"node {six().node(CULPRIT)}", f"node {IMPOSTOR}")
    named = [line for line in lines if any(suspect in line for suspect in suspects)]
    evidence = named[0] if named else "no warning"
    everybody, _ = Scene(settings=scene.settings).run()
    if same(arrays, everybody):
        return Outcome(Verdict.WARNED if named else Verdict.OK, f"the honest model; {evidence}")
    if any(same(arrays, without(first, scene.settings)) for first in (True, False)):
        return Outcome(Verdict.REFUSED if named else Verdict.SILENT, evidence)
    return Outcome(Verdict.WARNED if named else Verdict.SILENT, evidence)


def without(from_the_start: bool, settings: dict[str, Any]) -> ArrayRecord:
    """Return the model of the others: the culprit never joins, or its training is lost in every round."""

    def leave(grid: FakeGrid) -> None:
        if from_the_start:
            del grid.contexts[grid.node(CULPRIT)]

    lost = None if from_the_start else lambda reply: None if reply.metadata.message_type == "train" else reply
    return Scene(lost, leave, settings).run()[0]


def same(a: ArrayRecord, b: ArrayRecord) -> bool:
    """Return whether two models have the same bits."""
    return list(a) == list(b) and all(np.array_equal(a[key].numpy(), b[key].numpy()) for key in a)


@contextmanager
def warnings_logged() -> Iterator[list[str]]:
    """Yield the warnings that Flower's log gets inside the block."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, keep = logging.getLogger("flwr"), Keep(logging.WARNING)
    silenced = [handler for handler in logger.handlers if handler.level < logging.CRITICAL]
    logger.addHandler(keep)
    for handler in silenced:
        logger.removeHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(keep)
        for handler in silenced:
            logger.addHandler(handler)


@contextmanager
def limited() -> Iterator[None]:
    """Raise inside the block if it takes too long; only in the main thread."""

    def stop(*_: object) -> None:
        raise _Unbounded

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
