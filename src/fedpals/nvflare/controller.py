"""FLARE's controller for every method: rounds as the simulator computes them, with sites reached by tasks."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.model_controller import ModelController

from fedpals.engine.patience import Patience
from fedpals.engine.refusal import Refused, refusing
from fedpals.engine.settings import check_server, checked_target, take_protection
from fedpals.errors import InputError
from fedpals.methods import build_method
from fedpals.nvflare import messages
from fedpals.nvflare.rounds import Answer, Enough, Rounds, Settings


class AbortedError(Exception):
    """FLARE has ended the job."""


class LabelAwareController(ModelController):  # type: ignore[misc]  # FLARE is not typed
    """Rounds of a method, whose weights are solved from the label counts of the sites that answered.

    FLARE builds it from the job's configuration, so all arguments are plain values. They are those of
    `fedpals.nvflare.FedPALSRecipe`.
    """

    def __init__(
        self,
        method: str,
        options: dict[str, Any],
        target: list[float] | None,
        num_rounds: int,
        min_clients: int,
        participation: float = 1.0,
        seed: int = 0,
        train_timeout: int = 3600,
        counts_timeout: int = 600,
        patience: float = 30.0,
        max_samples: int | None = None,
        server_momentum: float | None = None,
        averaging: float | None = None,
        protection: dict[str, Any] | None = None,
        tell_target: bool = False,  # noqa: FBT001, FBT002 -- FLARE passes arguments by name
        persistor_id: str = "persistor",
    ) -> None:
        super().__init__(persistor_id=persistor_id)
        # FLARE writes a job's configuration from attributes that have the names of the arguments.
        self.method, self.options, self.target, self.tell_target = method, options, target, tell_target
        self.num_rounds, self.min_clients, self.participation, self.seed = num_rounds, min_clients, participation, seed
        self.train_timeout, self.counts_timeout, self.patience = train_timeout, counts_timeout, patience
        self.max_samples, self.server_momentum, self.averaging = max_samples, server_momentum, averaging
        self._method = build_method(method, options)
        self._target = checked_target(self._method, target, tell_target=tell_target)
        self.protection = protection
        self._protection = take_protection(dict(protection or {}), self._method)
        check_server(max_samples, server_momentum, averaging)
        if self._method.weighting.chooses:
            raise InputError(
                "ess='auto' compares models on held-out samples, which sites of FLARE are not asked for; "
                "give a number, as ess=0.5"
            )
        for name, value in (("num_rounds", num_rounds), ("min_clients", min_clients)):
            if value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")
        for name, value in (("train_timeout", train_timeout), ("counts_timeout", counts_timeout)):
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is {value}; it must be a whole number of seconds, at least 1")
        if not 0 <= patience < math.inf:
            raise InputError(f"patience is {patience}; it must be a number of seconds, at least 0")
        if not 0 < participation <= 1:
            raise InputError(f"participation is {participation}; it must be above 0 and at most 1")
        self._silent: set[str] = set()
        """Sites that have not answered in time; they are left out until they answer."""

    def run(self) -> None:
        """Compute all rounds; save the model after each."""
        initial = self.load_model()
        settings = Settings(
            self.num_rounds,
            self.min_clients,
            self.participation,
            self.seed,
            self.max_samples,
            self.server_momentum,
            self.averaging,
            self._protection,
        )
        rounds = Rounds(self._method, self._target, initial.params, settings, self, self.logger)
        self.logger.info(
            "%s (client rule %s, weighting %s), %d rounds",
            self._method.title, self._method.rule.name, self._method.weighting.name, self.num_rounds,
        )  # fmt: skip
        try:
            for _ in range(self.num_rounds):
                rounds.advance()
                self.save_model(FLModel(params=rounds.arrays, meta={}))
        except AbortedError:
            self.logger.info("the job was ended after round %d", rounds.state.round)
            return
        assert rounds.server is not None
        shift = ", ".join(f"{value:.4f}" for value in rounds.server.prior_shift)
        self.logger.info("prior correction: in the target, add [%s] to the logits", shift)

    def sites(self) -> Sequence[str]:
        """Return the names of the job's sites, without those that are lost or have not answered in time."""
        names = [client.name for client in self.engine.get_clients()]
        return [name for name in names if name not in self._silent and not self.get_client_disconnect_time(name)]

    def ask(self, task: str, requests: Mapping[str, FLModel], enough: Enough | None = None) -> dict[str, Answer]:
        """Send every site its message; return its answer, or why there is none."""
        timeout = self.counts_timeout if task == messages.LABEL_COUNTS else self.train_timeout
        answers: dict[str, Answer] = {}

        def receive(client_task: ClientTask, fl_ctx: FLContext) -> None:
            del fl_ctx
            answers[client_task.client.name] = read_reply(client_task.result)
            client_task.result = None  # FLARE would keep it until the task is forgotten

        tasks: dict[str, Task] = {}
        for site, request in requests.items():
            data = FLModelUtils.to_shareable(request)
            tasks[site] = Task(name=task, data=data, timeout=timeout, result_received_cb=receive)
            self.broadcast(task=tasks[site], fl_ctx=self.fl_ctx, targets=[site], min_responses=1)
        given_up = self._wait(tasks, answers, enough)
        for site, sent in tasks.items():
            if site in answers:
                continue
            if site in given_up or sent.completion_status == TaskCompletionStatus.TIMEOUT:
                self._silent.add(site)
                self._probe(site)
                answers[site] = given_up.get(site, f"no reply within {timeout} s")
            else:
                answers[site] = f"no reply ({sent.completion_status.value})"
        return dict(answers)

    def _wait(self, tasks: Mapping[str, Task], answers: Mapping[str, Answer], enough: Enough | None) -> dict[str, str]:
        """Wait until all tasks are done, or those that are done are enough and there is no news for ``patience``.

        Return the sites that are given up before their time, each with the reason.
        """
        began, patience, heard, is_told = time.monotonic(), Patience(self.patience), 0, False
        suffices = enough is not None and enough({})
        while pending := [site for site, sent in tasks.items() if sent.completion_status is None]:
            if self.abort_signal.triggered:
                raise AbortedError
            if enough is not None and len(answers) > heard:
                heard = len(answers)
                patience.hear()
                suffices = enough(dict(answers))
            if enough is not None and patience.is_over and (missing := [s for s in pending if s not in answers]):
                if suffices:
                    for site in missing:
                        self.cancel_task(tasks[site])
                    waited = time.monotonic() - began
                    return dict.fromkeys(missing, f"no reply within {waited:.0f} s, and the others are enough")
                if not is_told:
                    self.logger.warning(
                        "%s: no label counts so far; as the others are fewer than min_clients=%d, the job ends if "
                        "there are none within %d s: look at the logs of these sites, or lower min_clients",
                        ", ".join(missing), self.min_clients, self.counts_timeout,
                    )  # fmt: skip
                    is_told = True
            time.sleep(self._task_check_period)
        return {}

    def _probe(self, site: str) -> None:
        """Ask a silent site for its label counts without waiting; it takes part again once it answers.

        FLARE's client does not send what it computed for a task that has timed out.
        """

        def receive(client_task: ClientTask, fl_ctx: FLContext) -> None:
            del fl_ctx
            self.logger.info("%s answers again; it takes part from the next round on", client_task.client.name)
            self._silent.discard(client_task.client.name)

        data = FLModelUtils.to_shareable(messages.question())
        probe = Task(name=messages.LABEL_COUNTS, data=data, result_received_cb=receive)
        self.broadcast(task=probe, fl_ctx=self.fl_ctx, targets=[site], min_responses=1)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Leave a late reply aside."""
        del client_task_id, result, fl_ctx
        self.logger.info("%s answers %s too late", client.name, task_name)


def read_reply(result: Shareable) -> Answer:
    """Return the model in a reply, or why there is none."""
    code = result.get_return_code()
    if code and code != ReturnCode.OK:
        return f"error: {code}; the log of the site says why"
    try:
        with refusing("its reply"):
            return FLModelUtils.from_shareable(result)
    except Refused as refusal:
        return str(refusal)
