"""The peer Flower with Ray: its simulation with one actor, by its own command."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from fedpals.simulation.run import Run
from simulation_rounds.flower_simulation import run_simulation
from simulation_rounds.timing import RoundPair

_APPS = "simulation_rounds.peers.flower_apps"
_VARIABLE = "FEDPALS_BENCHMARK"
"""Environment variable that tells Flower's processes what to compute."""


@dataclass(frozen=True)
class FlowerSettings:
    """What Flower's processes compute, and where its server notes times."""

    run: str
    """The keys of the run, as JSON."""
    output: str
    interleave: bool
    """Whether one of our rounds follows each of theirs."""

    @classmethod
    def from_environment(cls) -> FlowerSettings:
        """Return the settings of this process, which is one of Flower's."""
        return cls(**json.loads(os.environ[_VARIABLE]))


@dataclass(frozen=True)
class FlowerTimes:
    """How long Flower took."""

    seconds: float
    """In all, start-up included."""
    rounds: tuple[RoundPair, ...]


def simulate_with_flower(run: Run, *, interleave: bool, again: bool = False) -> FlowerTimes:
    """Run Flower's simulation of a run; one that this process has seen is not repeated, unless ``again``."""
    if again:
        _simulate.cache_clear()
    return _simulate(json.dumps(run.keys()), interleave=interleave)


@lru_cache
def _simulate(keys: str, *, interleave: bool) -> FlowerTimes:
    clients = (Run.of(json.loads(keys)).data.clients or 10) - 1
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rounds.json"
        settings = FlowerSettings(keys, str(output), interleave)
        seconds = run_simulation(
            _APPS,
            output,
            {"num-supernodes": clients, "client-resources-num-cpus": 1, "init-args-num-cpus": 1},
            {_VARIABLE: json.dumps(asdict(settings))},
        )
        rows = json.loads(output.read_text())
    return FlowerTimes(seconds, tuple(RoundPair(tuple(row["theirs"]), tuple(row["ours"])) for row in rows))


def flower_rounds(run: Run) -> list[RoundPair]:
    """Measure Flower's rounds."""
    return list(simulate_with_flower(run, interleave=True).rounds)
