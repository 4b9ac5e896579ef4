"""A site of the digits task, as a training script of FLARE; its arguments are the keys of the run.

With ``doomed=site-2`` the process of that site is killed when it is to train in the second round.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from fedpals.engine.client import Client, Update
from fedpals.nvflare import Trainee, run_client
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker

train = Client.train


def train_or_die(client: Client, model: Any, start: Any, rule: Any, plan: Any, number: int, **more: Any) -> Update:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return train(client, model, start, rule, plan, number, **more)


def load(site: str) -> Trainee:
    keys = dict(argument.split("=") for argument in sys.argv[1:])
    doomed, run = keys.pop("doomed", None), Run.of(keys)
    worker, number = Worker(run), int(site.removeprefix("site-")) - 1
    own = worker.client(number)
    if site == doomed:
        Client.train = train_or_die  # type: ignore[method-assign,assignment]
    return Trainee(worker.model, own.x, own.y, own.labels, run.plan, number, run.seed)


if __name__ == "__main__":
    run_client(load)
