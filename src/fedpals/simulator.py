"""Rounds on one machine: broadcast, train, check, weigh, aggregate, evaluate, record.

Every draw has an address and every sum an order, so a run has the same bits with any number of
workers, and after an interruption.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from fedpals import checkpoint, server
from fedpals.data import Federation, Indices
from fedpals.errors import InputError
from fedpals.evaluation import Metrics, metrics
from fedpals.labels import LabelCounts, Vector
from fedpals.methods.pals import Pals
from fedpals.privacy import noisy_counts, repair, spread
from fedpals.record import Record
from fedpals.rng import generator
from fedpals.run import Run
from fedpals.server import DivergedError, Server
from fedpals.shift.calibration import Calibration, calibrate
from fedpals.shift.estimate import NotConvergedError, bbse, em
from fedpals.shift.gaussian import WIDEST, FeatureSums, Head, gaussian_head
from fedpals.shift.joining import HeldOutFeatures, recommended
from fedpals.shift.risk import target_accuracy
from fedpals.shift.tally import Tally
from fedpals.training import FlatModel, Update
from fedpals.weights import perturb
from fedpals.worker import Job, Pool, SerialPool, Worker


@dataclass(eq=False)
class Selected:
    """The best round so far by some rule, and what it is worth on the test set.

    The rules: ``validation``, accuracy on the target's validation set; where clients hold samples out also
    ``estimate``, the target accuracy that those samples estimate, and ``pooled``, plain accuracy on them.
    """

    round: int = 0
    score: float = -1.0
    test: dict[str, Any] = field(default_factory=dict)
    vector: Tensor | None = None
    """Kept for one rule only, that of the saved models."""
    correction: Calibration | None = None


@dataclass(eq=False)
class State(server.State):
    """Everything a run carries from round to round."""

    selected: dict[str, Selected] = field(default_factory=dict)
    """By correction ("raw", "prior", "calibrated"); selections by other rules than validation as "raw/estimate"."""
    target: Vector | None = None
    """T as the server estimates it, where it does not know it."""

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Add the selected rounds to the server's state."""
        tensors, facts = super().parts()
        selected = {}
        for name, s in self.selected.items():
            selected[name] = {"round": s.round, "score": s.score, "test": s.test}
            if s.vector is not None and s.correction is not None:
                selected[name]["temperature"] = s.correction.temperature
                shift = torch.from_numpy(s.correction.shift)
                tensors |= {f"selected/{name}/vector": s.vector, f"selected/{name}/shift": shift}
        if self.target is not None:
            tensors["target"] = torch.from_numpy(self.target)
        return tensors, {**facts, "selected": selected}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        """Put a state together from its parts."""
        state = super().of(tensors, facts)
        state.target = tensors["target"].numpy() if "target" in tensors else None
        for name, told in facts["selected"].items():
            best = state.selected[name] = Selected(told["round"], told["score"], told["test"])
            if "temperature" in told:
                best.vector = tensors[f"selected/{name}/vector"]
                best.correction = Calibration(told["temperature"], tensors[f"selected/{name}/shift"].numpy())
        return state


@dataclass(frozen=True, eq=False)
class Last:
    """What follows from the last model without any selection of rounds."""

    head: Head | None
    recommended: Head | Calibration | None
    """What to use it with, where clients hold samples out."""
    worth: Mapping[str, dict[str, Any]]
    """By "gaussian", "gaussian/estimate" and "recommended"."""


Callback = Callable[[Mapping[str, Any]], None]
"""Called with the recorded line of every round: progress bars, TensorBoard, MLflow."""


