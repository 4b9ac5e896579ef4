"""FLARE's sites inside this process: messages are serialised as FLARE does and go to the real answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.decomposers import numpy_decomposers
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.client.config import ExchangeFormat
from nvflare.client.converter_utils import convert_params
from nvflare.fuel.utils import fobs

from fedpals.engine.trainee import Trainee
from fedpals.nvflare.client import Answers
from fedpals.nvflare.controller import read_reply
from fedpals.nvflare.rounds import Answer, Enough, Exchange, Rounds, Settings
from fedpals.simulation.worker import Worker

numpy_decomposers.register()

SMALL: dict[str, Any] = {"task": "digits", "labels_per_client": 3, "clients": 6, "model": "logistic", "rounds": 3}

Spoil = Callable[[FLModel], Answer]
"""Changes an answer, or gives the reason why there is none."""


class FakeExchange:
    """Sites with their answers; ``spoil`` holds what happens to a site's answers to a task."""

    def __init__(self, worker: Worker, **settings: Any) -> None:
        self.answers: dict[str, Answers] = {}
        self.spoil: dict[tuple[str, str], Spoil] = {}
        self.sent: list[tuple[str, str, bytes]] = []
        self.offline: set[str] = set()
        for number in range(len(worker.federation.clients)):
            own = worker.client(number)
            trainee = Trainee(worker.model, own.x, own.y, own.labels, worker.run.plan, number, own.seed, **settings)
            self.answers[site(number)] = Answers(trainee)

    def sites(self) -> Sequence[str]:
        return [name for name in self.answers if name not in self.offline]

    def ask(self, task: str, requests: Mapping[str, FLModel], enough: Enough | None = None) -> dict[str, Answer]:
        del enough
        # The last site answers first, as may happen.
        return {name: self.reply(task, name, requests[name]) for name in reversed(list(requests))}

    def reply(self, task: str, name: str, request: FLModel) -> Answer:
        """What a site answers to a task."""
        content = fobs.dumps(FLModelUtils.to_shareable(request))
        self.sent.append((task, name, content))
        message = FLModelUtils.from_shareable(fobs.loads(content))
        state: dict[str, Any] = {}
        message.params = convert_params(message.params, ExchangeFormat.NUMPY, ExchangeFormat.PYTORCH, state, None)
        answer = self.answers[name].to(task, message)
        answer.params = convert_params(answer.params, ExchangeFormat.PYTORCH, ExchangeFormat.NUMPY, state, None)
        spoilt = self.spoil.get((task, name), lambda model: model)(answer)
        return (
            spoilt if isinstance(spoilt, str) else read_reply(fobs.loads(fobs.dumps(FLModelUtils.to_shareable(spoilt))))
        )

    def asked(self, task: str) -> list[str]:
        """The sites that were sent a kind of task."""
        return [name for kind, name, _ in self.sent if kind == task]


def site(number: int) -> str:
    return f"site-{number + 1}"


def started(worker: Worker, exchange: Exchange | None = None, min_clients: int = 1, **settings: Any) -> Rounds:
    """Rounds of a worker's run, from the parameters that the simulator starts from."""
    run, initial = worker.run, Worker(worker.run).model.network.state_dict()
    exchange = exchange or FakeExchange(worker)
    return Rounds(
        run.method,
        worker.federation.target,
        {key: value.numpy() for key, value in initial.items()},
        Settings(run.server.rounds, min_clients, participation=run.server.participation, **settings),
        exchange,
        logging.getLogger("fedpals.test"),
    )


def flat(rounds: Rounds, worker: Worker) -> torch.Tensor:
    """The model of the rounds as the simulator's vector."""
    worker.model.network.load_state_dict({key: torch.from_numpy(value) for key, value in rounds.arrays.items()})
    return worker.model.vector.clone()
