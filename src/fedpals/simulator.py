"""Rounds on one machine: broadcast, train, check, weigh, aggregate, evaluate, record.

Every draw has an address and every sum an order, so a run has the same bits with any number of
workers, and after an interruption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedpals import checkpoint, server
from fedpals.evaluation import Metrics, metrics
from fedpals.labels import Vector
from fedpals.record import Record
from fedpals.rng import generator
from fedpals.run import Run
from fedpals.server import DivergedError, Server
from fedpals.training import Update
from fedpals.weights import perturb
from fedpals.worker import Job, Pool, SerialPool, Worker

SELECTIONS = ("raw", "prior")
"""Each evaluation is made twice: with the model's own logits, and with the target prior correction."""


@dataclass(eq=False)
class Selected:
    """The round with the best validation accuracy so far, and what it is worth on the test set."""

    round: int = 0
    validation: float = -1.0
    test: dict[str, Any] = field(default_factory=dict)
    vector: Tensor | None = None
    shift: Vector | None = None


@dataclass(eq=False)
class State(server.State):
    """Everything a run carries from round to round."""

    selected: dict[str, Selected] = field(default_factory=lambda: {name: Selected() for name in SELECTIONS})

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Add the selected rounds to the server's state."""
        tensors, facts = super().parts()
        for name, s in self.selected.items():
            if s.vector is not None and s.shift is not None:
                tensors |= {f"selected/{name}/vector": s.vector, f"selected/{name}/shift": torch.from_numpy(s.shift)}
        selected = {
            name: {"round": s.round, "validation": s.validation, "test": s.test} for name, s in self.selected.items()
        }
        return tensors, {**facts, "selected": selected}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        """Put a state together from its parts."""
        state = super().of(tensors, facts)
        for name, told in facts["selected"].items():
            shift = tensors.get(f"selected/{name}/shift")
            vector = tensors.get(f"selected/{name}/vector")
            state.selected[name] = Selected(**told, vector=vector, shift=None if shift is None else shift.numpy())
        return state


Callback = Callable[[Mapping[str, Any]], None]
"""Called with the recorded line of every round: progress bars, TensorBoard, MLflow."""