class Simulation:
    """One run, round by round."""

    def __init__(self, worker: Worker, pool: Pool, state: State | None = None) -> None:
        self.worker, self.pool = worker, pool
        self.run, self.method, self.federation = worker.run, worker.method, worker.federation
        self.state = state or State(0, worker.model.vector.clone())
        self.server = Server(
            self.method,
            *known(self.run, self.federation),
            self.state,
            participation=self.run.participation,
            momentum=self.run.server_momentum,
            averaging=self.run.averaging,
            seed=self.run.seed,
        )
        if self.state.target is not None:
            self.server.aim(self.state.target)
        self._able = np.flatnonzero(self.federation.counts.sizes)
        evaluated = {"validation": self.federation.validation, "test": self.federation.test}
        self.saved_by = "validation"
        """The rule that selects the saved models: without a target sample where clients hold samples out."""
        if self.federation.held_out:
            evaluated["clients"] = np.concatenate(self.federation.held_out)
            if not evaluated["clients"].size:
                raise InputError(
                    f"held_out is {self.run.held_out:g}: no client has so many samples of a label that one of them is "
                    "held out; give a larger share"
                )
            self.saved_by = "estimate"
        self._samples = {
            part: (worker.samples(indices)[0], self.federation.dataset.y[indices])
            for part, indices in evaluated.items()
        }

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or none of the saved models has improved for ``patience`` rounds."""
        patience = self.run.patience
        newest = max((s.round for s in self.state.selected.values() if s.vector is not None), default=0)
        stale = patience is not None and self.state.round - newest >= patience
        return self.state.round >= self.run.rounds or stale

    def advance(self) -> dict[str, Any]:
        """Compute one round; return its line for the record. The state changes only if all went well."""
        started = time.perf_counter()
        number = self.state.round + 1
        try:
            done = self.server.advance(self.server.participants(number, self._able), self._train, self._losses)
        except DivergedError as error:
            raise DivergedError(f"{error}; try a smaller learning_rate than {self.run.learning_rate:g}") from None
        return {
            "round": number,
            "loss": done.loss,
            "trained": done.trained,
            "participants": len(done.participants),
            "refused": done.refused,
            **self._evaluate(),
            "weights": {"participants": done.participants.tolist(), "alpha": done.alpha.tolist()},
            "seconds": round(time.perf_counter() - started, 4),
        }

    def _train(self, clients: Sequence[int]) -> Iterable[Update | str]:
        """Train clients; one whose loss has overflowed is about to diverge, and not used."""
        s = self.state
        jobs = [Job(s.round + 1, i, s.vector, s.server, s.clients.get(i)) for i in clients]
        return (u if math.isfinite(u.loss) else f"its loss is {u.loss}" for u in self.pool.train(jobs))

    def _losses(self, clients: Sequence[int]) -> Iterable[float]:
        return self.pool.losses([Job(self.state.round + 1, i, self.state.vector) for i in clients])

    def logits(self, vector: Tensor) -> dict[str, Vector]:
        """Return the outputs of the parameters ``vector`` on every set to evaluate with, (n, K) each."""
        self.worker.model.load(vector)
        return {part: self.worker.model.logits(x).double().cpu().numpy() for part, (x, _) in self._samples.items()}

    def last(self) -> Last:
        """Return what the last model is worth with a Gaussian head, where it can have one, and as it is best used."""
        head, found = self._gaussian_head(), {}
        seen = {} if head is None else {part: self._features(x) for part, (x, _) in self._samples.items()}
        if head is not None:
            found["gaussian"], estimated = self._worth({part: head(features) for part, features in seen.items()})
            found |= {"gaussian/estimate": estimated} if estimated else {}
        if "clients" not in self._samples:
            return Last(head, None, found)
        if head is None:
            outputs = self.logits(self.state.model)
            use: Head | Calibration = self._corrections(outputs, self.server.prior_shift)["calibrated"]
        else:
            own = Head.of(*self.worker.model.last_parameters())
            told = HeldOutFeatures(seen["clients"], self.labels("clients"))
            counts = np.asarray(self.server.counts.table).sum(axis=0)
            outputs, use = seen, recommended(own, head, told, counts, self.server.target, self.server.prior_shift)
        _, found["recommended"] = self._worth({part: use(values) for part, values in outputs.items()})
        return Last(head, use, found)

    def _worth(self, outputs: Mapping[str, Vector]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the last round is worth, scored on validation data, and by the clients' estimate if any."""
        told = {part: self._metrics(part, outputs[part]) for part in ("validation", "test")}
        facts = {"round": self.state.round, "test": asdict(told["test"])}
        if "clients" not in outputs:
            return {"score": told["validation"].accuracy, **facts}, {}
        estimate = target_accuracy(Tally.of(self.labels("clients"), outputs["clients"]), self.server.target)
        return {"score": told["validation"].accuracy, **facts}, {"score": estimate.value, **facts}

    def _gaussian_head(self) -> Head | None:
        """Return the head for what the participants of the last round tell about the samples that they train with."""
        self.worker.model.load(self.state.model)
        sums = []
        try:
            for i in self.server.participants(self.state.round, self._able):
                x, y = self.worker.client(int(i))
                features = self._features(x)
                if not 0 < features.shape[1] <= WIDEST:
                    return None
                sums.append(FeatureSums.of(features, y.cpu().numpy(), len(self.federation.dataset.labels)))
            return gaussian_head(sums, self.server.target)
        except InputError:  # none of them has a label of the target, or features are infinite
            return None

    def _features(self, x: Tensor) -> Vector:
        """Return what the last layer of the network as it is sees, (n, d); d = 0 where that layer is not linear."""
        features = self.worker.model.features(x)
        return np.empty((len(x), 0)) if features is None else features.double().cpu().numpy()

    def labels(self, part: str) -> Indices:
        """Return the labels of a set to evaluate with."""
        return self._samples[part][1]

    def _estimate_target(self, outputs: Mapping[str, Vector]) -> None:
        """Learn T from the target's validation inputs, not their labels; keep what is known where they do not tell."""
        try:
            if self.run.target_estimate == "bbse":
                tally = Tally.of(self.labels("clients"), outputs["clients"])
                predicted = outputs["validation"].argmax(axis=1)
                found = bbse(tally, np.bincount(predicted, minlength=self.server.target.size))
            else:
                found = em(softmax(outputs["validation"], axis=1), self.server.learned_prior)
        except (InputError, NotConvergedError):
            return
        self.state.target = found.target
        self.server.aim(found.target)

    def _evaluate(self) -> dict[str, Any]:
        """Evaluate once; every correction of the same outputs costs next to nothing."""
        outputs = self.logits(self.state.model)
        if self.run.target_estimate is not None:
            self._estimate_target(outputs)
        lines: dict[str, Any] = {}
        for name, correction in self._corrections(outputs, self.server.prior_shift).items():
            told = {part: self._metrics(part, correction(outputs[part])) for part in ("validation", "test")}
            lines[name] = {part: asdict(m) for part, m in told.items()}
            scores = {"validation": told["validation"].accuracy}
            if "clients" in outputs:
                tally = Tally.of(self.labels("clients"), correction(outputs["clients"]))
                estimate = target_accuracy(tally, self.server.target)
                scores |= {"estimate": estimate.value, "pooled": float(tally.correct.sum() / tally.samples.sum())}
                lines[name]["clients"] = {
                    "accuracy": scores["pooled"],
                    "target_accuracy": estimate.value,
                    "standard_error": estimate.standard_error if math.isfinite(estimate.standard_error) else None,
                }
            for rule, score in scores.items():
                self._select(name if rule == "validation" else f"{name}/{rule}", rule, score, told["test"], correction)
        return lines

    def _corrections(self, outputs: Mapping[str, Vector], shift: Vector) -> dict[str, Calibration]:
        """Return the model as it is, with the target prior correction, and calibrated where samples are held out."""
        found = {"raw": Calibration(1.0, np.zeros_like(shift)), "prior": Calibration(1.0, shift)}
        if "clients" in outputs:
            found["calibrated"] = calibrate(outputs["clients"], self.labels("clients"), self.server.target, shift)
        return found

    def _select(self, name: str, rule: str, score: float, test: Metrics, correction: Calibration) -> None:
        """Keep the round if it is the best so far."""
        state = self.state
        if score > state.selected.setdefault(name, Selected()).score:
            vector = state.model.clone() if rule == self.saved_by else None
            state.selected[name] = Selected(state.round, score, asdict(test), vector, correction)

    def _metrics(self, part: str, logits: Vector) -> Metrics:
        return metrics(self.labels(part), logits.argmax(axis=1), len(self.federation.dataset.labels))


