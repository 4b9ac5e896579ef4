"""`fedpals flower up` as a process whose descendants can all be found, and what a run of the example app must give."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import torch
from flwr.app import Message
from flwr.serverapp.strategy import Result
from safetensors.torch import load_file

from fedpals.flower import FedAvg
from fedpals.flower.local.deployment import ending
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker
from tests.flower.faults.harness import Outcome, Verdict
from tests.flower.grids import flat, grid_of, initial

APP = Path(__file__).parents[3] / "examples" / "flower"
LIMIT = 400.0
"""Seconds after which a wait counts as unbounded. The app's own limits are 60 s and 120 s; the machine may be busy."""
CLEAN_SECONDS = 20.0
"""Seconds within which nothing may be left."""
HOLD_SECONDS = 10.0
"""How long clients of an app `holding` train in its last round: a signal that comes meanwhile cannot come too late."""
PLAIN_CLIENT = "app = client_app(load)"
SETTINGS: dict[str, Any] = {"clients": 3, "labels_per_client": 3, "model": "logistic", "method": "fedavg"}

Change = Callable[[int, Message], Message]
"""Changes a reply of the client with a number."""


class Up:
    """The running command; a variable in the environment marks all that descends from it."""

    def __init__(
        self,
        *arguments: str,
        app: Path = APP,
        ignore_interrupts: bool = False,
        held_round: int | None = None,
        **settings: Any,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.log = self.folder / "log"
        self.out = self.folder / "model.safetensors"
        self._mark = f"TMPDIR={self.folder}".encode()
        self.app = app if held_round is None else holding(self.folder / "app", held_round)
        keys = {**settings, "out": str(self.out)}
        self.config = " ".join(f"{key}={json.dumps(value)}" for key, value in keys.items())
        # Under nohup, or in the background of a shell, signals that these tests send are ignored from the start.
        wanted = dict.fromkeys((signal.SIGINT, signal.SIGHUP, signal.SIGQUIT), signal.SIG_DFL)
        if ignore_interrupts:
            wanted[signal.SIGINT] = signal.SIG_IGN
        before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedpals", "flower", "up", str(self.app), *arguments, "-c", self.config],
                env={**os.environ, "TMPDIR": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        for number, handler in before.items():
            signal.signal(number, handler)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in [self.process.pid, *self.descendants()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._temporary.cleanup()

    def text(self) -> str:
        """What the command printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def descendants(self, part: str = "") -> list[int]:
        """Processes that descend from the command, whose command line contains ``part``; oldest first."""
        ids = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                own = int(folder.name) == self.process.pid
                if state == "Z" or own or self._mark not in (folder / "environ").read_bytes().split(b"\0"):
                    continue
                if part in (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                    ids.append(int(folder.name))
        return sorted(ids)

    def in_training(self) -> list[int]:
        """Processes that have begun to train in the held round, whatever has become of them; oldest first."""
        signs = sorted(self.folder.glob("training-*"), key=lambda path: path.stat().st_mtime)
        return [int(path.name.removeprefix("training-")) for path in signs]

    def until(self, condition: Callable[[], Any], seconds: float = LIMIT) -> bool:
        """Wait until a condition holds; return whether it did in time, before the command ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return bool(condition())
            time.sleep(0.05)
        return True

    def leftovers(self) -> list[str]:
        """What is left of an ended command: processes and folders, once there is nothing or time is over."""
        deadline = time.monotonic() + CLEAN_SECONDS
        while True:
            left = [f"process {pid}" for pid in self.descendants()]
            left += [path.name for path in self.folder.glob("fedpals-flower-*")]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)

    def ended(self, judge: Callable[[int], Outcome]) -> Outcome:
        """Wait for the end of the command; nothing may be left, and ``judge`` says what its code means."""
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            return Outcome(Verdict.WAIT, f"still running after {LIMIT:g} s: {self.text()[-300:]}")
        begin = time.monotonic()
        if left := self.leftovers():
            return Outcome(Verdict.ORPHANS, ", ".join(left))
        outcome = judge(code)
        return Outcome(outcome.verdict, f"{outcome.evidence}; nothing left after {time.monotonic() - begin:.1f} s")

    def trained(self) -> list[set[int]]:
        """Clients that were trained in each round, as the log says."""
        return [set(map(int, re.findall(r"client (\d+) \(node", line))) for line in _lines(self.text(), "trained")]

    def judge_run(self, code: int, model: Callable[[list[set[int]]], torch.Tensor] | None = None) -> Outcome:
        """Say whether a run gave the right model, that of ``model`` for `trained` clients, or ended with a sentence."""
        text = self.text()
        if code == 0:
            trained = self.trained()
            if not torch.equal(vector(self.out), (model or expected)(trained)):
                return Outcome(Verdict.SILENT, "another model than the log says")
            reasons = _lines(text, r"client \d+ \(node \d+\): ")
            return Outcome(Verdict.OK, "; ".join([f"trained {trained}", *reasons]))
        errors = re.findall(r"^(?:Error: |Run |.*Error: ).*$", text, re.MULTILINE)
        if "Traceback" in text and not errors:
            return Outcome(Verdict.RAW, text[-300:])
        return Outcome(Verdict.ENDED if errors else Verdict.RAW, f"code {code}: {errors[0] if errors else text[-300:]}")


def holding(folder: Path, number: int) -> Path:
    """Copy the example app; in round ``number`` its clients leave a sign that they train, and take long."""
    return changed(folder, client=_HOLD.format(number=number, seconds=HOLD_SECONDS))


def changed(folder: Path, *, client: str = PLAIN_CLIENT, server: str = "") -> Path:
    """Copy the example app; ``client`` replaces the line that makes the client app, ``server`` adds to the strategy."""
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    options = "**run.method.options,"
    for name, plain, new in (("client_app", PLAIN_CLIENT, client), ("server_app", options, f"{options} {server}")):
        script = folder / "fedpals_app" / f"{name}.py"
        text = script.read_text(encoding="utf-8")
        assert text.count(plain) == 1
        script.write_text(text.replace(plain, new), encoding="utf-8")
    return folder


_HOLD = """
import os
import time
from pathlib import Path


def hold(message, context, proceed):
    if message.content.config_records["config"]["server-round"] == {number}:
        Path(os.environ["TMPDIR"], f"training-{{os.getpid()}}").touch()
        time.sleep({seconds})
    return proceed(message, context)


app = client_app(load, mods=[hold])
"""


def _lines(text: str, pattern: str) -> list[str]:
    return [m[0] for m in re.finditer(rf"round \d+: {pattern}.*", text)]


def vector(path: Path) -> torch.Tensor:
    """Return the arrays of a file as the simulator's vector."""
    worker = Worker(Run.of(task="digits", **SETTINGS))
    worker.model.network.load_state_dict(load_file(path))
    return worker.model.vector.clone()


def expected(trained: list[set[int]], change: Change | None = None, **settings: Any) -> torch.Tensor:
    """Return the model of a run in which exactly these clients were trained in each round.

    ``change`` changes the replies of a client, by its number; ``settings`` are the strategy's.
    """
    return model_of(replayed(trained, change, **settings))


def model_of(result: Result) -> torch.Tensor:
    """Return the model of a run of the example app as the simulator's vector."""
    assert result.arrays is not None
    return flat(result.arrays, Worker(Run.of(task="digits", **SETTINGS)))


def replayed(trained: list[set[int]], change: Change | None = None, **settings: Any) -> Result:
    """Return the result of a run inside this process in which exactly these clients are trained in each round."""
    worker = Worker(Run.of(task="digits", **SETTINGS))
    grid = grid_of(worker)

    def reply_of(number: int) -> Callable[[Message], Message | None]:
        rounds = iter(trained)

        def answer(reply: Message) -> Message | None:
            if reply.metadata.message_type == "train" and number not in next(rounds):
                return None
            return reply if change is None else change(number, reply)

        return answer

    for number in range(len(worker.federation.clients)):
        grid.spoil[grid.node(number)] = reply_of(number)
    strategy = FedAvg(worker.federation.target, fraction_evaluate=0.0, wait=60.0, **settings)
    return strategy.start(grid, initial(worker), num_rounds=len(trained))


def how(code: int) -> str:
    """How the command ended, in words."""
    return f"the command {ending(code)}"
