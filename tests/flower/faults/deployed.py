"""Clients and servers that misbehave in a real deployment: SuperLink, SuperNodes and a process for every message.

One of two clients is the culprit. Where a run ends well its model must be, bit for bit, that of a run inside this
process with the clients that were trained as the log says.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from flwr.app import Message

from fedpals.engine import checkpoint
from fedpals.flower.local.deployment import environment
from tests.flower.faults import culprit
from tests.flower.faults.harness import Fault, Outcome, Verdict
from tests.flower.faults.up import (
    LIMIT,
    PLAIN_CLIENT,
    SETTINGS,
    Change,
    Up,
    changed,
    expected,
    model_of,
    replayed,
    vector,
)

RUN: dict[str, Any] = {**SETTINGS, "rounds": 2, "timeout": 300.0, "wait": 300.0}
HONEST, CULPRIT = 0, culprit.CULPRIT
BOTH = {HONEST, CULPRIT}
CAP = 1000
"""Above the number of samples of the honest client."""
PRIVATE: dict[str, Any] = {"clip_update": 1.0, "noise_multiplier": 1.0}
MISBEHAVING = "from fedpals_app import culprit\n\napp = culprit.Misbehaving(client_app(load), culprit.{})"
LOCAL_NOISE = "from flwr.clientapp.mod import LocalDpMod\n\napp = client_app(load, mods=[LocalDpMod(1, 1, 1, 1e-5)])"
NAMED = rf"round 1: client {CULPRIT} \(node \d+\): "
REASONS = {
    "NaN everywhere": "parameters are NaN or infinite",
    "header of 10¹¹ floats": r"float32 \(100000000000,\) instead of float32",
    "another shape": r"float32 \(1, \d+\) instead of float32",
    "update × −50": "times the median",
    "update of 10³⁰": "times the median",
}


@dataclass(frozen=True)
class Case:
    """What is changed in the app, and what the log must say in the end."""

    wanted: Verdict
    says: str
    """A pattern of the sentence that names who is at fault, and why."""
    trained: list[set[int]] | None = None
    """Clients that are trained in each round; None if the run cannot end well."""
    client: str = PLAIN_CLIENT
    server: dict[str, Any] = field(default_factory=dict)
    """Arguments of the strategy."""
    change: Change | None = None
    """What the replies of the clients are turned into, if that has a part in the model."""
    settings: dict[str, Any] = field(default_factory=dict)


def faults() -> Iterator[Fault]:
    """Yield all faults of a deployment."""
    for name, case in CASES.items():
        yield Fault(f"deployed: {name}", (case.wanted,), partial(attempt, case))
    yield Fault("deployed: a second run on the checkpoint of one under way", (Verdict.ENDED,), second_run)
    yield Fault("deployed: the private server app gets SIGKILL, is submitted again", (Verdict.OK,), submit_again)


def attempt(case: Case) -> Outcome:
    """Run the changed app to its end."""
    with app(case.client, case.server) as folder, Up("-n", "2", app=folder, **{**RUN, **case.settings}) as up:
        return up.ended(partial(judge, case, up))


@contextmanager
def app(client: str = PLAIN_CLIENT, server: dict[str, Any] | None = None) -> Iterator[Path]:
    """Yield the folder of a changed app, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        arguments = "".join(f"{key}={value!r}, " for key, value in (server or {}).items())
        folder = changed(Path(name, "app"), client=client, server=arguments)
        shutil.copyfile(culprit.__file__, folder / "fedpals_app" / "culprit.py")
        yield folder


def judge(case: Case, up: Up, code: int) -> Outcome:
    """Say whether the run ended as it must, with a sentence that names who is at fault."""
    outcome = up.judge_run(code, partial(expected, change=case.change, **case.server))
    if outcome.verdict not in (Verdict.OK, Verdict.ENDED):
        return outcome
    named = re.search(f".*{case.says}.*", up.text())
    if named is None:
        verdict = Verdict.SILENT if outcome.verdict is Verdict.OK else Verdict.RAW
        return Outcome(verdict, f"no line says {case.says!r}: {outcome.evidence}")
    evidence = re.sub(r"^.*?INFO.*?:\s+|^.*?WARNING.*?:\s+", "", named[0])
    if outcome.verdict is Verdict.ENDED:
        return Outcome(Verdict.ENDED, f"{evidence}; {outcome.evidence}")
    if up.trained() != case.trained:
        return Outcome(Verdict.SILENT, f"trained {up.trained()} instead of {case.trained}: {evidence}")
    return Outcome(case.wanted, f"{evidence}; trained {up.trained()}")


