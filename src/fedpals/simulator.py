"""Rounds on one machine: broadcast, train, check, weigh, aggregate, evaluate, record.

Every draw has an address and every sum an order, so a run has the same bits with any number of
workers, and after an interruption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpals import checkpoint
from fedpals.data import Indices
from fedpals.errors import FedpalsError
from fedpals.evaluation import Metrics, metrics, prior_shift
from fedpals.labels import Vector
from fedpals.record import Record
from fedpals.rng import generator
from fedpals.run import Run
from fedpals.training import Update
from fedpals.worker import Job, Pool, SerialPool, Worker

SELECTIONS = ("raw", "prior")
"""Each evaluation is made twice: with the model's own logits, and with the target prior correction."""


class DivergedError(FedpalsError, ArithmeticError):
    """No client returned an update that can be used."""


@dataclass(eq=False)
class Selected:
    """The round with the best validation accuracy so far, and what it is worth on the test set."""

    round: int = 0
    validation: float = -1.0
    test: dict[str, Any] = field(default_factory=dict)
    vector: Tensor | None = None
    shift: Vector | None = None


@dataclass(eq=False)
class State:
    """Everything a run carries from round to round."""

    round: int
    vector: Tensor
    server: Tensor | None = None
    """The rule's vector of the server."""
    clients: dict[int, Tensor] = field(default_factory=dict)
    """The rule's vectors of clients."""
    weighting: Vector | None = None
    mixes: list[Vector] = field(default_factory=list)
    """p_α of the last rounds, as many as it takes every client to have its turn."""
    selected: dict[str, Selected] = field(default_factory=lambda: {name: Selected() for name in SELECTIONS})

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all."""
        tensors: dict[str, Tensor] = {"vector": self.vector}
        tensors |= {f"client/{i}": t for i, t in self.clients.items()}
        optional: dict[str, Tensor | Vector | None] = {"server": self.server, "weighting": self.weighting}
        optional |= {f"selected/{name}/vector": s.vector for name, s in self.selected.items()}
        optional |= {f"selected/{name}/shift": s.shift for name, s in self.selected.items()}
        optional["mixes"] = np.array(self.mixes) if self.mixes else None
        for name, value in optional.items():
            if value is not None:
                tensors[name] = value if isinstance(value, Tensor) else torch.from_numpy(value)
        facts = {
            "round": self.round,
            "selected": {
                name: {"round": s.round, "validation": s.validation, "test": s.test}
                for name, s in self.selected.items()
            },
        }
        checkpoint.save(path, tensors, facts)

    @classmethod
    def load(cls, path: Path) -> State:
        """Read a state that `save` wrote."""
        tensors, facts = checkpoint.load(path)

        def array(name: str) -> Vector | None:
            return tensors[name].numpy() if name in tensors else None

        return cls(
            round=facts["round"],
            vector=tensors["vector"],
            server=tensors.get("server"),
            clients={int(name[7:]): t for name, t in tensors.items() if name.startswith("client/")},
            weighting=array("weighting"),
            mixes=list(tensors["mixes"].numpy()) if "mixes" in tensors else [],
            selected={
                name: Selected(
                    **told, vector=tensors.get(f"selected/{name}/vector"), shift=array(f"selected/{name}/shift")
                )
                for name, told in facts["selected"].items()
            },
        )


Callback = Callable[[Mapping[str, Any]], None]
"""Called with the recorded line of every round: progress bars, TensorBoard, MLflow."""


class Simulation:
    """One run, round by round."""

    def __init__(self, worker: Worker, pool: Pool, state: State | None = None) -> None:
        self.worker, self.pool = worker, pool
        self.run, self.method, self.federation = worker.run, worker.method, worker.federation
        self.counts, self.target = self.federation.counts, self.federation.target
        self.state = state or State(0, worker.model.vector.clone(), weighting=self.method.weighting.start(self.counts))
        self._held_out = {
            name: (worker.samples(indices)[0], self.federation.dataset.y[indices])
            for name, indices in (("validation", self.federation.validation), ("test", self.federation.test))
        }
        self._last_weights: tuple[Indices, Vector] | None = None

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
        participants = self._participants(number)
        alpha, participants, updates, refused = self._train(number, participants)
        trained = [i for i in participants.tolist() if i in updates]
        vector = self._aggregate(dict(zip(participants.tolist(), alpha.tolist(), strict=True)), updates)
        server, clients = self._rule_state(updates)
        state = self.state
        if self.method.weighting.needs_losses:
            losses = np.array(list(self.pool.losses([Job(number, i, state.vector) for i in participants.tolist()])))
            state.weighting = self.method.weighting.learn(state.weighting, participants, losses)
        state.round, state.vector, state.server = number, vector, server
        state.clients |= clients
        mix = self._mix(participants, alpha)
        evaluated = self._evaluate(mix)
        loss = float(sum(a * updates[i].loss for i, a in zip(participants.tolist(), alpha, strict=True) if a > 0))
        return {
            "round": number,
            "loss": loss,
            "trained": len(trained),
            "participants": len(participants),
            "refused": refused,
            **evaluated,
            "weights": {"participants": participants.tolist(), "alpha": alpha.tolist()},
            "seconds": round(time.perf_counter() - started, 4),
        }

    def _participants(self, number: int) -> Indices:
        """Draw the clients of a round, in ascending order; clients without samples have nothing to say."""
        able = np.flatnonzero(self.counts.sizes).astype(np.int64)
        if self.run.participation >= 1.0:
            return able
        count = max(1, round(self.run.participation * able.size))
        rng = generator(self.run.seed, "participants", number)
        return np.sort(rng.choice(able, count, replace=False))

    def _train(
        self, number: int, participants: Indices
    ) -> tuple[Vector, Indices, dict[int, Update], list[dict[str, Any]]]:
        """Train every participant that has weight; refuse what cannot be used and weigh the rest afresh."""
        updates: dict[int, Update] = {}
        refused: list[dict[str, Any]] = []
        while participants.size:
            alpha = self._weigh(participants)
            missing = [i for i, a in zip(participants.tolist(), alpha, strict=True) if a > 0 and i not in updates]
            if not missing:
                return alpha, participants, updates, refused
            state = self.state
            jobs = [Job(number, i, state.vector, state.server, state.clients.get(i)) for i in missing]
            for i, update in zip(missing, self.pool.train(jobs), strict=True):
                if reason := unusable(update, state.vector):
                    refused.append({"client": i, "reason": reason})
                    participants = participants[participants != i]
                else:
                    updates[i] = update
        named = "; ".join(f"client {r['client']}: {r['reason']}" for r in refused[:3])
        raise DivergedError(
            f"round {number}: no client returned a usable update ({named}); try a smaller learning_rate "
            f"than {self.run.learning_rate:g}. The state after round {self.state.round} is on disk."
        )

    def _weigh(self, participants: Indices) -> Vector:
        weighting = self.method.weighting
        last = self._last_weights
        if last is not None and not weighting.needs_losses and np.array_equal(last[0], participants):
            return last[1]
        alpha = weighting.weigh(self.counts, self.target, participants, self.state.weighting)
        self._last_weights = participants, alpha
        return alpha

    def _aggregate(self, alpha: Mapping[int, float], updates: Mapping[int, Update]) -> Tensor:
        """Σ α_i w_i in the order of the clients, in double precision; then the rule's server step."""
        total = torch.zeros_like(self.state.vector, dtype=torch.float64)
        for i in sorted(alpha):
            if alpha[i] > 0:
                total.add_(updates[i].vector.double(), alpha=alpha[i])
        return self.method.rule.step(self.state.vector, total.float())

    def _rule_state(self, updates: Mapping[int, Update]) -> tuple[Tensor | None, dict[int, Tensor]]:
        """Renew the rule's vectors; the server's moves by the participants' shares of the whole population."""
        new = {i: update.state for i, update in sorted(updates.items()) if update.state is not None}
        if not new:
            return self.state.server, {}
        everyone = np.flatnonzero(self.counts.sizes).astype(np.int64)
        share = dict(zip(everyone.tolist(), self._weigh(everyone).tolist(), strict=True))
        changes = []
        for i, vector in new.items():
            old = self.state.clients.get(i)
            changes.append((share[i], vector if old is None else vector - old))
        like = next(iter(new.values()))
        return self.method.rule.server_state(self.state.server, changes, like), new

    def _mix(self, participants: Indices, alpha: Vector) -> Vector:
        """p_α over the last rounds, until every client has had a turn on average."""
        marginals = self.counts.subset(participants).marginals
        self.state.mixes.append(np.asarray(alpha @ marginals))
        del self.state.mixes[: -max(1, round(1 / self.run.participation))]
        return np.asarray(np.mean(self.state.mixes, axis=0))

    def _evaluate(self, mix: Vector) -> dict[str, Any]:
        """Evaluate once; with T and α known the corrected metrics cost an addition."""
        model, state = self.worker.model, self.state
        model.load(state.vector)
        shift = prior_shift(self.target, mix, self.counts.total)
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


def unusable(update: Update, like: Tensor) -> str | None:
    """Return why an update cannot be aggregated, or None."""
    if update.vector.shape != like.shape:
        return f"{tuple(update.vector.shape)} parameters instead of {tuple(like.shape)}"
    wrong = int((~torch.isfinite(update.vector)).sum())
    return f"{wrong} of {like.numel()} parameters are NaN or infinite" if wrong else None


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
    record.write_json("weights.json", {"target": federation.target.tolist(), "rounds": record.weights()})
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
