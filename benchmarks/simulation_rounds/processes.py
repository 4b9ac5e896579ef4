"""Processes of their own, which are ended when they take too long."""

from __future__ import annotations

import multiprocessing as mp
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

LIMIT_SECONDS = 3600.0

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    *,
    output: Path | None = None,
    limit: float = LIMIT_SECONDS,
) -> float:
    """Run a command to its end; return how long it took. It must leave the file ``output``."""
    start = time.perf_counter()
    with log.open("w") as file:
        try:
            done = subprocess.run(
                command, env=environment, cwd=folder, stdout=file, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, timeout=limit, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{command[0]} took more than {limit:.0f} s") from None
    seconds = time.perf_counter() - start
    if done.returncode or (output and not output.exists()):
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise RuntimeError(f"{command[0]} ended with code {done.returncode}:\n{tail}")
    return seconds


def in_child(
    function: Callable[Arguments, Result], /, *arguments: Arguments.args, **keywords: Arguments.kwargs
) -> Result:
    """Call a function of a module in a new process, and return what it returns."""
    context = mp.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_call_and_send, args=(sender, function, arguments, keywords))
    child.start()
    sender.close()
    try:
        if not receiver.poll(LIMIT_SECONDS):
            raise RuntimeError(f"{function.__name__} took more than {LIMIT_SECONDS:.0f} s")
        result: Result = receiver.recv()
    except EOFError:
        raise RuntimeError(f"{function.__name__} failed; its message stands above") from None
    finally:
        child.join(5)
        if child.is_alive():
            child.kill()
            child.join()
    return result


def _call_and_send(
    sender: Connection, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    sender.send(function(*arguments, **keywords))
