"""Servers that stop, meet another on their checkpoint, or cannot write it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from flwr.app import ArrayRecord

from fedpals.errors import InputError
from fedpals.flower import FedPALS
from tests.flower.faults.harness import Fault, Outcome, Verdict
from tests.flower.faults.scene import (
    ROUNDS,
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

NAME = "state.safetensors"


class _StoppedError(Exception):
    """The server is gone."""


def faults() -> Iterator[Fault]:
    """Yield all faults of servers and their checkpoints."""
    for stop in range(1, ROUNDS):
        yield Fault(
            f"server: stops after round {stop}, starts again", (Verdict.OK,), partial(_in_folder, _resume, stop)
        )
    for name, attempt in ATTEMPTS.items():
        yield Fault(f"checkpoint: {name}", (Verdict.ENDED,), partial(_in_folder, _refused, attempt))
    yield Fault("checkpoint: readable by others", (Verdict.OK,), partial(_in_folder, _mode))


def _in_folder(attempt: Callable[..., Outcome], *arguments: object) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        return attempt(Path(folder), *arguments)


def _train(path: Path, stop: int | None = None) -> Result:
    """Train with a checkpoint; stop in the middle if wanted."""

    def evaluate(number: int, _: ArrayRecord) -> None:
        if number == stop:
            raise _StoppedError

    with warnings_logged() as lines, limited():
        result = fedpals(checkpoint=path).start(six(), initial(), ROUNDS, 2.0, evaluate_fn=evaluate)
    return result.arrays, lines


def _resume(folder: Path, stop: int) -> Outcome:
    with suppress(_StoppedError):
        _train(folder / NAME, stop)
    result = ending(partial(_train, folder / NAME))
    if isinstance(result, Outcome):
        return result
    right = same(result[0], Scene().run()[0])
    return Outcome(Verdict.OK if right else Verdict.SILENT, "the same bits" if right else "another model")


def _refused(folder: Path, attempt: Callable[[Path], Result]) -> Outcome:
    result = ending(partial(attempt, folder))
    return result if isinstance(result, Outcome) else Outcome(Verdict.SILENT, "trained as if nothing were wrong")


def _mode(folder: Path) -> Outcome:
    _train(folder / NAME)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if path.suffix == ".safetensors"}
    private = all(mode == 0o600 for mode in modes.values())
    return Outcome(
        Verdict.OK if private else Verdict.SILENT, ", ".join(f"{name} {mode:o}" for name, mode in modes.items())
    )


def _second_server(folder: Path) -> Result:
    """While one server trains, another begins with the same file."""
    path, results = folder / NAME, list[Result]()

    def evaluate(number: int, _: ArrayRecord) -> None:
        if number == 1:
            results.append(_train(path))

    with limited():
        fedpals(checkpoint=path).start(six(), initial(), ROUNDS, 2.0, evaluate_fn=evaluate)
    return results[0]


def _below_a_file(folder: Path) -> Result:
    (folder / "file").write_text("")
    return _without_training(folder / "file" / NAME)


def _a_folder(folder: Path) -> Result:
    (folder / NAME).mkdir()
    return _without_training(folder / NAME)


def _without_training(path: Path) -> Result:
    """Start a server whose state cannot be written: it must say so before any client trains."""
    grid = six()
    try:
        with warnings_logged() as lines, limited():
            arrays = fedpals(checkpoint=path).start(grid, initial(), ROUNDS, 2.0).arrays
    except InputError:
        if grid.kinds("train"):
            raise RuntimeError("noticed only after clients had trained") from None
        raise
    return arrays, lines


def _damaged(damage: Callable[[bytes], bytes], folder: Path) -> Result:
    _train(folder / NAME)
    for path in folder.glob("*.safetensors"):
        path.write_bytes(damage(path.read_bytes()))
    return _train(folder / NAME)


def _another_target(folder: Path) -> Result:
    _train(folder / NAME)
    with warnings_logged() as lines, limited():
        strategy = FedPALS([0.1, 0.1, 0.8], ess=0.6, fraction_evaluate=0.0, wait=2.0, checkpoint=folder / NAME)
        return strategy.start(six(), initial(), ROUNDS, 2.0).arrays, lines


def _another_model(folder: Path) -> Result:
    _train(folder / NAME)
    arrays = initial()
    del arrays["bias"]
    with warnings_logged() as lines, limited():
        return fedpals(checkpoint=folder / NAME).start(six(), arrays, ROUNDS, 2.0).arrays, lines


ATTEMPTS: dict[str, Callable[[Path], Result]] = {
    "two servers at once": _second_server,
    "below a file": _below_a_file,
    "a folder": _a_folder,
    "empty": partial(_damaged, lambda _: b""),
    "cut off": partial(_damaged, lambda data: data[: len(data) // 2]),
    "a flipped bit": partial(_damaged, lambda data: data[:-3] + bytes([data[-3] ^ 16]) + data[-2:]),
    "nonsense": partial(_damaged, lambda _: b"nonsense" * 100),
    "of another target": _another_target,
    "of another model": _another_model,
}
