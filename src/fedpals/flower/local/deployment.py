"""A whole Flower deployment on this machine: SuperLink, SuperNodes, and everything down again afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from fedpals.errors import FedpalsError
from fedpals.flower.local.certificates import Certificates, make_certificates, make_node_key

_PATIENCE = 60.0
"""Seconds for SuperLink to accept connections, and for a command to end."""
_GRACE = 10.0
"""Seconds that processes get to end by themselves."""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: files below ``home``, and nothing is sent or fetched."""
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }


class DeploymentError(FedpalsError, RuntimeError):
    """A process of the deployment failed."""


class Deployment:
    """SuperLink and SuperNodes on free loopback ports, with TLS and node keys if wanted.

    A context manager; leaving it, by whatever way, ends every process that it started. Flower's own
    files and the processes' logs are in ``folder``.
    """

    def __init__(self, *, tls: bool = False) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="fedpals-flower-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.home = self.folder / "home"
        self.home.mkdir()
        self.environment = environment(self.home)
        self.certificates: Certificates | None = make_certificates(self.folder / "tls") if tls else None
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        """Where SuperLink listens."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self._start_superlink()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_superlink(self) -> None:
        made = self.certificates
        if made is None:
            connection, security = "insecure = true", ["--insecure"]
        else:
            connection = f'root-certificates = "{made.authority}"'
            security = ["--ssl-ca-certfile", str(made.authority), "--ssl-certfile", str(made.server)]
            security += ["--ssl-keyfile", str(made.server_key), "--enable-supernode-auth"]
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\n{connection}\n',
            encoding="utf-8",
        )
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--database", str(self.folder / "state.db")]
        superlink = self._start("superlink", ["flower-superlink", *security, *place])
        until(lambda: superlink.poll() is not None or _listens(self.port), "SuperLink does not listen")
        if superlink.poll() is not None:
            raise DeploymentError(f"SuperLink ended with code {superlink.returncode}:\n{self.log('superlink')}")

    def node(
        self, number: int, of: int, *, register: bool = True, authority: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the SuperNode of partition ``number``; with TLS it gets a new key, registered unless told otherwise.

        ``authority`` is the certificate that the node trusts; SuperLink's own unless given.
        """
        name = f"node-{len(self.processes)}"
        security = ["--insecure"]
        if self.certificates is not None:
            key = self.folder / "keys" / name
            public = make_node_key(key)
            if register:
                self.command(["flwr", "supernode", "register", str(public), "here"])
            trusted = authority or self.certificates.authority
            security = ["--root-certificates", str(trusted), "--auth-supernode-private-key", str(key)]
        place = ["--superlink", self.address, "--host", "127.0.0.1", "--port", str(free_port())]
        return self._start(
            name,
            ["flower-supernode", *security, *place, "--node-config", f"partition-id={number} num-partitions={of}"],
        )

    def run(self, app: Path, config: Iterable[str] = (), *, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """Submit an app; the process returned prints its log, to ``output`` if given, until the run ends."""
        overrides = [part for text in config for part in ("--run-config", text)]
        process = subprocess.Popen(
            ["flwr", "run", str(app), "here", "--stream", *overrides],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def status(self) -> str:
        """Return how the newest run stands, such as ``finished:completed``."""
        runs = json.loads(self.command(["flwr", "list", "here", "--format", "json"]))["runs"]
        return str(runs[0]["status"]) if runs else "never started"

    def online(self) -> int:
        """Return how many SuperNodes are connected."""
        nodes = json.loads(self.command(["flwr", "supernode", "list", "here", "--format", "json"]))["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    def command(self, command: list[str]) -> str:
        """Run one of Flower's commands to its end and return what it printed."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
        if done.returncode:
            raise DeploymentError(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def log(self, name: str) -> str:
        """Return what a process has printed."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def logs(self) -> str:
        """Return what all processes have printed."""
        return "\n".join(f"== {path.stem}\n{self.log(path.stem)}" for path in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        """End every process of this deployment, those that detached themselves included; remove its folder."""
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
        end_all(self.home)
        for process in self.processes:
            process.wait()
        self._temporary.cleanup()

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            # A session of its own: Ctrl-C reaches this process alone, which then ends the others in order.
            process = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def end_all(home: Path) -> None:
    """End every process that was started with FLWR_HOME at ``home``: SuperLink's helpers leave its session."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for pid in _started_with(home):
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        deadline = time.monotonic() + _GRACE
        while _started_with(home) and time.monotonic() < deadline:
            time.sleep(0.1)


def _started_with(home: Path) -> list[int]:
    mark, found = f"FLWR_HOME={home}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], bool], otherwise: str) -> None:
    """Wait for a condition, and raise where it does not come true."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise DeploymentError(f"{otherwise} after {_PATIENCE:g} s")
        time.sleep(0.1)
