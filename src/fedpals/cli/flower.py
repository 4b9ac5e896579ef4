"""`fedpals flower`: a Flower deployment on this machine."""

from __future__ import annotations

import re
import signal
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedpals.config import did_you_mean, read_toml
from fedpals.errors import InputError

_SETTING = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")
"""A setting as Flower reads it: a key and a value of TOML."""


def up(
    app: Annotated[Path, typer.Argument(help="Folder of a Flower app.", show_default="current folder")] = Path(),
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, help="SuperNodes to start.")] = 2,
    tls: Annotated[
        bool, typer.Option("--tls", help="Use TLS with new certificates, and a registered key for every node.")
    ] = False,
    config: Annotated[
        list[str] | None,
        typer.Option("--run-config", "-c", help="Settings of the app, such as 'rounds=2 seed=1'."),
    ] = None,
) -> None:
    """Start SuperLink and SuperNodes on this machine, run an app on them, and stop everything.

    Node i of N gets the node config partition-id=i num-partitions=N. Free ports of the loopback interface are used.
    All processes are stopped at the end, also after Ctrl-C.
    """
    if not (app / "pyproject.toml").is_file():
        raise InputError(f"{app}: has no pyproject.toml; give the folder of a Flower app, for instance examples/flower")
    _check_settings(app, config or [])
    from fedpals.flower.local.deployment import Deployment  # loads flwr, which other commands do not need
    from fedpals.simulation.signals import STOPPING

    for number in STOPPING:  # of which a shell in the background lets Ctrl-C be ignored
        if number.name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    with Deployment(tls=tls) as deployment:
        typer.echo(f"SuperLink at {deployment.address}, {nodes} SuperNodes{', TLS and node keys' if tls else ''}")
        for i in range(nodes):
            deployment.node(i, nodes)
        code = deployment.run(app, config or []).wait()
        status = deployment.status()
        typer.echo(f"Run {status}.")
        if code or status != "finished:completed":
            typer.echo(deployment.logs(), err=True)
            raise typer.Exit(1)


def _check_settings(app: Path, config: Sequence[str]) -> None:
    """Raise an error for settings that Flower would ignore in silence."""
    keys = read_toml(app / "pyproject.toml").get("tool", {}).get("flwr", {}).get("app", {}).get("config", {})
    for text in config:
        if text.endswith(".toml"):
            read_toml(Path(text))
            continue
        if rest := _SETTING.sub("", text).strip():
            raise InputError(f"--run-config is {text!r}: {rest!r} is not of the form key=value; give that")
        for key, value in _SETTING.findall(text):
            if key.split(".")[0] not in keys:
                raise InputError(
                    f"--run-config sets {key!r}, which is not a key of {app / 'pyproject.toml'}, [tool.flwr.app.config]"
                    f"{did_you_mean(key, keys)}"
                )
            try:
                tomllib.loads(f"value = {value}")
            except tomllib.TOMLDecodeError:
                raise InputError(
                    f"--run-config sets {key} to {value}; give a number, true or false, or text in quotes"
                ) from None


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
