"""Our rounds, one at a time, and our command."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from fedpals.config import to_toml
from fedpals.engine.metrics import Scores
from fedpals.shift.evaluation import Correction
from fedpals.simulation.pools import SerialPool
from fedpals.simulation.rounds import Simulation
from fedpals.simulation.run import Run
from fedpals.simulation.worker import Worker
from simulation_rounds.processes import run_command
from simulation_rounds.timing import Clock, Timing


class TimedSimulation(Simulation):
    """Our simulator, whose evaluation is timed on its own."""

    clock: Clock
    evaluation_seconds = 0.0

    def _evaluate(self) -> dict[Correction, Scores]:
        start = self.clock()
        scores = super()._evaluate()
        self.evaluation_seconds = self.clock() - start
        return scores


class Ours:
    """Our rounds, one at a time."""

    def __init__(self, run: Run, clock: Clock = time.process_time) -> None:
        worker = Worker(run)
        self.clock = clock
        self.simulation = TimedSimulation(worker, SerialPool(worker))
        self.simulation.clock = clock
        self.trained = 0
        """How many clients were trained in the last round."""

    def round(self) -> Timing:
        """Compute the next round."""
        start = self.clock()
        self.trained = self.simulation.advance().trained
        whole = self.clock() - start
        evaluation = self.simulation.evaluation_seconds
        return whole - evaluation, evaluation


def command_seconds(run: Run, *, workers: int = 1, seeds: int = 1) -> float:
    """Return the seconds that `fedpals run` takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.toml").write_text(to_toml(run.keys()))
        command = [
            sys.executable, "-c", "from fedpals.cli import main; main()", "run", "run.toml", "--out", "runs",
            "--workers", str(workers), "--seeds", str(seeds),
        ]  # fmt: skip
        return run_command(command, os.environ, folder, folder / "log.txt")