def second_run() -> Outcome:
    """While clients of a run train, submit the same app with the same checkpoint to the same SuperLink."""
    with (
        app(MISBEHAVING.format("held(1)")) as folder,
        Up("-n", "2", app=folder, checkpoint=str(folder / "state.safetensors"), **RUN) as up,
    ):
        if not up.until(lambda: len(up.in_training()) == len(BOTH)):
            return Outcome(Verdict.UNTRIED, f"ended before: {up.text()[-300:]}")
        (home,) = up.folder.glob("fedpals-flower-*/home")
        try:
            second = subprocess.run(
                ["flwr", "run", str(up.app), "here", "--stream", "--run-config", up.config],
                env={**environment(home), "TMPDIR": str(up.folder)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(Verdict.WAIT, f"the second run has not ended after {LIMIT:g} s")
        (up.folder / culprit.GO).touch()
        refusal = re.search(r"\S*InputError: .*another server writes this checkpoint.*", second.stdout)

        def both(code: int) -> Outcome:
            first = up.judge_run(code)
            if first.verdict is not Verdict.OK or up.trained() != [BOTH, BOTH]:
                return Outcome(Verdict.SILENT, f"the first run was disturbed: {first.evidence}")
            if refusal is None:
                return Outcome(Verdict.SILENT, f"the second run was not refused: {second.stdout[-300:]}")
            return Outcome(Verdict.ENDED, f"{refusal[0]}; the first run: {first.evidence}")

        return up.ended(both)


def submit_again() -> Outcome:
    """Kill the server app in round 2 of a run with noise; submitted again, it must end as if nothing had happened."""
    with app(MISBEHAVING.format("held(2)"), PRIVATE) as folder:
        state = folder.parent / "state.safetensors"
        settings = {**RUN, "checkpoint": str(state)}
        with Up("-n", "2", app=folder, **settings) as up:
            if not up.until(lambda: len(up.in_training()) == len(BOTH)):
                return Outcome(Verdict.UNTRIED, f"ended before: {up.text()[-300:]}")
            for pid in up.descendants("flwr-serverapp"):
                os.kill(pid, signal.SIGKILL)
            outcome = up.ended(up.judge_run)
            before = _epsilons(up.text())
        if outcome.verdict is not Verdict.ENDED:
            return outcome
        with Up("-n", "2", app=folder, **settings) as up:
            (up.folder / culprit.GO).touch()
            return up.ended(partial(_continued, up, state, before))


def _continued(up: Up, state: Path, before: dict[int, float], code: int) -> Outcome:
    text = up.text()
    if code or "continue after round 1" not in text:
        return Outcome(Verdict.RAW if code else Verdict.SILENT, f"code {code}: {text[-300:]}")
    _, facts = checkpoint.load(state)
    with patch("secrets.token_hex", lambda _: facts["noise_key"]):  # the noise of the run that was killed
        unbroken = replayed([BOTH, BOTH], **PRIVATE)
    spent = {number: round(float(str(unbroken.train_metrics_clientapp[number]["epsilon"])), 3) for number in (1, 2)}
    seen = before | _epsilons(text)
    evidence = f"ε of rounds 1 and 2 is {seen}; trained again {up.trained()}"
    if seen != spent or not seen[1] < seen[2] or up.trained() != [BOTH]:
        return Outcome(Verdict.SILENT, f"{evidence}, but without the kill {spent}")
    if not torch.equal(vector(up.out), model_of(unbroken)):
        return Outcome(Verdict.SILENT, f"{evidence}, but the model is another than without the kill")
    return Outcome(Verdict.OK, f"{evidence}; both and the model are as without the kill")


def _epsilons(text: str) -> dict[int, float]:
    return {int(number): float(spent) for number, spent in re.findall(r"round (\d+): ε = ([\d.]+) at δ", text)}


def _claims(number: int, reply: Message) -> Message:
    return culprit.claim(reply) if number == CULPRIT else reply


CASES: dict[str, Case] = {
    **{
        name: Case(
            Verdict.REFUSED,
            f"{NAMED}.*({REASONS[name]})",
            [{HONEST}, BOTH],
            MISBEHAVING.format(f"LIES[{name!r}]"),
        )
        for name in culprit.LIES
    },
    "its update is sent as the other client's": Case(
        Verdict.REFUSED,
        rf"{NAMED}.*its reply names node \d+ as the sender",
        [{HONEST}, BOTH],
        MISBEHAVING.format("forging"),
    ),
    "claims 10¹² samples, max_samples=1000": Case(
        Verdict.WARNED,
        rf"client {CULPRIT} \(node \d+\) claims 1000000000000 samples and counts as {CAP}",
        [BOTH, BOTH],
        MISBEHAVING.format("claiming"),
        {"max_samples": CAP},
        _claims,
    ),
    "silent when it is to train": Case(
        Verdict.REFUSED,
        f"{NAMED}no reply within 40 s",
        [{HONEST}, {HONEST}],
        MISBEHAVING.format("silent"),
        settings={"nodes": 1, "timeout": 40.0},
    ),
    "its app has no label counts": Case(
        Verdict.REFUSED,
        r"node \d+ is refused: its app does not answer query\.labelcounts; add to the app",
        [{HONEST}, {HONEST}],
        MISBEHAVING.format(f"forgetful({CULPRIT})"),
        # Whoever waits here for an answer that never comes does so beyond the limit of these tests.
        settings={"nodes": 1, "timeout": culprit.FOREVER, "wait": culprit.FOREVER},
    ),
    "no app has label counts": Case(
        Verdict.ENDED,
        r"node \d+, node \d+: the app does not answer query\.labelcounts; add to the app",
        client=MISBEHAVING.format(f"forgetful({HONEST}, {CULPRIT})"),
        settings={"timeout": culprit.FOREVER, "wait": culprit.FOREVER},
    ),
    "control variates (SCAFFOLD) with clip_update": Case(
        Verdict.ENDED, r"clip_update: .*no noise", server=PRIVATE, settings={"method": "scaffold"}
    ),
    "control variates (SCAFFOLD) with Flower's LocalDpMod": Case(
        Verdict.ENDED,
        r"client 0: error: (LocalDpMod expects exactly one ArrayRecord, but found 2) .*client 1: error: \1",
        client=LOCAL_NOISE,
        settings={"method": "scaffold", "timeout": culprit.FOREVER},
    ),
}
