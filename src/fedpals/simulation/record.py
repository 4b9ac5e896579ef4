"""A run on disk: the one module that knows every file of a run folder, and what stands in it.

config.toml        everything that determines the result
metrics.jsonl      a line per round
weights.json       the server's view: label counts, target, and its weights, whenever they changed
result.json        the selected rounds and their test metrics; its presence means the run is finished
model.safetensors  the selected parameters; model-prior, model-calibrated, … with their correction
tallies.json       what every client says about those parameters, where clients hold samples out
checkpoint/        the state after the last round

Reading and writing loads no torch, so that results can be looked at without it.
"""

from __future__ import annotations

import json
import math
import os
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from fedpals.config import to_toml
from fedpals.engine.metrics import HeldOutMetrics, Metrics
from fedpals.engine.recorded import (
    METRICS,
    SERVER_VIEW,
    NoiseEffect,
    RoundLine,
    RoundWeights,
    ServerView,
    WeightsChange,
    adapter,
    complete_lines,
    file_states,
    plain_values,
    read_or_none,
    to_line,
)
from fedpals.errors import InputError
from fedpals.files import replacing, writing
from fedpals.shift import Tally
from fedpals.shift.evaluation import Correction, Evaluation
from fedpals.simulation.run import Run

_CONFIG = "config.toml"
_RESULT = "result.json"
_TALLIES = "tallies.json"
_SYNC_SECONDS = 1.0
"""Between lines that are forced to the disk."""
_REMEDY = "the command that started the run computes it again"

Value = TypeVar("Value")

__all__ = [
    "NoiseEffect",
    "Record",
    "Result",
    "RoundLine",
    "RoundWeights",
    "SelectedRound",
    "ServerView",
    "WeightsChange",
]


@dataclass(frozen=True)
class SelectedRound:
    """A round that some rule selected, and what it is worth."""

    round: int
    score: float
    """What it was selected by."""
    test: Metrics | None = None
    """On test data of the target, where there are any."""
    clients: HeldOutMetrics | None = None
    """As the samples that clients held out estimate it, where they did."""


@dataclass(frozen=True)
class Result:
    """The end of a run."""

    rounds: int
    selected: Mapping[Evaluation, SelectedRound]
    projection_distance: float
    """d(T, S) of the paper, a squared distance."""
    covered: bool
    clients: int
    samples: float
    validation_samples: int = 0
    test_samples: int = 0
    parameters: int = 0
    diverged: bool = False
    """Whether training ended early for that reason; the selected rounds are those before."""

    def to_json(self) -> dict[str, Any]:
        """Return it as it is written."""
        plain = plain_values(self)
        if not self.diverged:
            del plain["diverged"]
        selected = {e: {k: v for k, v in s.items() if v is not None} for e, s in plain["selected"].items()}
        return {**plain, "selected": selected}


def _read_config(path: Path) -> Run:
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
        run = Run.of(values)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, InputError) as error:
        raise InputError(f"{path}: not the configuration of a run ({error}); {_REMEDY}") from None
    if "seed" not in values or not text.endswith("\n"):  # which is the last of them
        raise InputError(f"{path}: the configuration of a run without its end; {_REMEDY}")
    return run


