"""An app of these benchmarks in one of Flower's simulations, by Flower's own command."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from simulation_rounds.processes import LIMIT_SECONDS, run_command

_BENCHMARKS = Path(__file__).resolve().parents[1]
_PROJECT = """
[project]
name = "bench"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "bench.app:server"
clientapp = "bench.app:client"
[tool.flwr.app.config]
"""
_APP = """
from {module} import make_client, make_server

server = make_server()
client = make_client()
"""
_CONNECTION = """
[superlink]
default = "local"
[superlink.local]
address = ":local:"
"""


def run_simulation(
    module: str,
    output: Path,
    federation: Mapping[str, int],
    variables: Mapping[str, str],
    *,
    config: Mapping[str, int | float] | None = None,
    limit: float = LIMIT_SECONDS,
) -> float:
    """Run `flwr run` to its end, in a folder and on ports of its own; return its seconds, start-up included.

    Afterwards all its processes are ended: SuperLink and Ray detach themselves from their parents.

    Parameters
    ----------
    module
        Has ``make_server`` and ``make_client``; it is imported in other processes, from the folder benchmarks/.
    output
        A file that the server writes.
    federation
        Flower's federation config.
    variables
        Environment variables for the app.
    config
        The app's run config.
    limit
        Seconds after which it has failed.
    """
    # It imports flwr, which need not be installed where nothing runs on it.
    from fedpals.flower.local.deployment import environment, free_port
    from fedpals.flower.local.watchdog import end_all

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home, package = folder / "home", folder / "app" / "bench"
        home.mkdir()
        package.mkdir(parents=True)
        (package.parent / "pyproject.toml").write_text(_PROJECT + _pairs(config or {}, "\n"))
        (package / "__init__.py").write_text("")
        (package / "app.py").write_text(_APP.format(module=module))
        (home / "config.toml").write_text(_CONNECTION)
        path = [str(_BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {
            "PYTHONPATH": os.pathsep.join(path),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        }
        command = ["flwr", "run", ".", "local", "--stream", "--federation-config", _pairs(federation, " ")]
        try:
            return run_command(
                command, {**environment(home), **own, **variables}, package.parent, folder / "log.txt",
                output=output, limit=limit,
            )  # fmt: skip
        finally:
            end_all(home)


def _pairs(settings: Mapping[str, int | float], separator: str) -> str:
    return separator.join(f"{key}={value}" for key, value in settings.items())
