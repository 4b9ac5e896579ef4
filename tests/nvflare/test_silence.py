"""Sites that never send their label counts: the others wait for a short time, and the log or the error names them."""

from __future__ import annotations

import logging
import threading
import time
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpals.errors import InputError
from fedpals.nvflare import FedPALSRecipe, LabelAwareController, TooFewSitesError, messages
from fedpals.nvflare.rounds import Rounds
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker
from tests.nvflare.sites import SMALL, FakeExchange, started

SILENT = "site-4"
PLAIN: dict[str, Any] = {"method": "fedpals", "options": {}, "target": [0.5, 0.5], "num_rounds": 3}


@cache
def worker() -> Worker:
    return Worker(Run.of(**SMALL, method="fedpals"))


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


class Sites:
    """FLARE's tasks, answered by sites in this process; those that hang keep theirs until it is ended."""

    def __init__(self, min_clients: int, delays: dict[str, float] | None = None, **limits: Any) -> None:
        self.own, self.hanging, self.delays = FakeExchange(worker()), {SILENT}, delays or {}
        self.kept: list[tuple[Task, str]] = []
        self.controller = made = LabelAwareController(**PLAIN, min_clients=min_clients, **limits)
        made.engine = SimpleNamespace(get_clients=lambda: [Client(name, "") for name in self.own.answers])
        made.abort_signal, made.fl_ctx, made._task_check_period = Signal(), None, 0.01
        made.broadcast, made.cancel_task = self.broadcast, self.cancel

    def rounds(self) -> Rounds:
        return started(worker(), self.controller, self.controller.min_clients)

    def broadcast(self, task: Task, fl_ctx: object, targets: list[str], min_responses: int) -> None:
        del fl_ctx, min_responses
        (name,) = targets
        if name in self.hanging:
            self.kept.append((task, name))
            if task.timeout:
                timer = threading.Timer(task.timeout, self.time_out, [task])
                timer.daemon = True
                timer.start()
        elif name in self.delays:
            threading.Timer(self.delays.pop(name), self.answer, [task, name]).start()
        else:
            self.answer(task, name)

    def answer(self, task: Task, name: str) -> None:
        reply = self.own.reply(task.name, name, FLModelUtils.from_shareable(task.data))
        assert isinstance(reply, FLModel)
        client_task = ClientTask(Client(name, ""), task)
        client_task.result = FLModelUtils.to_shareable(reply)
        task.result_received_cb(client_task=client_task, fl_ctx=None)
        task.completion_status = TaskCompletionStatus.OK

    def recover(self) -> None:
        """Answer what is still asked."""
        self.hanging = set()
        for task, name in self.kept:
            if task.completion_status is None:
                self.answer(task, name)

    @staticmethod
    def time_out(task: Task) -> None:
        if task.completion_status is None:
            task.completion_status = TaskCompletionStatus.TIMEOUT

    @staticmethod
    def cancel(task: Task) -> None:
        task.completion_status = TaskCompletionStatus.CANCELLED


def names(rounds: Rounds, rows: Any) -> list[str]:
    return [rounds.name(row) for row in rows]


def test_a_site_silent_on_counts_costs_its_patience_once(caplog: pytest.LogCaptureFixture) -> None:
    sites = Sites(min_clients=4, patience=0.3)
    rounds, began = sites.rounds(), time.monotonic()
    first = rounds.advance()
    assert 0.3 <= time.monotonic() - began < 5.0
    assert SILENT not in names(rounds, first.participants)
    said = [message for message in caplog.messages if message.startswith(f"{SILENT} ")]
    assert said == [
        f"{SILENT} sends no label counts: no reply within 0 s, and the others are enough; it will be asked again"
    ]
    rounds.advance()
    sites.recover()
    assert f"{SILENT} answers again; it takes part from the next round on" in caplog.messages
    assert rounds.advance().participants.size == 5
    assert sites.own.asked(messages.LABEL_COUNTS).count("site-1") == 1


def test_a_later_round_does_not_wait_longer_for_a_site_that_was_never_heard() -> None:
    sites = Sites(min_clients=4, patience=0.2)
    rounds = sites.rounds()
    rounds.advance()
    sites.controller._silent.clear()  # FLARE's client asked for a task, and is silent again
    began = time.monotonic()
    rounds.advance()
    assert 0.2 <= time.monotonic() - began < 5.0


def test_a_slow_site_is_waited_for_as_long_as_there_is_news() -> None:
    """Each of three sites is slower than the patience that a silent one gets."""
    sites = Sites(min_clients=1, patience=0.2, delays={"site-2": 0.15, "site-3": 0.3, "site-4": 0.45})
    sites.hanging = set()
    rounds = sites.rounds()
    rounds.advance()
    assert len(rounds.roster.members) == 5


def test_where_all_sites_are_needed_the_error_names_the_silent_one(caplog: pytest.LogCaptureFixture) -> None:
    sites = Sites(min_clients=5, patience=0.2, counts_timeout=1)
    began = time.monotonic()
    with pytest.raises(TooFewSitesError) as error:
        sites.rounds().advance()
    assert 1.0 <= time.monotonic() - began < 5.0
    assert str(error.value) == (
        f"round 1: 4 of the 5 sites needed (min_clients=5) have sent label counts ({SILENT}: no reply within 1 s); "
        "look at the logs of the others, let all scripts call fedpals.nvflare.send_label_counts, or lower min_clients"
    )
    early = (
        f"{SILENT}: no label counts so far; as the others are fewer than min_clients=5, the job ends if there are none "
        "within 1 s: look at the logs of these sites, or lower min_clients"
    )
    assert caplog.messages.count(early) == 1


def test_a_site_that_flare_has_lost_is_not_asked_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Sites(min_clients=4)
    sites.hanging, lost = set(), {"site-2"}
    rounds = sites.rounds()
    rounds.advance()
    monkeypatch.setattr(sites.controller, "get_client_disconnect_time", lambda name: 1.0 if name in lost else None)
    assert "site-2" not in names(rounds, rounds.advance().participants)
    lost.clear()
    assert rounds.advance().participants.size == 5
    rounds.settings = SimpleNamespace(min_clients=5)  # type: ignore[assignment]
    lost.add("site-2")
    with pytest.raises(TooFewSitesError, match=r"4 of the 5 .*\(site-2: lost, or silent since\)"):
        rounds.advance()


@pytest.mark.parametrize("patience", [-1.0, float("nan"), float("inf")])
def test_an_impossible_patience_is_refused(patience: float) -> None:
    with pytest.raises(InputError, match="patience is"):
        LabelAwareController(**PLAIN, min_clients=1, patience=patience)


def test_the_recipe_writes_patience_into_the_job(tmp_path: Any) -> None:
    script = tmp_path / "client.py"
    script.write_text("", encoding="utf-8")
    recipe = FedPALSRecipe(
        model={}, target=[0.5, 0.5], sites=["a"], num_rounds=1, train_script=str(script), patience=7.5
    )
    recipe.export(str(tmp_path / "jobs"))
    assert '"patience": 7.5' in (tmp_path / "jobs/fedpals/app_server/config/config_fed_server.json").read_text()
