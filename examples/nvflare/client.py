"""A hospital: it trains on its own patients as the server's method says. FLARE runs this script at every site."""

import sys
from typing import Any

from fedpals.nvflare import Trainee, run_client
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker


def hospitals(target: str, rounds: int, **method: Any) -> Worker:
    """Return data, network and training plan; everybody scales the 13 variables in the way that they agreed on."""
    plan = {"rounds": rounds, "model": "logistic", "learning_rate": 0.03}
    return Worker(Run.of(task="heart", target_client=target, **plan, **method))


def names(worker: Worker) -> list[str]:
    """Return the sites: the hospitals, as FLARE can write them."""
    return [str(name).lower() for name in worker.federation.names]


def load(site: str) -> Trainee:
    """Return the client of this site."""
    worker = hospitals(sys.argv[1], int(sys.argv[2]))
    number = names(worker).index(site)
    own = worker.client(number)
    return Trainee(worker.model, own.x, own.y, own.labels, worker.run.plan, number)


if __name__ == "__main__":
    run_client(load)
