"""Silent nodes, ghosts, duplicates, impostors and forgotten lines: bounded, named, and without any share."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpals.errors import InputError
from fedpals.flower import AFL, SCAFFOLD, FedAvg, LabelAware, TooFewNodesError
from fedpals.flower.patient_grid import PatientGrid
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker
from tests.flower.grids import SMALL, FakeGrid, flat, grid_of, initial
from tests.flower.scene import COUNTS, QUIET, TARGET, alpha_of, expected, fedpals, four, plain_app, start

IMPATIENT: dict[str, Any] = {"patience": 0.1, "wait": 5.0}


def warnings(log: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [r.getMessage() for r in log.records if r.levelno >= logging.WARNING and words in r.getMessage()]


def participants(server: LabelAware) -> list[list[int]]:
    return [result.participants.tolist() for result in server.rounds]


# Silence


def test_a_node_silent_on_counts_costs_its_patience_once(log: pytest.LogCaptureFixture) -> None:
    grid = four()
    grid.hanging = {grid.node(1)}
    server = fedpals(**{**IMPATIENT, "patience": 0.4}, fraction_evaluate=1.0)
    began = time.monotonic()
    server.start(grid, start(), num_rounds=4)
    assert 0.4 <= time.monotonic() - began < 3.0
    assert alpha_of(server) == pytest.approx({0: expected(COUNTS, [0, 2, 3])[0]} | numbered(server))
    assert len(warnings(log, f"node {grid.node(1)} has not sent its label counts")) == 1
    assert grid.kinds("query.labelcounts").count(grid.node(1)) == 1, "its question is still open"


def numbered(server: LabelAware) -> dict[int, float]:
    """Weights by row: the fourth client has the third row, if the second was not there."""
    weights = list(expected(COUNTS, [0, 2, 3]).values())
    assert len(server.rounds[-1].participants) == 3
    return dict(enumerate(weights))


def test_a_late_answer_brings_a_node_in() -> None:
    grid = four()
    grid.hanging = {grid.node(1)}

    def evaluate(number: int, _: ArrayRecord) -> None:
        if number == 1:
            grid.hanging = set()

    server = FedAvg(TARGET, **{**QUIET, **IMPATIENT})
    server.start(grid, start(), num_rounds=2, evaluate_fn=evaluate)
    assert [len(result.participants) for result in server.rounds] == [3, 4]


def test_answers_that_keep_coming_are_all_waited_for() -> None:
    """Ten slow nodes, each slower than the patience that a silent one gets."""
    grid = FakeGrid(plain_app(lambda _: [5, 5, 5]), range(10))
    pull, began = grid.pull_messages, time.monotonic()

    def slow(message_ids: Any) -> Any:
        number = int(next(iter(message_ids)).split()[1])
        return pull(message_ids) if time.monotonic() - began > 0.15 * number + 0.15 else []

    grid.pull_messages = slow  # type: ignore[method-assign]
    server = FedAvg(TARGET, **{**QUIET, **IMPATIENT})
    server.start(grid, start(), num_rounds=1)
    assert len(alpha_of(server)) == 10


@pytest.mark.parametrize("late", [0, 2])
def test_it_does_not_matter_who_answers_first(late: int) -> None:
    """Participants are drawn by row, so rows must not follow the order in which nodes happened to start."""
    grid, refusals = four(), iter(range(8))
    pull = grid.pull_messages

    def pull_late(message_ids: Any) -> Any:
        (message_id,) = message_ids
        waits = grid.waiting[message_id].metadata.dst_node_id == grid.node(late) and next(refusals, None) is not None
        return [] if waits else pull([message_id])

    settings = {**QUIET, "wait": 5.0, "fraction_train": 0.5}
    expected = FedAvg(TARGET, **settings).start(four(), start(), num_rounds=4)
    grid.pull_messages = pull_late  # type: ignore[method-assign]
    seen = FedAvg(TARGET, **settings).start(grid, start(), num_rounds=4)
    assert next(refusals, None) is None
    for ours, theirs in zip(seen.arrays.to_numpy_ndarrays(), expected.arrays.to_numpy_ndarrays(), strict=True):
        assert (ours == theirs).all()


def test_a_node_that_hung_is_left_out_until_it_answers(log: pytest.LogCaptureFixture) -> None:
    grid = four()
    lost = grid.node(2)

    def evaluate(number: int, _: ArrayRecord) -> None:
        # It hangs in the second round, and comes back before the fourth.
        grid.spoil = {lost: lambda _: None} if number in (1, 2) else {}

    server = fedpals(**IMPATIENT)
    server.start(grid, start(), num_rounds=5, timeout=9, evaluate_fn=evaluate)
    assert participants(server) == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert grid.kinds("train").count(lost) == 5 - 1, "no work while it owes an answer"
    assert len(warnings(log, "no reply within 9 s")) == 1


def test_a_node_that_hung_costs_the_timeout_once() -> None:
    grid = four()

    def evaluate(number: int, _: ArrayRecord) -> None:
        grid.hanging = {grid.node(2)} if number >= 1 else set()

    server = fedpals(**IMPATIENT)
    began = time.monotonic()
    server.start(grid, start(), num_rounds=6, timeout=0.5, evaluate_fn=evaluate)
    assert 0.5 <= time.monotonic() - began < 2.0
    assert participants(server)[1:] == [[0, 1, 3]] * 5


def test_a_silent_node_is_not_asked_in_the_same_round_again() -> None:
    grid = FakeGrid(plain_app(), range(4))

    @grid.app.query("loss")
    def answer(message: Message, context: Context) -> Message:
        del context
        return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)

    grid.spoil[grid.node(2)] = lambda reply: None if reply.metadata.message_type == "train" else reply
    AFL(TARGET, **QUIET).start(grid, start(), num_rounds=1)
    assert grid.node(2) not in grid.kinds("query.loss")


def test_messages_live_as_long_as_they_are_waited_for() -> None:
    grid = four()
    server = fedpals(wait=7.0, fraction_evaluate=1.0)
    server.start(grid, start(), num_rounds=1, timeout=5)
    assert {m.metadata.message_type for m in grid.sent} == {"query.labelcounts", "train", "evaluate"}
    assert {m.metadata.ttl for m in grid.sent} == {5}


def test_one_unreadable_reply_does_not_take_the_others_with_it() -> None:
    """Flower inflates what a node sent inside the pull, and may raise anything."""
    grid = four()
    pull, bad = grid.pull_messages, grid.node(1)

    def broken(message_ids: Any) -> Any:
        replies = list(pull(message_ids))
        if any(r.metadata.src_node_id == bad and r.metadata.message_type == "train" for r in replies):
            raise KeyError("arraychunk_ids")
        return replies

    grid.pull_messages = broken  # type: ignore[method-assign]
    server = fedpals()
    server.start(grid, start(), num_rounds=1)
    assert alpha_of(server) == pytest.approx(expected(COUNTS, [0, 2, 3]))
    assert [(r.client, r.reason) for r in server.rounds[0].refused] == [
        (1, "error: its reply cannot be read (KeyError: 'arraychunk_ids')")
    ]


@pytest.mark.parametrize("question", ["train", "query.labelcounts"])
def test_an_answer_to_another_question_is_refused_and_keeps_nobody_waiting(
    question: str, log: pytest.LogCaptureFixture
) -> None:
    grid = four()

    def spoilt(reply: Message) -> Message:
        if reply.metadata.message_type == question:
            reply.metadata.message_type = "evaluate"
        return reply

    grid.spoil[grid.node(1)] = spoilt
    server = fedpals(**IMPATIENT)
    began = time.monotonic()
    server.start(grid, start(), num_rounds=2)
    assert time.monotonic() - began < 3.0
    assert len(server.rounds[0].participants) == 3
    assert warnings(log, f"it answers evaluate where it was asked {question}")


def test_a_lost_superlink_is_nobodys_refusal() -> None:
    grid = four()

    def lost(message_ids: Any) -> Any:
        del message_ids
        raise ConnectionError("SuperLink is gone")

    grid.pull_messages = lost  # type: ignore[method-assign]
    with pytest.raises(ConnectionError, match="SuperLink is gone"):
        fedpals().start(grid, start(), num_rounds=1)


def test_replies_come_one_by_one() -> None:
    """Each is forgotten before the next is fetched, so that a round holds updates and no replies."""
    grid = PatientGrid(four())
    jobs = [Message(RecordDict(), message_type="query.labelcounts", dst_node_id=n) for n in grid.get_node_ids()]
    replies = iter(grid.send_and_receive(jobs, timeout=5))
    next(replies)
    assert len(grid.awaited) == 3


# Ghosts, duplicates, impostors


def restarted(grid: FakeGrid, partition: int, *, leaves: bool = True) -> int:
    """The node of a partition comes back under another id, as one without a registered key does."""
    old = grid.node(partition)
    context = grid.contexts[old]
    if leaves:
        del grid.contexts[old]
    node = old + 50_000
    grid.contexts[node] = Context(1, node, dict(context.node_config), RecordDict(), {})
    return node


@pytest.mark.parametrize("numbered_clients", [True, False])
def test_a_ghost_has_no_share_in_scaffolds_control_variate(numbered_clients: bool) -> None:
    """A node restarts under another id; without a number it is a new client, and the old one must not count twice."""
    worker = Worker(Run.of(**SMALL, method="scaffold"))

    def run(restart: bool) -> tuple[LabelAware, torch.Tensor]:
        grid, server = grid_of(worker), SCAFFOLD(**QUIET)
        if not numbered_clients:
            anonymous(grid)

        def evaluate(number: int, _: ArrayRecord) -> None:
            if restart and number == 2:
                restarted(grid, 1)

        result = server.start(grid, initial(worker), num_rounds=4, evaluate_fn=evaluate)
        return server, flat(result.arrays, worker)

    (_, unbroken), (server, broken) = run(False), run(True)
    assert len(server._session.roster.members) == (5 if numbered_clients else 6)  # type: ignore[union-attr]
    if numbered_clients:
        assert torch.equal(broken, unbroken)
    else:
        engine = server._session.server  # type: ignore[union-attr]
        assert engine is not None
        present = server._session.roster.present.tolist()  # type: ignore[union-attr]
        sizes = engine.counts.sizes[present]
        mean = sum(
            n / sizes.sum() * engine.state.clients[i].double() for i, n in zip(present, sizes.tolist(), strict=True)
        )
        assert torch.allclose(engine.rule_vector, mean.float(), atol=1e-7)  # type: ignore[arg-type]


def anonymous(grid: FakeGrid) -> None:
    """Let clients keep their number to themselves."""

    def forget(reply: Message) -> Message:
        if reply.metadata.message_type == "query.labelcounts":
            del reply.content.metric_records["fedpals.labelcounts"]["client"]
        return reply

    class Spoils(dict[int, Any]):
        def __contains__(self, node: object) -> bool:
            return True

        def __getitem__(self, node: int) -> Any:
            return forget

    grid.spoil = Spoils()


def test_a_restarted_node_waits_for_its_ghost_to_leave() -> None:
    """Flower lists a dead node for a while; its successor has the same number and the same counts."""
    grid = four()
    server = fedpals(**IMPATIENT)

    def evaluate(number: int, _: ArrayRecord) -> None:
        if number == 1:
            old = grid.node(1)
            restarted(grid, 1, leaves=False)
            grid.spoil[old] = lambda _: None  # dead, but still listed
        if number == 3:
            grid.contexts = {node: context for node, context in grid.contexts.items() if node not in grid.spoil}

    server.start(grid, start(), num_rounds=5, timeout=9, evaluate_fn=evaluate)
    # In the second round the ghost is lost; from then on its successor has the row.
    assert participants(server) == [[0, 1, 2, 3], [0, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert len(server._session.roster.members) == 4  # type: ignore[union-attr]


def test_an_impostor_does_not_take_the_row_of_a_client_that_left(log: pytest.LogCaptureFixture) -> None:
    counts = dict(enumerate(COUNTS))
    grid = FakeGrid(plain_app(lambda i: counts[i]), range(4))
    server = fedpals(**IMPATIENT)

    def evaluate(number: int, _: ArrayRecord) -> None:
        if number == 1:
            counts[1] = [9000, 0, 0]
            restarted(grid, 1)

    server.start(grid, start(), num_rounds=2, evaluate_fn=evaluate)
    assert participants(server)[-1] == [0, 2, 3]
    assert len(warnings(log, "label counts changed (9000 samples instead of 40)")) == 1


def test_noise_is_no_licence_to_take_a_row(log: pytest.LogCaptureFixture) -> None:
    grid = four()
    node = grid.node(1)

    def noisy(reply: Message) -> Message:
        if reply.metadata.message_type == "query.labelcounts":
            reply.content.metric_records["fedpals.labelcounts"].update({"counts": [9000, 0, 0], "epsilon": 1.0})
        return reply

    def evaluate(number: int, _: ArrayRecord) -> None:
        if number == 1:
            grid.spoil[restarted(grid, 1)] = noisy

    server = fedpals(**IMPATIENT)
    server.start(grid, start(), num_rounds=2, evaluate_fn=evaluate)
    assert participants(server)[-1] == [0, 2, 3]
    assert server._session.roster.members[1].node == node  # type: ignore[union-attr]
    assert len(warnings(log, "number 1 belongs to a client whose counts have no noise")) == 1


def test_ghosts_in_a_checkpoint_have_no_share(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    grid = four()
    FedAvg(TARGET, checkpoint=path, **QUIET).start(grid, start(), num_rounds=1)
    del grid.contexts[grid.node(1)]
    server = FedAvg(TARGET, checkpoint=path, **QUIET)
    server.start(grid, start(), num_rounds=2)
    sizes = {i: sum(COUNTS[i]) for i in (0, 2, 3)}
    assert alpha_of(server) == pytest.approx({i: n / sum(sizes.values()) for i, n in sizes.items()})


# Liars about their size


def test_a_client_that_claims_far_more_than_all_others_is_named(log: pytest.LogCaptureFixture) -> None:
    grid = FakeGrid(plain_app(lambda i: [10**12, 0, 0] if i == 0 else COUNTS[i]), range(4))
    server = FedAvg(TARGET, **QUIET)
    server.start(grid, start(), num_rounds=2)
    (warning,) = warnings(log, "claims")
    assert f"client 0 (node {grid.node(0)}) claims 1000000000000 samples, all 3 others together 115" in warning
    assert "max_samples, or FedPALS's max_weight" in warning


def test_max_weight_bounds_what_a_liar_gets() -> None:
    grid = FakeGrid(plain_app(lambda i: [10**12, 0, 0] if i == 0 else COUNTS[i]), range(4))
    server = fedpals(max_weight=0.4)
    server.start(grid, start(), num_rounds=1)
    assert max(alpha_of(server).values()) <= 0.4 + 1e-12


def test_honest_sizes_are_nobodys_business(log: pytest.LogCaptureFixture) -> None:
    grid = FakeGrid(plain_app(lambda i: [100, 40, 60] if i == 0 else COUNTS[i]), range(4))
    fedpals().start(grid, start(), num_rounds=1)
    assert not warnings(log, "claims")


# Forgotten lines


def forgetful(number: int | None = None) -> ClientApp:
    """An app without `add_labelcounts`; with ``number``, at this client alone."""
    whole, bare = plain_app(), ClientApp()

    def call(message: Message, context: Context) -> Message:
        lacks = number is None or context.node_config["partition-id"] == number
        return (bare if lacks else whole)(message, context)

    app = ClientApp()
    app.__dict__["_call"] = call
    return app


def test_a_forgotten_add_labelcounts_is_said_at_once() -> None:
    grid = FakeGrid(forgetful(), range(2))
    began = time.monotonic()
    with pytest.raises(InputError, match=r"the app does not answer query.labelcounts; add .*add_labelcounts\(app") as e:
        FedAvg(TARGET, fraction_evaluate=0.0).start(grid, start(), num_rounds=1)
    assert time.monotonic() - began < 2
    assert all(f"node {node}" in str(e.value) for node in grid.contexts)


def test_one_node_with_an_old_app_is_named_and_the_others_go_on(log: pytest.LogCaptureFixture) -> None:
    grid = FakeGrid(forgetful(2), range(4))
    server = fedpals()
    server.start(grid, start(), num_rounds=2)
    assert len(alpha_of(server)) == 3
    (warning,) = warnings(log, "is refused")
    assert f"node {grid.node(2)} is refused: its app does not answer query.labelcounts; add to the app" in warning


def test_a_method_that_asks_more_says_what_is_lacking(log: pytest.LogCaptureFixture) -> None:
    AFL(TARGET, **QUIET).start(four(), start(), num_rounds=1)
    assert len(warnings(log, "its app does not answer query.loss; build it with fedpals.flower.client_app")) == 4


def test_an_app_that_fails_is_asked_again_ever_more_rarely() -> None:
    def counts(_: int) -> Any:
        raise OSError("the disk is not mounted yet")

    grid = FakeGrid(plain_app(counts), range(2))
    with pytest.raises(TooFewNodesError, match="0 of the 2 nodes needed"):
        FedAvg(TARGET, fraction_evaluate=0.0, wait=0.6).start(grid, start(), num_rounds=1)
    # Polls are 0.01 s apart in tests, and so are the first two questions; then the pauses double.
    assert 3 <= grid.kinds("query.labelcounts").count(grid.node(0)) <= 7
