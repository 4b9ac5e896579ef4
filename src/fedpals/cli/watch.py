"""`fedpals watch`: runs that are under way, in a browser of this machine."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from fedpals.cli.terminal import escape, new_console
from fedpals.simulation.signals import stop_on_signals

_SECONDS = 0.2
"""Time until a signal is noticed."""


def watch(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS…", help="Folders of runs, or the record of a Flower strategy; may be empty yet."),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any that is free.")] = 8517,
) -> None:
    """Show runs while they are under way: rounds, estimated target accuracy, weights, refused updates.

    The page is served to browsers of this machine only, renews itself, and changes nothing. Ctrl-C ends it.
    """
    from fedpals.report.live import LiveServer  # slow imports, so only here

    with stop_on_signals() as stop, LiveServer(runs, port) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": _SECONDS})
        serving.start()
        new_console().print(f"Watching at {escape(server.address)}  (Ctrl-C to end)", soft_wrap=True)
        try:
            while not stop():
                time.sleep(_SECONDS)
        finally:
            server.shutdown()
            serving.join()
    if stop.signal is not None:
        raise typer.Exit(128 + stop.signal)
