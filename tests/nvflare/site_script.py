"""A site of the digits task, as a training script of FLARE; its arguments are the keys of the run."""

from __future__ import annotations

import sys

from fedpals.nvflare import Trainee, run_client
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker


def load(site: str) -> Trainee:
    run = Run.of(dict(argument.split("=") for argument in sys.argv[1:]))
    worker, number = Worker(run), int(site.removeprefix("site-")) - 1
    own = worker.client(number)
    return Trainee(worker.model, own.x, own.y, own.labels, run.plan, number, run.seed)


if __name__ == "__main__":
    run_client(load)
