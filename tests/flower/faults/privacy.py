"""Combinations with differential privacy: those that would break its promise are refused, the others keep it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from fedpals.flower import strategy
from tests.flower.faults.content import UPDATES, scaled, spoiling
from tests.flower.faults.harness import Fault, Outcome, Verdict
from tests.flower.faults.scene import (
    CULPRIT,
    ROUNDS,
    TARGET,
    Result,
    Scene,
    ending,
    fedpals,
    initial,
    limited,
    same,
    six,
    warnings_logged,
)

PRIVATE: dict[str, Any] = {"clip_update": 0.5, "noise_multiplier": 0.1}


class _StoppedError(Exception):
    """The server is gone."""


def faults() -> Iterator[Fault]:
    """Yield all faults of privacy."""
    for name, wrap in WRAPPERS.items():
        yield Fault(f"privacy: Flower's {name}", (Verdict.ENDED,), partial(_refused, partial(_wrapped, wrap)))
    for name, (method, settings) in COMBINATIONS.items():
        yield Fault(f"privacy: {name}", (Verdict.ENDED,), partial(_refused, partial(_start, method, settings)))
    for name in ("NaN everywhere", "another shape"):
        scene = Scene(spoiling("train", UPDATES[name]), settings=PRIVATE)
        yield Fault(f"privacy: refused update, {name}", (Verdict.REFUSED,), partial(_bounded, scene))
    scene = Scene(spoiling("train", partial(scaled, factor=-50.0)), settings=PRIVATE)
    yield Fault("privacy: update × −50 is clipped", (Verdict.OK, Verdict.WARNED), partial(_bounded, scene))
    yield Fault("privacy: stops after round 1, starts again twice", (Verdict.OK,), _resume_twice)


def _refused(run: Callable[[], Result]) -> Outcome:
    result = ending(run)
    return result if isinstance(result, Outcome) else Outcome(Verdict.SILENT, "trained as if nothing were wrong")


def _wrapped(wrap: Callable[[Any], Any]) -> Result:
    arrays = ArrayRecord({key: array for key, array in initial().items() if key != "seen"})
    with warnings_logged() as lines, limited():
        return wrap(fedpals()).start(six(), arrays, ROUNDS, 2.0).arrays, lines


def _start(method: str, settings: dict[str, Any]) -> Result:
    with warnings_logged() as lines, limited():
        server = strategy(method, TARGET, fraction_evaluate=0.0, wait=2.0, **settings)
        return server.start(six(), initial(), ROUNDS, 2.0).arrays, lines


def _bounded(scene: Scene) -> Outcome:
    """Say whether a private model moved no further than clipping and noise explain, and whom the log names."""
    result = ending(scene.run)
    if isinstance(result, Outcome):
        return result
    arrays, lines = result
    start, floats = initial(), ("weight", "bias")
    moved = np.sqrt(sum(float(np.square(arrays[key].numpy() - start[key].numpy()).sum()) for key in floats))
    size = sum(start[key].numpy().size for key in floats)
    clip, noise = PRIVATE["clip_update"], PRIVATE["noise_multiplier"] * PRIVATE["clip_update"]
    if not moved <= ROUNDS * clip * 1.0001 + 6 * noise * np.sqrt(ROUNDS * size):
        return Outcome(Verdict.SILENT, f"the model moved by {moved:.3g}")
    named = [line for line in lines if f"client {CULPRIT} " in line]
    verdict = Verdict.REFUSED if named else Verdict.OK
    return Outcome(verdict, f"{named[0] if named else 'no warning'}; the model moved by {moved:.3g}")


def _resume_twice() -> Outcome:
    """Continue one checkpoint in two copies: noise that is drawn again would differ, and average out."""

    def evaluate(number: int, _: ArrayRecord) -> None:
        if number == 1:
            raise _StoppedError

    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folders = [Path(name) / part for part in ("a", "b")]
        path = folders[0] / "state.safetensors"
        with suppress(_StoppedError), warnings_logged(), limited():
            fedpals(checkpoint=path, **PRIVATE).start(six(), initial(), ROUNDS, 2.0, evaluate_fn=evaluate)
        shutil.copytree(folders[0], folders[1])
        models = [
            ending(Scene(settings={**PRIVATE, "checkpoint": folder / "state.safetensors"}).run) for folder in folders
        ]
        for model in models:
            if isinstance(model, Outcome):
                return model
        right = same(models[0][0], models[1][0])  # type: ignore[index]
        return Outcome(Verdict.OK if right else Verdict.SILENT, "the same bits" if right else "other noise")


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "server-side fixed clipping": lambda own: DifferentialPrivacyServerSideFixedClipping(own, 0.1, 0.5, 6),
    "server-side adaptive clipping": lambda own: DifferentialPrivacyServerSideAdaptiveClipping(own, 0.1, 6),
    "client-side fixed clipping": lambda own: DifferentialPrivacyClientSideFixedClipping(own, 0.1, 0.5, 6),
    "client-side adaptive clipping": lambda own: DifferentialPrivacyClientSideAdaptiveClipping(own, 0.1, 6),
}
COMBINATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "clipping without noise": ("fedpals", {"clip_update": 0.5}),
    "noise without clipping": ("fedpals", {"noise_multiplier": 1.0}),
    "δ of 1": ("fedpals", {**PRIVATE, "privacy_delta": 1.0}),
    "weights that depend on updates": ("fedpals", {**PRIVATE, "outliers": "refuse"}),
    "a median": ("fedpals", {**PRIVATE, "aggregation": "geometric_median"}),
    "control variates (SCAFFOLD)": ("scaffold", PRIVATE),
    "exact losses (AFL)": ("afl", PRIVATE),
    "ess chosen by clients": ("fedpals", {**PRIVATE, "ess": "auto"}),
}
