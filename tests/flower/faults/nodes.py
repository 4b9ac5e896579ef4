"""Nodes that are silent, come twice, or are not who they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from flwr.app import Message
from flwr.clientapp import ClientApp

from tests.flower.faults.harness import Fault, Verdict
from tests.flower.faults.scene import CULPRIT, IMPOSTOR, Scene, honest_app, judge
from tests.flower.grids import FakeGrid, Spoil

GONE = (Verdict.REFUSED, Verdict.WARNED)


def faults() -> Iterator[Fault]:
    """Yield all faults of nodes."""
    for name, (arrange, wanted) in ARRANGEMENTS.items():
        yield Fault(f"node: {name}", wanted, partial(judge, Scene(arrange=arrange)))


def _silent(grid: FakeGrid) -> None:
    grid.hanging.add(grid.node(CULPRIT))


def _all_silent(grid: FakeGrid) -> None:
    grid.hanging |= set(grid.contexts)


def _hangs_when(kind: str, times: int) -> Callable[[FakeGrid], None]:
    """Let the culprit hang from its ``times``-th message of a kind on."""

    def arrange(grid: FakeGrid) -> None:
        node, push = grid.node(CULPRIT), grid.push_messages

        def watched(messages: Any) -> Any:
            ids = push(messages)
            if grid.kinds(kind).count(node) >= times:
                grid.hanging.add(node)
            return ids

        grid.push_messages = watched  # type: ignore[method-assign]

    return arrange


def _without_counts(*numbers: int) -> Callable[[FakeGrid], None]:
    """Let nodes have an app without the line that answers for label counts."""
    forgetful = ClientApp()
    honest = honest_app()

    @forgetful.train()
    def train(message: Message, context: Any) -> Message:
        return honest(message, context)

    def arrange(grid: FakeGrid) -> None:
        nodes = {grid.node(number) for number in numbers}
        careful = grid.app

        def app(message: Message, context: Any) -> Message:
            return (forgetful if context.node_id in nodes else careful)(message, context)

        grid.app = app  # type: ignore[assignment]

    return arrange


def _after_first_round(act: Callable[[FakeGrid], None]) -> Callable[[FakeGrid], None]:
    """Let something happen once the culprit has trained, between two rounds."""

    def arrange(grid: FakeGrid) -> None:
        node, ids, done = grid.node(CULPRIT), grid.get_node_ids, list[bool]()

        def get_node_ids() -> Any:
            if not done and grid.kinds("train").count(node) == 1 and not grid.waiting:
                done.append(True)
                act(grid)
            return ids()

        grid.get_node_ids = get_node_ids  # type: ignore[method-assign]

    return arrange


def _twin(grid: FakeGrid) -> None:
    """A second node with the culprit's partition-id."""
    grid.join(CULPRIT, node=IMPOSTOR)


def _takeover(grid: FakeGrid) -> None:
    """A second node with the culprit's number, which calls its counts noisy so that they may differ."""
    grid.join(CULPRIT, node=IMPOSTOR)
    grid.spoil[IMPOSTOR] = _claiming(epsilon=1.0)


def _claiming(**facts: float) -> Spoil:
    def spoil(reply: Message) -> Message:
        if reply.metadata.message_type == "query.labelcounts":
            record = next(iter(reply.content.metric_records.values()))
            record["counts"] = [1, 1, 900]
            record.update(facts)
        return reply

    return spoil


def _restart(grid: FakeGrid) -> None:
    """The culprit comes back under another id, without a key that is known."""
    del grid.contexts[grid.node(CULPRIT)]
    grid.join(CULPRIT, node=IMPOSTOR)


def _usurper(grid: FakeGrid) -> None:
    """The culprit leaves, and another with other counts says that it is the culprit."""
    _restart(grid)
    grid.spoil[IMPOSTOR] = _claiming()


ARRANGEMENTS: dict[str, tuple[Callable[[FakeGrid], None], tuple[Verdict, ...]]] = {
    "silent from the start": (_silent, GONE),
    "all silent": (_all_silent, (Verdict.ENDED,)),
    "hangs in its first training": (_hangs_when("train", 1), GONE),
    "hangs in its second training": (_hangs_when("train", 2), GONE),
    "its app has no label counts": (_without_counts(CULPRIT), GONE),
    "no app has label counts": (_without_counts(*range(6)), (Verdict.ENDED,)),
    "two with one partition-id from the start": (_twin, (Verdict.WARNED,)),
    "a second one with its partition-id later": (_after_first_round(_twin), (Verdict.WARNED,)),
    "takeover of its row with noisy counts": (_after_first_round(_takeover), (Verdict.WARNED,)),
    "restarts under another id": (_after_first_round(_restart), (Verdict.OK,)),
    "comes back with other counts": (_after_first_round(_usurper), GONE),
}
