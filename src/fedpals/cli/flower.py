"""`fedpals flower`: a Flower deployment on this machine, a new app, a look at a SuperLink from outside."""

from __future__ import annotations

import re
import signal
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Self

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
    All processes are stopped at the end, also after Ctrl-C, and if this command is killed.
    """
    if not (app / "pyproject.toml").is_file():
        raise InputError(f"{app}: has no pyproject.toml; give the folder of a Flower app, for instance examples/flower")
    _check_settings(app, config or [])
    with _Interruption() as interruption:
        from fedpals.flower.local.deployment import Deployment, ending  # loads flwr, which is slow

        with Deployment(tls=tls) as deployment, interruption.closing:
            typer.echo(f"SuperLink at {deployment.address}, {nodes} SuperNodes{', TLS and node keys' if tls else ''}")
            for i in range(nodes):
                deployment.node(i, nodes)
            run = deployment.run(app, config or [])
            deployment.follow(run, partial(typer.echo, err=True))
            status = deployment.status()
            typer.echo(f"Run {status}." if not run.returncode else f"Run {status}; flwr run {ending(run.returncode)}.")
            if run.returncode or status != "finished:completed":
                typer.echo(deployment.logs(), err=True)
                raise typer.Exit(1)


def new(
    folder: Annotated[Path, typer.Argument(help="Folder to create; its name is the app's.", show_default=False)],
    publisher: Annotated[str, typer.Option(help="Your account's name on Flower's hub.")] = "me",
) -> None:
    """Create a Flower app that trains for your target: runs at once on example data, ready for your own.

    It can be built with flwr build, and published on Flower's hub.
    """
    from fedpals.flower.new_app import create_app  # loads flwr, which other commands do not need

    create_app(folder, publisher)
    package = folder.absolute().name.lower().replace("-", "_")
    typer.echo(f"{folder} is a complete app. Try it:\n\n  fedpals flower up {folder} -c 'rounds=2'\n")
    typer.echo(f"Then put your network and data into {folder / package / 'task.py'}; {folder / 'README.md'} says how.")


def check(
    address: Annotated[str, typer.Argument(help="HOST:PORT that SuperNodes connect to.", show_default=False)],
    root_certificates: Annotated[
        Path | None,
        typer.Option(help="PEM file of the authority that SuperNodes trust.", show_default="the system's authorities"),
    ] = None,
) -> None:
    """Try from outside what a stranger could do at a SuperLink; end with code 1 if it is not safe.

    Run it on a machine that is not part of the deployment. Nothing is submitted, stopped or changed: a node with a new
    key is registered if that is possible, and removed at once.
    """
    from fedpals.flower.exposure import inspect  # loads flwr, which other commands do not need

    seen = inspect(address, root_certificates)
    commands = ", ".join(seen.strangers_command)
    lines = {
        "TLS": "no: everybody on the way can read and change all messages" if seen.tls is None else f"yes, {seen.tls}",
        "certificate": "none" if seen.tls is None else f"not trusted: {seen.certificate_problem}",
        "unknown nodes": "can join" if seen.strangers_join else "are refused",
        "Control interface": f"open: without any account, everybody may {commands}" if commands else "closed",
        "Runtime interface": "open; only SuperLink's own helpers need it" if seen.runtime else "closed",
    }
    if seen.tls is not None and seen.certificate_problem is None:
        lines["certificate"] = "trusted"
    for name, line in lines.items():
        typer.echo(f"{name:<18} {line}")
    if not seen.safe:
        typer.echo("\nNot safe where strangers reach this address. docs/deployment.md says what to change.")
        raise typer.Exit(1)
    typer.echo("\nSafe from here: only nodes with a registered key can do anything.")


class _Interruption:
    """Let the first signal to stop interrupt the block, which then ends with code 128 + its number; ignore later ones.

    SIGINT counts even if it was ignored at the start, as in a shell's background. Under nohup SIGHUP stays ignored.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._closing = False
        self._handled: list[signal.Signals] = []
        self.closing = ExitStack()
        """While what this context manager is nested in is being closed, no signal interrupts."""
        self.closing.callback(setattr, self, "_closing", True)

    def __enter__(self) -> Self:
        from fedpals.simulation.signals import STOPPING

        for number in STOPPING:
            if number.name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._interrupt)
                self._handled.append(number)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt and self.signal is not None:
            for number in self._handled:  # any other handler is gone before Python has ended: one more would kill it
                signal.signal(number, signal.SIG_IGN)
            raise typer.Exit(128 + self.signal) from None

    def _interrupt(self, number: int, _: object) -> None:
        if not self._closing:
            self._closing, self.signal = True, signal.Signals(number)
            raise KeyboardInterrupt


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
