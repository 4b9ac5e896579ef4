"""FLARE's own simulator, with a process for every site: the same bits, T at the server alone, nothing left running."""

from __future__ import annotations

from pathlib import Path

import torch
from nvflare.recipe.sim_env import SimEnv

from fedpals.nvflare import FedPALSRecipe
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.state import SimulationState
from fedpals.simulation.worker import Worker
from tests.nvflare.processes import running

KEYS = {
    "task": "digits", "labels_per_client": "3", "clients": "4", "model": "logistic", "rounds": "3",
    "method": "scaffold+fedpals", "participation": "0.7",
}  # fmt: skip


def test_three_rounds_in_processes_have_the_simulators_bits(folder: Path) -> None:
    run = Run.of(KEYS)
    worker = Worker(run)
    sites = [f"site-{number + 1}" for number in range(len(worker.federation.clients))]
    recipe = FedPALSRecipe(
        model=worker.model.network,
        target=worker.federation.target,
        sites=sites,
        num_rounds=3,
        participation=0.7,
        method=run.method.name,
        train_script=str(Path(__file__).with_name("site_script.py")),
        train_args=" ".join(f"{key}={value}" for key, value in KEYS.items()),
        **run.method.options,
    )
    recipe.run(SimEnv(clients=sites, workspace_root=str(folder / "flare"), log_config="concise"))
    saved = torch.load(next(folder.rglob("FL_global_model.pt")), weights_only=False)["model"]
    worker.model.network.load_state_dict({key: torch.as_tensor(value) for key, value in saved.items()})
    simulated = SimulationState.load(simulate(run, folder / "simulated").checkpoint)
    assert torch.equal(worker.model.vector, simulated.vector)

    target = repr(float(worker.federation.target.max())).encode()
    at_sites = [path for site in sites for path in (folder / "flare/fedpals" / site).rglob("*") if path.is_file()]
    assert at_sites
    assert not [path for path in at_sites if b"config_fed_server" in path.name.encode() or target in path.read_bytes()]
    assert [path.name for path in (folder / "flare/fedpals/server").rglob("*.json") if target in path.read_bytes()] == [
        "config_fed_server.json"
    ]
    assert running(folder) == []
