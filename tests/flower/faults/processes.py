"""Processes that get a signal: the command at every stage, and every process of a run."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from signal import Signals

from tests.flower.faults.harness import Fault, Outcome, Verdict
from tests.flower.faults.up import HOLD_SECONDS, SETTINGS, Up, how

STAGES: dict[str, Callable[[Up], object]] = {
    "while it loads": lambda _: True,
    "while SuperLink starts": lambda up: up.descendants("flower-superlink"),
    "while a key is registered": lambda up: list(up.folder.glob("fedpals-flower-*/keys/*")),
    "while the app runs": lambda up: up.descendants("flwr-serverapp"),
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
VICTIMS = {
    "SuperLink": "flower-superlink",
    "a SuperNode": "flower-supernode",
    "a client process": "flwr-clientapp",
    "the server app": "flwr-serverapp",
    "the launcher of processes": "flower-superexec",
    "the log's reader": "flwr run",
    "the watchdog": "watchdog.py",
}


def faults(seed: int = 0) -> Iterator[Fault]:
    """Yield all faults of processes; the moments within a stage are random."""
    draw = random.Random(seed)
    for stage in STAGES:
        for number in SIGNALS:
            delay = draw.uniform(0.0, 1.0)
            attempt = partial(interrupt, stage, number, delay)
            yield Fault(f"flower up gets {number.name} {stage}", (Verdict.OK,), attempt)
    stage = "while a key is registered"
    yield Fault("flower up gets three SIGINT", (Verdict.OK,), partial(interrupt, stage, signal.SIGINT, 0.0, times=3))
    yield Fault(
        "flower up gets SIGINT, ignored at its start",
        (Verdict.OK,),
        partial(interrupt, stage, signal.SIGINT, 0.0, ignored=True),
    )
    for victim in VICTIMS:
        for number in (signal.SIGTERM, signal.SIGKILL):
            delay = draw.uniform(0.0, HOLD_SECONDS / 3)
            name = f"{victim} gets {number.name} during the run"
            yield Fault(name, (Verdict.OK, Verdict.ENDED), partial(strike, victim, number, delay))
    yield Fault(
        "both SuperNodes get SIGKILL during the run",
        (Verdict.ENDED,),
        partial(strike, "a SuperNode", signal.SIGKILL, 0.0, all_of_them=True),
    )
    yield Fault(
        "a SuperNode is stopped (SIGSTOP) during the run",
        (Verdict.OK, Verdict.ENDED),
        partial(strike, "a SuperNode", signal.SIGSTOP, 0.0),
    )


def interrupt(stage: str, number: Signals, delay: float, *, times: int = 1, ignored: bool = False) -> Outcome:
    """Send the command a signal; nothing may be left, neither processes nor private keys."""
    with Up("-n", "1", "--tls", ignore_interrupts=ignored, clients=3, nodes=2) as up:
        if not up.until(lambda: STAGES[stage](up)):
            return Outcome(Verdict.UNTRIED, f"ended before: {up.text()[-300:]}")
        time.sleep(delay)
        for _ in range(times):
            up.process.send_signal(number)
            time.sleep(0.3)

        def judge(code: int) -> Outcome:
            # Before Python has loaded the command, signals have their usual effect.
            handled = number in HANDLED and stage != "while it loads"
            right = code in ({128 + number} if handled else {-number, 128 + number})
            right &= not handled or "Traceback" not in up.text()
            return Outcome(Verdict.OK if right else Verdict.RAW, how(code))

        return up.ended(judge)


def strike(victim: str, number: Signals, delay: float, *, all_of_them: bool = False) -> Outcome:
    """Send a process a signal while clients train in the second round: the result is right, or the end a sentence."""
    settings = {**SETTINGS, "rounds": 2, "nodes": 1, "timeout": 60.0, "wait": 120.0}
    with Up("-n", "2", held_round=2, **settings) as up:
        if not up.until(up.in_training):
            return Outcome(Verdict.UNTRIED, f"ended before: {up.text()[-300:]}")
        time.sleep(delay)
        pids = up.in_training() if victim == "a client process" else up.descendants(VICTIMS[victim])
        if not pids:
            return Outcome(Verdict.UNTRIED, f"{victim} does not run")
        for pid in pids if all_of_them else pids[-1:]:
            os.kill(pid, number)

        def judge(code: int) -> Outcome:
            outcome, trained = up.judge_run(code), len(up.in_training())
            unnoticed = victim == "a client process" and trained <= 2 and "): " not in outcome.evidence
            if outcome.verdict is Verdict.OK and unnoticed:
                return Outcome(Verdict.SILENT, f"the update of a killed process was used: {outcome.evidence}")
            return Outcome(outcome.verdict, f"{outcome.evidence}; {trained} processes began to train in round 2")

        return up.ended(judge)
