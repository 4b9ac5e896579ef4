"""What engines write down of a run while it is under way: a line per round, and what the server knows.

metrics.jsonl  a line per round
weights.json   the server's view: label counts, target, and its weights, whenever they changed
about.json     method and number of rounds, where no configuration says so

Loads no torch, because records are read without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedpals.engine.metrics import Scores
from fedpals.engine.round import EssChoice, Outlier, PrivacySpent, Refusal
from fedpals.shift.evaluation import Correction

METRICS = "metrics.jsonl"
SERVER_VIEW = "weights.json"
ABOUT = "about.json"


@dataclass(frozen=True)
class RoundWeights:
    """Who took part in a round, and with which weights."""

    participants: tuple[int, ...]
    alpha: tuple[float, ...]


@dataclass(frozen=True)
class RoundLine:
    """What is recorded of a round."""

    round: int
    loss: float | None
    """None where a client does not tell it."""
    trained: int
    participants: int
    refused: tuple[Refusal, ...]
    raw: Scores
    prior: Scores
    weights: RoundWeights
    seconds: float
    calibrated: Scores | None = None
    """Where clients hold samples out."""
    choice: EssChoice | None = None
    """Where the ESS is chosen while training."""
    privacy: PrivacySpent | None = None
    """Where the models carry noise for differential privacy."""
    outliers: tuple[Outlier, ...] = ()
    """Updates that are far longer than the others."""

    def scores(self, correction: Correction) -> Scores | None:
        """Return what the model is worth with a correction; None where it was not evaluated."""
        by_correction = {
            Correction.RAW: self.raw,
            Correction.PRIOR: self.prior,
            Correction.CALIBRATED: self.calibrated,
        }
        return by_correction.get(correction)

    def to_json(self) -> dict[str, Any]:
        """Return the line as it is written."""
        plain = plain_values(self)
        evaluated: dict[str, Any] = {}
        for correction in Correction:
            if (parts := plain.pop(correction.value, None)) is not None:
                evaluated[correction.value] = {part: values for part, values in parts.items() if values is not None}
        order = ("weights", "choice", "privacy", "outliers", "seconds")
        last = {key: value for key in order if (value := plain.pop(key)) not in (None, [])}
        return {**plain, **evaluated, **last}


@dataclass(frozen=True)
class WeightsChange:
    """The weights from a round on."""

    round: int
    participants: tuple[int, ...]
    alpha: tuple[float, ...]


@dataclass(frozen=True)
class NoiseEffect:
    """How far the weights may be off because of noise on label counts, as the server itself can tell."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    moved: float
    distance: float
    """Squared, as the next."""
    worst_distance: float


@dataclass(frozen=True)
class ServerView:
    """What the server knew, and its weights whenever they changed."""

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    target: tuple[float, ...]
    rounds: tuple[WeightsChange, ...] = ()
    exact_target: tuple[float, ...] | None = None
    """Where the server took something else for T."""
    exact_counts: tuple[tuple[int, ...], ...] | None = None
    """Where clients added noise to their counts."""
    spread: NoiseEffect | None = None
    clients: tuple[str, ...] | None = None
    """Names of the clients, where they have some."""

    def client(self, number: int) -> str:
        """Return a client's name, or else its number in words."""
        return self.clients[number] if self.clients else f"client {number}"

    def to_json(self) -> dict[str, Any]:
        """Return it as it is written."""
        return {key: value for key, value in plain_values(self).items() if value is not None}


@dataclass(frozen=True)
class About:
    """What a run is, where it has no configuration: that of a deployment."""

    method: str
    """Title of the method."""
    name: str
    """Name of the method, as `fedpals run` has it."""
    rounds: int | None = None
    """How many there are to be, where that is known."""


def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what reads and writes a kind of value; built when first used, since most commands need none."""
    return _adapter(kind)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def plain_values(value: Any) -> dict[str, Any]:
    """Return a record's value as JSON has it; a tenth of the time of dataclasses.asdict, in every round."""
    return dict(adapter(type(value)).dump_python(value, mode="json"))


def complete_lines(text: str) -> list[RoundLine]:
    """Return the rounds of a file that is being written: up to a line that is not whole, or not that of a round."""
    lines: list[RoundLine] = []
    for line in text.splitlines(keepends=True):
        try:
            lines += [adapter(RoundLine).validate_json(line)] if line.endswith("\n") else []
        except ValidationError:
            break
    return lines


def read_or_none(path: Path, kind: Any) -> Any:
    """Return what stands in a file of a run that is under way; None where it is not there yet, or not whole."""
    try:
        return adapter(kind).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def file_states(folder: Path, names: Iterable[str]) -> tuple[object, ...]:
    """Return size and time of files; another value means that something was written."""
    states: list[tuple[int, ...] | None] = []
    for name in names:
        try:
            state = (folder / name).stat()
        except OSError:
            states.append(None)
        else:
            states.append((state.st_size, state.st_mtime_ns, state.st_ino))
    return tuple(states)


def to_line(line: RoundLine) -> str:
    """Return the line of a round as it is written."""
    return json.dumps(line.to_json(), allow_nan=False) + "\n"
