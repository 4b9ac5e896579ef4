"""A complete Flower deployment on this machine: start SuperLink and SuperNodes, and stop all of them at the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, Self

from fedpals.errors import FedpalsError
from fedpals.flower.local import watchdog
from fedpals.flower.local.certificates import Certificates, make_certificates, make_node_key

_START_SECONDS = 60.0
"""Time limit for SuperLink to accept connections, and for a command to end."""
_POLL_SECONDS = 0.2


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: files below ``home``, no telemetry and no downloads."""
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
    """SuperLink and SuperNodes on free loopback ports, optionally with TLS and node keys.

    Use it as a context manager: on exit it ends every process that it started, and removes ``folder``, which holds
    Flower's own files, keys and the logs of the processes. If this process is killed, a watchdog does both.
    """

    def __init__(self, *, tls: bool = False) -> None:
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", watchdog.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._watchdog.stdout is not None
        with self._watchdog.stdout as output:
            self.folder = Path(os.fsdecode(output.readline().rstrip(b"\n")))
        self.home = self.folder / "home"
        self.home.mkdir()
        self.environment = environment(self.home)
        self.certificates: Certificates | None = make_certificates(self.folder / "tls") if tls else None
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.superlink: subprocess.Popen[bytes] | None = None
        self.nodes: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        """Address of SuperLink."""
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
        certificates = self.certificates
        if certificates is None:
            connection, security = "insecure = true", ["--insecure"]
        else:
            connection = f'root-certificates = "{certificates.authority}"'
            security = ["--ssl-ca-certfile", str(certificates.authority), "--ssl-certfile", str(certificates.server)]
            security += ["--ssl-keyfile", str(certificates.server_key), "--enable-supernode-auth"]
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\n{connection}\n',
            encoding="utf-8",
        )
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--database", str(self.folder / "state.db")]
        superlink = self.superlink = self._start("superlink", ["flower-superlink", *security, *options])
        until(lambda: superlink.poll() is not None or _is_listening(self.port), "SuperLink accepts no connections")
        if superlink.poll() is not None:
            raise DeploymentError(f"SuperLink {ending(superlink.returncode)}:\n{self.log('superlink')}")

    def node(
        self, number: int, of: int, *, register: bool = True, authority: Path | None = None, through: str | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the SuperNode of partition ``number``; with TLS it gets a new key, which is registered if ``register``.

        ``authority`` is the certificate that the node trusts, SuperLink's unless given; ``through`` is the address of a
        proxy that it connects to instead.
        """
        name = f"node-{len(self.processes)}"
        security = ["--insecure"]
        if self.certificates is not None:
            key = self.folder / "keys" / name
            public = make_node_key(key)
            if register:
                self.command(["flwr", "supernode", "register", str(public), "here"])
            root = authority or self.certificates.authority
            security = ["--root-certificates", str(root), "--auth-supernode-private-key", str(key)]
        options = ["--superlink", through or self.address, "--host", "127.0.0.1", "--port", str(free_port())]
        options += ["--node-config", f"partition-id={number} num-partitions={of}"]
        self.nodes.append(self._start(name, ["flower-supernode", *security, *options]))
        return self.nodes[-1]

    def run(self, app: Path, config: Iterable[str] = (), *, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """Submit an app; return the process that prints its log, to ``output`` if given, until the run ends."""
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

    def follow(self, run: subprocess.Popen[bytes], report: Callable[[str], None]) -> None:
        """Wait until a run's log ends; raise if SuperLink or all SuperNodes ended before, since nothing would follow.

        ``report`` gets a sentence for every SuperNode that ends.
        """
        running = dict(enumerate(self.nodes))
        while run.poll() is None:
            self._expect_superlink()
            for i in [i for i, node in running.items() if node.poll() is not None]:
                report(f"SuperNode {i} {ending(running.pop(i).returncode)}; the run goes on without it.")
            if self.nodes and not running:
                raise DeploymentError(f"all {len(self.nodes)} SuperNodes ended during the run:\n{self.logs()}")
            time.sleep(_POLL_SECONDS)

    def status(self) -> str:
        """Return the status of the first run, such as ``finished:completed``.

        Others may submit runs to the same SuperLink, which lists the newest first.
        """
        runs = self._listing(["flwr", "list", "here"], "runs")
        return str(runs[-1]["status"]) if runs else "never started"

    def online(self) -> int:
        """Return the number of connected SuperNodes."""
        nodes = self._listing(["flwr", "supernode", "list", "here"], "nodes")
        return sum(node["status"] == "online" for node in nodes)

    def _expect_superlink(self) -> None:
        if self.superlink is not None and self.superlink.poll() is not None:
            raise DeploymentError(f"SuperLink {ending(self.superlink.returncode)} during the run:\n{self.logs()}")

    def _listing(self, command: list[str], key: str) -> list[dict[str, Any]]:
        answer = json.loads(self.command([*command, "--format", "json"]))
        if key not in answer:  # a failure has code 0 here
            self._expect_superlink()
            raise DeploymentError(f"{' '.join(command)} failed: {answer.get('error-message', answer)}")
        rows: list[dict[str, Any]] = answer[key]
        return rows

    def command(self, command: list[str]) -> str:
        """Run one of Flower's commands and return its output."""
        try:
            process = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, timeout=_START_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise DeploymentError(f"{' '.join(command)} did not end within {_START_SECONDS:g} s") from None
        if process.returncode:
            output = f"{process.stdout}{process.stderr}"
            raise DeploymentError(f"{' '.join(command)} {ending(process.returncode)}:\n{output}")
        return process.stdout

    def log(self, name: str) -> str:
        """Return the output of a process so far."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def logs(self) -> str:
        """Return the output of all processes so far."""
        return "\n".join(f"== {path.stem}\n{self.log(path.stem)}" for path in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        """End every process of this deployment, including detached ones, and remove its folder."""
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        if self._watchdog.wait() and not watchdog.clean(self.folder):  # the watchdog itself may have been killed
            raise DeploymentError(
                f"processes {watchdog.process_ids(self.home)} do not end, or {self.folder} cannot be removed; "
                "end and remove them by hand"
            )
        for process in self.processes:
            process.wait()

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            # In its own session, so that Ctrl-C only reaches this process, which then ends the others in order.
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


def ending(code: int) -> str:
    """Return how a process ended, for a sentence: ``ended with code 1``, ``was ended by SIGKILL``."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], bool], failure: str) -> None:
    """Wait until a condition is true; raise with ``failure`` if that takes too long."""
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise DeploymentError(f"{failure} after {_START_SECONDS:g} s")
        time.sleep(0.1)
