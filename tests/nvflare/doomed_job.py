"""A job that loses a site's process in the second round: `python doomed_job.py FOLDER sim`, or `poc`."""

from __future__ import annotations

import sys
from pathlib import Path

from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv

from fedpals.nvflare import FedPALSRecipe
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker

KEYS = {"task": "digits", "labels_per_client": "3", "clients": "4", "model": "logistic", "rounds": "3"}
DOOMED = "site-2"
"""It has weight in the first round, and without it the others have."""
TIMEOUT = 10


def main(folder: str, where: str) -> None:
    worker = Worker(Run.of(KEYS, method="fedpals"))
    sites = [f"site-{number + 1}" for number in range(len(worker.federation.clients))]
    recipe = FedPALSRecipe(
        model=worker.model.network,
        target=worker.federation.target,
        sites=sites,
        num_rounds=3,
        # In POC mode FLARE starts a job as soon as this many sites are there.
        min_clients=2 if where == "sim" else len(sites),
        train_timeout=TIMEOUT,
        train_script=str(Path(__file__).with_name("site_script.py")),
        train_args=" ".join(f"{key}={value}" for key, value in {**KEYS, "doomed": DOOMED}.items()),
    )
    env = (
        SimEnv(clients=sites, workspace_root=f"{folder}/flare")
        if where == "sim"
        else PocEnv(clients=sites, num_clients=len(sites))
    )
    try:
        run = recipe.execute(env)
        run.get_result(clean_up=False)
        print("status:", run.get_status())
    finally:
        env.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