def known(run: Run, federation: Federation) -> tuple[LabelCounts, Vector]:
    """Return what the server takes for the clients' label counts and for T: with noise where the run says so.

    Of a T that it does not know, it takes the clients' own labels for it until it has an estimate.
    """
    counts, target = federation.counts, federation.target
    if run.count_epsilon is not None:
        counts = repair(noisy_counts(counts, run.count_epsilon, run.seed), like=counts)
    if run.target_estimate is not None:
        target = np.asarray(counts.sizes @ counts.marginals / counts.total)
    if run.target_noise is not None:
        target = perturb(target, run.target_noise, generator(run.seed, "target noise"))
    return counts, target


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
    run ends with its state on disk. A run that diverges is finished with what was selected before: the same seed would
    diverge again.

    Raises
    ------
    DivergedError
        Where it diverges in the first round, so that there is nothing to select.
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
    diverged = False
    while not simulation.finished and not stop():
        try:
            line = simulation.advance()
        except DivergedError:
            if simulation.state.round == 0:
                raise
            diverged = True
            break
        record.append(line)
        if simulation.state.round % checkpoint_every == 0 or simulation.finished:
            simulation.state.save(record.checkpoint)
        for callback in callbacks:
            callback(line)
    if simulation.finished or diverged:
        _finish(record, simulation, diverged=diverged)
    return record


