"""The same runs on a Ray cluster: the same bits, also of runs that were begun elsewhere, failed or were stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fedpals.errors import InputError, MissingExtraError
from fedpals.files import replacing
from fedpals.simulation import ray_cluster
from fedpals.simulation import record as records
from fedpals.simulation.event import Event
from fedpals.simulation.record import Record
from fedpals.simulation.run import Run
from fedpals.simulation.settings import SweepSettings
from fedpals.simulation.simulator import simulate
from fedpals.simulation.sweep import sweep
from tests.runs import lines_of

pytest.importorskip("ray", reason="needs Ray: pip install 'fedpals[ray]'")

SMALL: dict[str, Any] = {"task": "digits", "model": "logistic", "clients": 4, "samples_per_client": 30}


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of one CPU, which ends with the tests and which no other test finds by itself."""
    port, client, agent = free_ports(3)
    with TemporaryDirectory(prefix="ray-") as folder:  # a short path: sockets lie below it
        log = Path(folder) / "log"
        command = [
            str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats",
            "--include-dashboard=false", "--num-cpus=1", "--num-gpus=0", f"--port={port}", f"--temp-dir={folder}",
            f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}",
            f"--object-store-memory={1 << 27}",
        ]  # fmt: skip
        with log.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            deadline = time.monotonic() + 90
            while "Ray runtime started" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()  # ends the processes that it started, too
            try:
                process.wait(30)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def told(record: Record) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines_of(record)]


def same(one: Record, other: Record) -> bool:
    names = ["config.toml", "weights.json", "result.json", "model.safetensors", "model-prior.safetensors"]
    files = all((one.path / name).read_bytes() == (other.path / name).read_bytes() for name in names)
    return files and one.checkpoint.read_bytes() == other.checkpoint.read_bytes() and told(one) == told(other)


def test_a_cluster_gives_the_same_bits_and_one_failure_stops_nothing(cluster: str, tmp_path: Path) -> None:
    runs = [
        Run.of(**SMALL, rounds=2, epochs=4, method="fedprox", proximal_weight=1e30),
        Run.of(**SMALL, rounds=2, method="scaffold"),
        Run.of(**SMALL, rounds=6, method="fedpals", ess=0.5),
    ]
    answers = iter([False, False, False, True])
    begun = simulate(runs[2], tmp_path / "ray", stop=lambda: next(answers))
    assert begun.unfinished
    events: list[Event] = []
    outcome = sweep(runs, SweepSettings(tmp_path / "ray", ray=cluster), events.append)
    assert list(outcome.failed) == [0]
    assert "smaller learning_rate" in str(outcome.failed[0])
    assert [record.finished for record in outcome.records] == [False, True, True]
    for run, record in zip(runs[1:], outcome.records[1:], strict=True):
        assert same(record, simulate(run, tmp_path / "here"))
    lines = [event.line for event in events if event.kind == "round" and event.run == 2]
    continued = {line.round if line else 0 for line in lines}
    assert continued <= {4, 5, 6}, "rounds that were done before were computed again"
    assert not list(tmp_path.rglob(".*")), "files that were not written to their end"


def test_an_interruption_stops_the_cluster_after_the_round_and_the_run_continues(cluster: str, tmp_path: Path) -> None:
    runs = [Run.of(**SMALL, rounds=800, method="fedavg", seed=seed) for seed in range(2)]

    def interrupt(event: Event) -> None:
        if event.kind == "round" and not interrupted:
            interrupted.append(event.run)
            signal.raise_signal(signal.SIGINT)

    interrupted: list[int] = []
    outcome = sweep(runs, SweepSettings(tmp_path / "ray", ray=cluster), interrupt)
    assert outcome.stopped
    assert not outcome.failed
    first, second = outcome.records
    assert first.unfinished
    assert 0 < len(lines_of(first)) < 800
    assert not second.path.exists(), "a run was begun after the interruption"
    continued = sweep(runs[:1], SweepSettings(tmp_path / "ray"))
    assert same(continued.records[0], simulate(runs[0], tmp_path / "here"))


@pytest.mark.parametrize("listening", [True, False])
def test_an_address_that_does_not_answer(listening: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray_cluster, "_ANSWER_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if not listening:
            server.close()
        started = time.monotonic()
        with pytest.raises(InputError, match=f"no Ray cluster answers at {address} within 1 seconds; start one with"):
            sweep([Run.of(**SMALL)], SweepSettings(tmp_path, ray=address))
    assert time.monotonic() - started < 20
    assert not list(tmp_path.iterdir())


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedpals\[ray\]'"):
        sweep([Run.of(**SMALL)], SweepSettings(tmp_path, ray="127.0.0.1:6379"))


def test_what_is_finished_needs_no_cluster(tmp_path: Path) -> None:
    run = Run.of(**SMALL, rounds=1)
    simulate(run, tmp_path)
    assert sweep([run], SweepSettings(tmp_path, ray="nowhere:1")).records[0].finished


def test_a_record_that_comes_back_is_written_so_that_a_kill_in_between_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order = []

    def noted(path: Path) -> AbstractContextManager[Path]:
        order.append(path.name)
        return replacing(path)

    monkeypatch.setattr(records, "replacing", noted)
    names = ["result.json", "checkpoint/state.safetensors", "metrics.jsonl", "weights.json"]
    run = Run.of(**SMALL)
    Record(run, tmp_path).unpack({name: name.encode() for name in names})
    assert set(order[:2]) == {"metrics.jsonl", "weights.json"}
    assert order[2:] == ["state.safetensors", "result.json"]
    assert all((tmp_path / run.folder / name).read_bytes() == name.encode() for name in names)
