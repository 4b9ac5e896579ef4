"""A run on disk: what a reader can check, and what a resumed run continues from.

config.toml        everything that determines the result
metrics.jsonl      a line per round
weights.json       what the server knew (label counts, target) and its weights, whenever they changed
result.json        the selected rounds and their test metrics; its presence means the run is finished
model.safetensors  the selected parameters
tallies.json       what every client told about those parameters, where clients hold samples out
checkpoint/        the state after the last round
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fedpals.atomic import replacing
from fedpals.data.validation import validated
from fedpals.errors import InputError
from fedpals.run import Run
from fedpals.shift import Tally


class Record:
    """Reads and writes the folder of one run."""

    def __init__(self, run: Run, runs: Path) -> None:
        self.run = run
        self.path = runs / run.folder

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Return the record of the finished run in a folder, wherever it was moved to."""
        config = folder / "config.toml"
        if not config.is_file():
            raise InputError(
                f"{folder}: no run there (config.toml); give the folder of a run, runs/<task>/<method>/<seed>-<digest>"
            )
        try:
            run = validated(Run, tomllib.loads(config.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, InputError) as error:
            raise InputError(f"{config}: not the configuration of a run ({error})") from None
        record = cls(run, folder)
        record.path = folder
        if not record.finished:
            raise InputError(f"{folder}: the run is not finished; the command that started it continues it")
        return record

    @property
    def checkpoint(self) -> Path:
        """The state after the last recorded round."""
        return self.path / "checkpoint" / "state.safetensors"

    @property
    def model(self) -> Path:
        """The selected parameters."""
        return self.path / "model.safetensors"

    @property
    def finished(self) -> bool:
        """Whether the run has its result."""
        return (self.path / "result.json").is_file()

    @property
    def unfinished(self) -> bool:
        """Whether there is a state to continue from."""
        return not self.finished and self.checkpoint.is_file()

    def begin(self) -> None:
        """Write down the configuration, and start the metrics afresh."""
        self.write_text("config.toml", to_toml(self.run.model_dump(exclude_none=True)))
        self.write_text("metrics.jsonl", "")

    def append(self, line: Mapping[str, Any]) -> None:
        """Add the line of a round."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def weights(self) -> list[dict[str, Any]]:
        """Return the aggregation weights of the rounds in which they changed."""
        changed: list[dict[str, Any]] = []
        for line in self.metrics():
            if not changed or any(changed[-1][key] != line["weights"][key] for key in ("participants", "alpha")):
                changed.append({"round": line["round"], **line["weights"]})
        return changed

    def keep_rounds(self, rounds: int) -> None:
        """Drop lines of rounds that the checkpoint does not include: they will be computed again."""
        lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        self.write_text("metrics.jsonl", "".join(lines[:rounds]))

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of all rounds."""
        text = (self.path / "metrics.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def result(self) -> dict[str, Any]:
        """Return the result of a finished run."""
        return self.read_json("result.json")

    def tallies(self) -> list[Tally]:
        """Return what every client told about the saved model on samples that it held out."""
        path = self.path / "tallies.json"
        if not path.is_file():
            raise InputError(
                f"{self.path}: the clients of this run held nothing out to tell about the model; run it with "
                "--held-out 0.1"
            )
        try:
            return [Tally.from_json(tally) for tally in json.loads(path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: not the tallies of a run ({error}); delete the folder and run again") from None

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the folder."""
        return dict(json.loads((self.path / name).read_text(encoding="utf-8")))

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file into the folder."""
        self.write_text(name, json.dumps(value, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file into the folder, whole or not at all."""
        with replacing(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def to_toml(values: Mapping[str, str | float]) -> str:
    """Return flat values as TOML, sorted as given."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())


def _toml(value: str | float) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return json.dumps(value, ensure_ascii=False)