def _finish(record: Record, simulation: Simulation, *, diverged: bool) -> None:
    """Write weights, selected models and the result; the result comes last and marks the run finished."""
    state, federation = simulation.state, simulation.federation
    record.write_json("weights.json", {**_knowledge(simulation), "rounds": record.weights()})
    model = simulation.worker.model
    selected = {name: {"round": s.round, "score": s.score, "test": s.test} for name, s in state.selected.items()}
    last = Last(None, None, {}) if diverged else simulation.last()
    selected |= last.worth

    def save(name: str, vector: Tensor, use: Head | Calibration | None, number: int) -> None:
        facts = {"round": number, "labels": federation.dataset.labels}
        checkpoint.save(record.model.with_stem(name), _tensors(model, vector, use), facts)

    for name, use in (("model-gaussian", last.head), ("model-recommended", last.recommended)):
        if use is not None:
            save(name, state.model, use, state.round)
    for name, best in state.selected.items():
        if best.vector is None or best.correction is None:
            continue
        correction = name.partition("/")[0]
        raw = correction == "raw"
        save("model" if raw else f"model-{correction}", best.vector, None if raw else best.correction, best.round)
        if raw and federation.held_out:
            record.write_json("tallies.json", [tally.to_json() for tally in _tallies(simulation, best.vector)])
    coverage = federation.coverage
    record.write_json(
        "result.json",
        {
            "rounds": state.round,
            "selected": selected,
            "projection_distance": coverage.distance,
            "covered": coverage.covered,
            "clients": len(federation.clients),
            "samples": federation.counts.total,
            "validation_samples": len(federation.validation),
            "test_samples": len(federation.test),
            "parameters": model.trained,
            **({"diverged": True} if diverged else {}),
        },
    )


def _tensors(model: FlatModel, vector: Tensor, use: Head | Calibration | None) -> dict[str, Tensor]:
    """Return the network's state with the parameters ``vector``, in memory of its own, and what it is used with."""
    model.load(vector)
    tensors = {key: value.clone() for key, value in model.network.state_dict().items()}
    if isinstance(use, Head):
        tensors |= {**model.last_layer(use.weight, use.bias), "stands_for": torch.from_numpy(use.stands_for)}
        if use.displaced is not None:
            tensors["displaced_axes"] = torch.from_numpy(use.displaced.axes)
            tensors["displaced_centres"] = torch.from_numpy(use.displaced.centres)
    elif isinstance(use, Calibration):
        tensors["prior_shift"] = torch.from_numpy(use.shift)
        tensors["temperature"] = torch.tensor(use.temperature, dtype=torch.float64)
    return tensors


def _knowledge(simulation: Simulation) -> dict[str, Any]:
    """Return what the server knew; of noisy label counts also the exact ones, and how far its weights may be off."""
    run, server, federation = simulation.run, simulation.server, simulation.federation
    told: dict[str, Any] = {
        "labels": federation.dataset.labels,
        "counts": np.asarray(server.counts.table, dtype=np.int64).tolist(),
        "target": server.target.tolist(),
    }
    if not np.array_equal(server.target, federation.target):
        told["exact_target"] = federation.target.tolist()
    if run.count_epsilon is None:
        return told
    told["exact_counts"] = federation.table.tolist()
    weighting = server.method.weighting
    if isinstance(weighting, Pals):
        off = spread(server.counts, server.target, run.count_epsilon, run.seed, lam=weighting.lam, ess=weighting.ess)
        told["spread"] = {
            "lower": off.lower.tolist(),
            "upper": off.upper.tolist(),
            "moved": off.moved,
            "distance": off.distance,
            "worst_distance": off.worst_distance,
        }
    return told


def _tallies(simulation: Simulation, vector: Tensor) -> list[Tally]:
    """Return what every client tells about a model on the samples it held out."""
    outputs, y = simulation.logits(vector)["clients"], simulation.labels("clients")
    ends = np.cumsum([indices.size for indices in simulation.federation.held_out])[:-1]
    return [Tally.of(*parts) for parts in zip(np.split(y, ends), np.split(outputs, ends), strict=True)]
