"""What sites learn: neither T, nor α, nor the counts of other sites."""

from __future__ import annotations

import pytest
from nvflare.app_common.abstract.fl_model import FLModel

from fedpals.nvflare import messages
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker
from tests.nvflare.sites import SMALL, FakeExchange, started


@pytest.mark.parametrize("method", ["fedpals", "fedprox+fedpals", "fedrs+fedpals", "fedlc+fedpals"])
def test_first_messages_do_not_depend_on_the_target_or_on_other_sites(method: str) -> None:
    """Runs that differ in T, hence in α, and in the other sites' counts send a site the same bytes."""
    worker = Worker(Run.of(**SMALL, method=method))
    contents = []
    for target, others in (
        (worker.federation.target, {}),
        (worker.federation.target[::-1].copy(), {"site-1": [7] * 10}),
    ):
        exchange = FakeExchange(worker)
        for name, counts in others.items():
            exchange.answers[name]._reported = counts
        rounds = started(worker, exchange)
        rounds.target = target
        rounds.advance()
        contents.append({(task, name): content for task, name, content in exchange.sent})
    common = [key for key in contents[0] if key in contents[1] and key[1] != "site-1"]
    assert {task for task, _ in common} == {messages.LABEL_COUNTS, messages.TRAIN}
    assert all(contents[0][key] == contents[1][key] for key in common)


def test_a_message_holds_arrays_and_the_round_and_nothing_else() -> None:
    worker = Worker(Run.of(**SMALL, method="fedpals"))
    asked: list[tuple[str, object, object, dict[str, object]]] = []

    class Watching(FakeExchange):
        def reply(self, task: str, name: str, request: FLModel) -> FLModel | str:
            asked.append((task, request.params, request.current_round, request.meta))
            return super().reply(task, name, request)

    started(worker, Watching(worker)).advance()
    for task, params, number, meta in asked:
        assert meta == {}
        assert isinstance(params, dict)
        keys = [] if task == messages.LABEL_COUNTS else list(worker.model.network.state_dict())
        assert list(params) == keys
        assert number == (None if task == messages.LABEL_COUNTS else 0)
