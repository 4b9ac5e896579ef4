"""The controller's tasks: late, silent and crashed sites, with FLARE's own objects."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpals.errors import InputError
from fedpals.nvflare import LabelAwareController, messages
from fedpals.nvflare.controller import AbortedError

PLAIN: dict[str, Any] = {"method": "fedpals", "options": {}, "target": [0.5, 0.5], "num_rounds": 1, "min_clients": 1}

Fate = Callable[[Task, str], None]


def done(task: Task, site: str) -> None:
    client_task = ClientTask(Client(site, ""), task)
    client_task.result = FLModelUtils.to_shareable(FLModel(metrics={"loss": 1.0}))
    task.result_received_cb(client_task=client_task, fl_ctx=None)
    task.completion_status = TaskCompletionStatus.OK


def crashed(task: Task, site: str) -> None:
    client_task = ClientTask(Client(site, ""), task)
    client_task.result = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    task.result_received_cb(client_task=client_task, fl_ctx=None)
    task.completion_status = TaskCompletionStatus.OK


def nonsense(task: Task, site: str) -> None:
    client_task = ClientTask(Client(site, ""), task)
    client_task.result = make_reply(ReturnCode.OK)
    task.result_received_cb(client_task=client_task, fl_ctx=None)
    task.completion_status = TaskCompletionStatus.OK


def ended(status: TaskCompletionStatus) -> Fate:
    def end(task: Task, _: str) -> None:
        task.completion_status = status

    return end


def controller(fates: dict[str, Fate]) -> LabelAwareController:
    made = LabelAwareController(**PLAIN, train_timeout=7)
    made.engine = SimpleNamespace(get_clients=lambda: [Client(site, "") for site in fates])
    made.abort_signal, made.fl_ctx, made._task_check_period = Signal(), None, 0.01

    def broadcast(task: Task, fl_ctx: object, targets: list[str], min_responses: int) -> None:
        del fl_ctx
        assert min_responses == 1
        fates[targets[0]](task, targets[0])

    made.broadcast = broadcast
    return made


def test_every_site_has_an_answer_or_a_reason() -> None:
    fates = {
        "good": done,
        "crashed": crashed,
        "nonsense": nonsense,
        "late": ended(TaskCompletionStatus.TIMEOUT),
        "dead": ended(TaskCompletionStatus.CLIENT_DEAD),
    }
    answers = controller(fates).ask(messages.LOSS, dict.fromkeys(fates, FLModel(params={})))
    assert messages.read_loss(answers.pop("good")) == 1.0
    assert answers.pop("crashed") == "error: EXECUTION_EXCEPTION; the log of the site says why"
    assert str(answers.pop("nonsense")).startswith("its reply cannot be read")
    assert answers == {"late": "no reply within 7 s", "dead": "no reply (client_dead)"}


def test_a_silent_site_is_left_out_until_it_answers() -> None:
    probes: list[Task] = []

    def late(task: Task, _: str) -> None:
        if task.name == messages.LABEL_COUNTS:
            probes.append(task)
        else:
            task.completion_status = TaskCompletionStatus.TIMEOUT

    made = controller({"good": done, "late": late})
    made.ask(messages.TRAIN, dict.fromkeys(["good", "late"], FLModel(params={})))
    made.process_result_of_unknown_task(Client("late", ""), messages.TRAIN, "", make_reply(ReturnCode.OK), None)
    assert made.sites() == ["good"]
    (probe,) = probes
    assert probe.timeout == 0
    done(probe, "late")
    assert made.sites() == ["good", "late"]


def test_a_job_that_is_ended_waits_for_nobody() -> None:
    made = controller({"silent": lambda *_: None})
    made.abort_signal.trigger("stop")
    with pytest.raises(AbortedError):
        made.ask(messages.TRAIN, {"silent": FLModel(params={})})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"target": None}, "needs target"),
        ({"target": [0.5, 0.6]}, "sum"),
        ({"method": "fedpalls"}, "fedpalls"),
        ({"options": {"ess": 2.0}}, "ess"),
        ({"options": {"ess": "auto"}}, "give a number"),
        ({"method": "iwerm"}, "tell_target=True"),
        ({"method": "oracle"}, "use the simulator"),
        ({"num_rounds": 0}, "num_rounds is 0"),
        ({"min_clients": 0}, "min_clients is 0"),
        ({"train_timeout": 0}, "train_timeout is 0"),
        ({"counts_timeout": 1.5}, "whole number of seconds"),
        ({"participation": 0.0}, "participation is 0"),
        ({"max_samples": 0}, "max_samples is 0"),
        ({"averaging": 1.0}, "averaging is 1"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_sent(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        LabelAwareController(**{**PLAIN, **given})