class Simulation:
    """One run, round by round."""

    def __init__(self, worker: Worker, pool: Pool, state: State | None = None) -> None:
        self.worker, self.pool = worker, pool
        self.run, self.method, self.federation = worker.run, worker.method, worker.federation
        self.state = state or State(0, worker.model.vector.clone())
        target = self.federation.target
        if self.run.target_noise is not None:
            target = perturb(target, self.run.target_noise, generator(self.run.seed, "target noise"))
        self.server = Server(
            self.method,
            self.federation.counts,
            target,
            self.state,
            participation=self.run.participation,
            seed=self.run.seed,
        )
        self._held_out = {
            name: (worker.samples(indices)[0], self.federation.dataset.y[indices])
            for name, indices in (("validation", self.federation.validation), ("test", self.federation.test))
        }

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or validation has not improved for ``patience`` rounds."""
        patience = self.run.patience
        newest = max(s.round for s in self.state.selected.values())
        stale = patience is not None and self.state.round - newest >= patience
        return self.state.round >= self.run.rounds or stale

    def advance(self) -> dict[str, Any]:
        """Compute one round; return its line for the record. The state changes only if all went well."""
        started = time.perf_counter()
        number = self.state.round + 1
        try:
            done = self.server.advance(self.server.participants(number), self._train, self._losses)
        except DivergedError as error:
            raise DivergedError(
                f"{error}; try a smaller learning_rate than {self.run.learning_rate:g}. "
                f"The state after round {self.state.round} is on disk."
            ) from None
        return {
            "round": number,
            "loss": done.loss,
            "trained": done.trained,
            "participants": len(done.participants),
            "refused": done.refused,
            **self._evaluate(self.server.prior_shift),
            "weights": {"participants": done.participants.tolist(), "alpha": done.alpha.tolist()},
            "seconds": round(time.perf_counter() - started, 4),
        }

    def _train(self, clients: Sequence[int]) -> Iterable[Update]:
        s = self.state
        return self.pool.train([Job(s.round + 1, i, s.vector, s.server, s.clients.get(i)) for i in clients])

    def _losses(self, clients: Sequence[int]) -> Iterable[float]:
        return self.pool.losses([Job(self.state.round + 1, i, self.state.vector) for i in clients])

    def _evaluate(self, shift: Vector) -> dict[str, Any]:
        """Evaluate once; with T and α known the corrected metrics cost an addition."""
        model, state = self.worker.model, self.state
        model.load(state.vector)
        shifts = {"raw": np.zeros_like(shift), "prior": shift}
        logits = {name: model.logits(x).double().cpu().numpy() for name, (x, _) in self._held_out.items()}
        lines: dict[str, Any] = {}
        for name, added in shifts.items():
            told = {part: self._metrics(part, logits[part] + added) for part in self._held_out}
            lines[name] = {part: asdict(m) for part, m in told.items()}
            best = state.selected[name]
            if told["validation"].accuracy > best.validation:
                state.selected[name] = Selected(
                    state.round, told["validation"].accuracy, asdict(told["test"]), state.vector.clone(), added
                )
        return lines

    def _metrics(self, part: str, logits: Vector) -> Metrics:
        y = self._held_out[part][1]
        return metrics(y, logits.argmax(axis=1), len(self.federation.dataset.labels))


def simulate(
    run: Run,
    runs: Path,
    *,
    data_folder: Path | None = None,
    device: str = "cpu",
    resume: bool = True,
    checkpoint_every: int = 1,
    make_pool: Callable[[Worker], Pool] = SerialPool,
    callbacks: Sequence[Callback] = (),
    stop: Callable[[], bool] = lambda: False,
) -> Record:
    """Compute a run, or what is left of it, and return its record.

    A finished run is not computed again. ``stop`` is asked after every round; when it says so, the
    run ends with its state on disk.
    """
    record = Record(run, runs)
    if record.finished:
        return record
    worker = Worker(run, data_folder, device)
    state = State.load(record.checkpoint) if resume and record.unfinished else None
    if state is None:
        record.begin()
    else:
        record.keep_rounds(state.round)
    simulation = Simulation(worker, make_pool(worker), state)
    while not simulation.finished and not stop():
        line = simulation.advance()
        record.append(line)
        if simulation.state.round % checkpoint_every == 0 or simulation.finished:
            simulation.state.save(record.checkpoint)
        for callback in callbacks:
            callback(line)
    if simulation.finished:
        _finish(record, simulation)
    return record


def _finish(record: Record, simulation: Simulation) -> None:
    """Write weights, selected models and the result; the result comes last and marks the run finished."""
    state, federation = simulation.state, simulation.federation
    known = {
        "labels": federation.dataset.labels,
        "counts": federation.table.tolist(),
        "target": simulation.server.target.tolist(),
    }
    record.write_json("weights.json", {**known, "rounds": record.weights()})
    model = simulation.worker.model
    for name, best in state.selected.items():
        assert best.vector is not None
        model.load(best.vector)
        tensors = {key: value.clone() for key, value in model.network.state_dict().items()}
        if name == "prior":
            assert best.shift is not None
            tensors["prior_shift"] = torch.from_numpy(best.shift)
        path = record.model if name == "raw" else record.model.with_stem(f"model-{name}")
        checkpoint.save(path, tensors, {"round": best.round, "labels": federation.dataset.labels})
    coverage = federation.coverage
    record.write_json(
        "result.json",
        {
            "rounds": state.round,
            "selected": {
                name: {"round": s.round, "validation_accuracy": s.validation, "test": s.test}
                for name, s in state.selected.items()
            },
            "projection_distance": coverage.distance,
            "covered": coverage.covered,
            "clients": len(federation.clients),
            "samples": federation.counts.total,
            "validation_samples": len(federation.validation),
            "test_samples": len(federation.test),
            "parameters": model.trained,
        },
    )