class Record:
    """Reads and writes the folder of one run."""

    def __init__(self, run: Run, runs: Path) -> None:
        self.run = run
        self.path = runs / run.folder
        self._synced = -math.inf

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Return the record of the finished run in a folder, wherever it was moved to."""
        if not cls.is_run(folder):
            raise InputError(
                f"{folder}: no run there ({_CONFIG}); give the folder of a run, runs/<task>/<method>/<seed>-<digest>"
            )
        record = cls(_read_config(folder / _CONFIG), folder)
        record.path = folder
        if not (folder / _RESULT).is_file():
            raise InputError(f"{folder}: the run is not finished; the command that started it continues it")
        if (damage := record.damage()) is not None:
            raise InputError(damage)
        return record

    @staticmethod
    def is_run(folder: Path) -> bool:
        """Return whether a folder is that of a run, finished or not."""
        return (folder / _CONFIG).is_file()

    @classmethod
    def all_below(cls, folder: Path) -> list[Self]:
        """Return the records of all finished runs below a folder."""
        return [cls.at(file.parent) for file in sorted(folder.rglob(_RESULT))]

    @classmethod
    def begun(cls, folder: Path) -> Self | None:
        """Return the record of a run that may be under way; None where its configuration is not whole."""
        try:
            record = cls(_read_config(folder / _CONFIG), folder)
        except InputError:
            return None
        record.path = folder
        return record

    @staticmethod
    def states(folder: Path) -> dict[Path, tuple[object, ...]]:
        """Return the folders of all runs below a folder, and what changes whenever something is written there."""
        names = (_CONFIG, METRICS, SERVER_VIEW, _RESULT)
        return {file.parent: file_states(file.parent, names) for file in sorted(folder.rglob(_CONFIG))}

    @property
    def checkpoint(self) -> Path:
        """The state after the last recorded round."""
        return self.path / "checkpoint" / "state.safetensors"

    def model(self, correction: Correction = Correction.RAW) -> Path:
        """Return the file of the parameters to be used with a correction."""
        return self.path / ("model.safetensors" if correction is Correction.RAW else f"model-{correction}.safetensors")

    @property
    def finished(self) -> bool:
        """Whether the run has its result; one that is damaged is none."""
        try:
            self.result()
        except InputError:
            return False
        return True

    @property
    def intact(self) -> bool:
        """Whether the run has its result, and all that is to go with it."""
        return self.finished and self.damage() is None

    @property
    def unfinished(self) -> bool:
        """Whether there is a state to continue from."""
        return not self.finished and self.checkpoint.is_file()

    def damage(self) -> str | None:
        """Return what is wrong with the files of a run that has a result; None where they agree, or it has none."""
        if not (self.path / _RESULT).is_file():
            return None
        try:
            if _read_config(self.path / _CONFIG).digest != self.run.digest:
                return f"{self.path / _CONFIG}: the configuration of another run; {_REMEDY}"
            rounds, lines = self.result().rounds, self.lines()
            self.server_view()
            if self.run.knowledge.held_out is not None:
                self.tallies()
        except InputError as error:
            return str(error)
        if [line.round for line in lines] != list(range(1, rounds + 1)):
            return f"{self.path / METRICS}: {len(lines)} lines, which are not those of {rounds} rounds; {_REMEDY}"
        return None

    def begin(self) -> None:
        """Write down the configuration, and start the metrics afresh, without what stood there before."""
        for path in (self.path / _RESULT, self.checkpoint):
            path.unlink(missing_ok=True)
        self._write_text(_CONFIG, to_toml(self.run.keys()))
        self._write_text(METRICS, "")

    def append(self, line: RoundLine) -> None:
        """Add the line of a round; where rounds take long, it is on the disk before a checkpoint includes the round.

        A power failure may otherwise cost the lines of the last seconds, and then the run starts over.
        """
        path = self.path / METRICS
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(to_line(line))
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                file.flush()
                os.fsync(file.fileno())
                self._synced = time.monotonic()

    def continue_after(self, rounds: int) -> None:
        """Drop the result and lines of later rounds, which will be computed again.

        Raises
        ------
        InputError
            Where the lines before are not those of all rounds up to ``rounds``.
        """
        path = self.path / METRICS
        kept = self._read_text(path).splitlines(keepends=True)[:rounds]
        numbers = [self._parsed(path, RoundLine, line).round for line in kept]
        if numbers != list(range(1, rounds + 1)):
            raise InputError(f"{path}: {len(kept)} lines, which are not those of the {rounds} rounds of the checkpoint")
        (self.path / _RESULT).unlink(missing_ok=True)
        self._write_text(_CONFIG, to_toml(self.run.keys()))
        self._write_text(METRICS, "".join(kept))

    def lines(self) -> list[RoundLine]:
        """Return the lines of all rounds."""
        path = self.path / METRICS
        return [self._parsed(path, RoundLine, line) for line in self._read_text(path).splitlines()]

    def lines_so_far(self) -> list[RoundLine]:
        """Return the lines of a run that may be under way: those that are whole."""
        path = self.path / METRICS
        return complete_lines(self._read_text(path)) if path.is_file() else []

    def view_so_far(self) -> ServerView | None:
        """Return what the server of a run that may be under way knows; None before it knows it."""
        view: ServerView | None = read_or_none(self.path / SERVER_VIEW, ServerView)
        return view

    def weights(self) -> tuple[WeightsChange, ...]:
        """Return the aggregation weights of the rounds in which they changed."""
        changes: list[WeightsChange] = []
        for line in self.lines():
            now = line.weights
            if not changes or (changes[-1].participants, changes[-1].alpha) != (now.participants, now.alpha):
                changes.append(WeightsChange(line.round, now.participants, now.alpha))
        return tuple(changes)

    def result(self) -> Result:
        """Return the result of a finished run."""
        path = self.path / _RESULT
        return self._parsed(path, Result, self._read_text(path))

    def write_result(self, result: Result) -> None:
        """Mark the run as finished."""
        self._write_json(_RESULT, result.to_json())

    def server_view(self) -> ServerView:
        """Return what the server of a finished run knew, and its weights."""
        path = self.path / SERVER_VIEW
        return self._parsed(path, ServerView, self._read_text(path))

    def write_server_view(self, view: ServerView) -> None:
        """Write down what the server knew."""
        self._write_json(SERVER_VIEW, view.to_json())

    def tallies(self) -> list[Tally]:
        """Return what every client says about the saved model on samples that it held out."""
        path = self.path / _TALLIES
        if not path.is_file():
            raise InputError(
                f"{self.path}: the clients of this run held nothing out to tell about the model; run it with "
                "--held-out 0.1"
            )
        try:
            return [Tally.from_json(tally) for tally in json.loads(path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: the record is damaged ({error}); {_REMEDY}") from None

    def write_tallies(self, tallies: Sequence[Tally]) -> None:
        """Write down what clients say about the saved model."""
        self._write_json(_TALLIES, [tally.to_json() for tally in tallies])

    def pack(self) -> dict[str, bytes]:
        """Return all files by name, to be sent to another machine; not those with a dot, which are temporary."""
        files = [path for path in self.path.rglob("*") if path.is_file() and not path.name.startswith(".")]
        return {path.relative_to(self.path).as_posix(): path.read_bytes() for path in files}

    def unpack(self, files: Mapping[str, bytes]) -> None:
        """Write files, each whole or not at all: the checkpoint late, and the result, which ends a run, last."""
        for name in sorted(files, key=lambda name: (name == _RESULT, name.startswith("checkpoint"))):
            with replacing(self.path / name) as temporary:
                temporary.write_bytes(files[name])

    def _parsed(self, path: Path, kind: type[Value], text: str) -> Value:
        try:
            return adapter(kind).validate_json(text)  # type: ignore[no-any-return]
        except ValidationError as error:
            (first, *_) = error.errors(include_url=False)
            where = ".".join(map(str, first["loc"]))
            raise InputError(
                f"{path}: the record is damaged ({where + ': ' if where else ''}{first['msg']}); {_REMEDY}"
            ) from None

    def _read_text(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: the record is damaged ({error}); {_REMEDY}") from None

    def _write_json(self, name: str, value: Any) -> None:
        self._write_text(name, json.dumps(value, allow_nan=False) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        with replacing(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
