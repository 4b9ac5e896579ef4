"""The example app as users start it: on Ray, and deployed over TLS with authenticated nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from safetensors.torch import load_file

from fedpals.engine import checkpoint
from fedpals.flower import FedAvg
from fedpals.flower.local.certificates import make_certificates
from fedpals.flower.local.deployment import Deployment, environment, free_port
from fedpals.flower.local.watchdog import end_all, process_ids
from fedpals.shift.evaluation import Correction
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.state import SimulationState
from fedpals.simulation.worker import Worker
from tests.flower.grids import flat, grid_of, initial
from tests.runs import result_of

APP = Path(__file__).parents[2] / "examples" / "flower"
FEDPALS = [sys.executable, "-c", "from fedpals.cli import main; main()"]
LIMIT = 240.0
"""Seconds for a whole run on a busy machine."""


def config(**settings: Any) -> str:
    return " ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in settings.items()
    )


def wait_for(condition: Callable[[], Any], output: Callable[[], str]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, output()
        time.sleep(0.2)


def written(path: Path, like: Worker) -> torch.Tensor:
    """The arrays of a file as the simulator's vector."""
    like.model.network.load_state_dict(load_file(path))
    return like.model.vector.clone()


def test_a_ray_simulation_has_the_simulators_bits(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clients": 5, "labels_per_client": 3, "model": "logistic"}
    settings |= {"method": "scaffold+fedpals", "ess": 0.5, "rounds": 5, "participation": 0.5}
    home, out = tmp_path / "home", tmp_path / "model.safetensors"
    home.mkdir()
    (home / "config.toml").write_text('[superlink]\ndefault = "local"\n[superlink.local]\naddress = ":local:"\n')
    ports = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()), "FLWR_LOCAL_CONTROL_API_PORT": str(free_port())}
    command = ["flwr", "run", str(APP), "local", "--stream", "--run-config", config(out=str(out), **settings)]
    command += ["--federation-config", "num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus=2"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command, env={**environment(home), **ports}, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        process.wait(LIMIT)
    finally:
        end_all(home)
        process.wait()
    assert out.is_file(), (tmp_path / "log").read_text()
    run = Run.of(task="digits", **settings)
    simulated = SimulationState.load(simulate(run, tmp_path).checkpoint)
    assert torch.equal(written(out, Worker(run)), simulated.vector), (tmp_path / "log").read_text()
    assert not process_ids(home)


def test_a_deployment_over_tls_survives_the_death_of_a_node_and_refuses_strangers(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clients": 3, "labels_per_client": 3, "model": "logistic", "method": "fedavg"}
    out, log = tmp_path / "model.safetensors", tmp_path / "log"
    with Deployment(tls=True) as deployment:
        home = deployment.home
        deployment.node(0, 2)
        victim = deployment.node(1, 2)
        stranger = deployment.node(1, 2, register=False)
        deceived = deployment.node(0, 2, authority=make_certificates(tmp_path / "wrong").authority)
        wait_for(lambda: deployment.online() == 2, deployment.logs)

        keys = config(rounds=2, nodes=1, timeout=90.0, out=str(out), checkpoint=str(tmp_path / "state"), **settings)
        with log.open("wb") as file:
            running = deployment.run(APP, [keys], output=file)
        wait_for(lambda: "round 1: trained" in log.read_text() or running.poll() is not None, log.read_text)
        os.killpg(victim.pid, signal.SIGKILL)
        wait_for(lambda: running.poll() is not None, log.read_text)

        assert deployment.status() == "finished:completed", log.read_text() + deployment.logs()
        # Neither the node without a registered key nor the one that trusts another authority got in.
        assert stranger.wait(LIMIT) != 0
        assert deceived.wait(LIMIT) != 0
        assert "Failed to activate SuperNode" in deployment.log("node-3")
        assert "CERTIFICATE_VERIFY_FAILED" in deployment.log("node-4")
    assert not process_ids(home)
    assert not home.exists()

    output = log.read_text()
    assert "round 1: trained 2 of 2 participants" in output
    assert "round 2: trained 1 of 1 participants" in output
    assert re.search(r"round 2: client 1 \(node \d+\): (no reply|error: Node Unavailable)", output), output

    worker = Worker(Run.of(task="digits", **settings))
    grid = grid_of(worker)
    answers = []

    def dies(reply: Message) -> Message | None:
        answers.append(reply.metadata.message_type)
        return None if answers.count("train") == 2 else reply

    grid.spoil[grid.node(1)] = dies
    expected = FedAvg(worker.federation.target, fraction_evaluate=0.0).start(grid, initial(worker), num_rounds=2)
    assert torch.equal(written(out, worker), flat(expected.arrays, worker))


def test_the_recommended_layer_of_real_nodes_is_the_simulators(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clients": 3, "labels_per_client": 3, "model": "logistic", "method": "fedpals"}
    settings |= {"ess": 0.5, "rounds": 1, "held_out": 0.2}
    out, log = tmp_path / "model.safetensors", tmp_path / "log"
    with Deployment() as deployment:
        for number in range(2):
            deployment.node(number, 2)
        wait_for(lambda: deployment.online() == 2, deployment.logs)
        with log.open("wb") as file:
            running = deployment.run(APP, [config(out=str(out), **settings)], output=file)
        wait_for(lambda: running.poll() is not None, log.read_text)
        assert deployment.status() == "finished:completed", log.read_text() + deployment.logs()
    record = simulate(Run.of(task="digits", **settings), tmp_path)
    expected, _ = checkpoint.load(record.model(Correction.RECOMMENDED))
    tensors = load_file(out)
    assert tensors
    assert all(torch.equal(tensors[key], expected[key]) for key in tensors)
    accuracy = result_of(record)["selected"]["recommended"]["test"]["accuracy"]
    assert f"With the recommended layer: accuracy {accuracy:.4f}" in log.read_text()


def test_a_run_that_somebody_else_submits_says_nothing_about_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = ["finished:failed", "finished:completed"]  # as Flower lists them, the newest first
    monkeypatch.setattr(Deployment, "_listing", lambda *_: [{"status": status} for status in statuses])
    assert Deployment.__new__(Deployment).status() == "finished:completed"


def test_fedpals_flower_up_needs_an_app(tmp_path: Path) -> None:
    command = [*FEDPALS, "flower", "up", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert "has no pyproject.toml" in process.stderr


@pytest.mark.parametrize("name", ["ca.crt", "server.pem", "server.key"])
def test_private_keys_are_for_the_owner_only(name: str, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    readable = (tmp_path / name).stat().st_mode & 0o077
    assert bool(readable) == (name != "server.key")
