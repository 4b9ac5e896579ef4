"""One run, round by round: broadcast, train, check, weigh, aggregate, evaluate, select.

Every draw has an address and every sum an order, so a run has the same bits with any number of
workers, and after an interruption.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy
import torch
from torch import Tensor

from fedpals.engine.client import Client, Update
from fedpals.engine.evaluation import Outputs, Part
from fedpals.engine.last_layer import gaussian_layer, recommended_layer, rival_layer
from fedpals.engine.metrics import Scores
from fedpals.engine.server import DivergedError, Server
from fedpals.errors import InputError
from fedpals.labels import Indices, Vector
from fedpals.shift import Head, HeldOutFeatures, Tally, bbse, em
from fedpals.shift.calibration import Calibration
from fedpals.shift.candidates import Comparison, pooled_comparison
from fedpals.shift.estimate import NotConvergedError
from fedpals.shift.evaluation import Correction, Evaluation, SelectedBy
from fedpals.simulation.pools import Pool
from fedpals.simulation.record import RoundLine, RoundWeights, SelectedRound
from fedpals.simulation.server_view import counts_and_target
from fedpals.simulation.state import BestRound, SimulationState
from fedpals.simulation.worker import Job, Worker

_SPOILED = 0.1
"""Fall of the estimated accuracy from which a model counts as spoiled. Less is not clear, whatever the standard errors:
the best of many rounds is found too good, and where all of few samples are right, the standard error is 0."""


@dataclass(frozen=True, eq=False)
class Recommended:
    """The model to use where clients hold samples out."""

    round: int
    vector: Tensor
    """Parameters of that round's model."""
    use: Head | Calibration
    """The last layer in place of its own, or the calibration where it can have none."""
    worth: SelectedRound


@dataclass(frozen=True, eq=False)
class LastModel:
    """What follows from the last model."""

    gaussian: Head | None = None
    recommended: Recommended | None = None
    selected: Mapping[Evaluation, SelectedRound] = field(default_factory=dict)
    """What it is worth with each last layer."""


class Simulation:
    """One run, round by round."""

    def __init__(self, worker: Worker, pool: Pool, state: SimulationState | None = None) -> None:
        self.worker, self.pool = worker, pool
        self.run, self.federation = worker.run, worker.federation
        self.state = state or SimulationState(0, worker.model.vector.clone(), run=self.run.digest)
        plan = self.run.server
        self.server = Server(
            self.run.method,
            *counts_and_target(self.run, self.federation),
            self.state,
            participation=plan.participation,
            momentum=plan.server_momentum,
            averaging=plan.averaging,
            protection=self.run.protection,
            noise_key=f"seed {self.run.seed}",  # nobody is protected in a simulation, and it must be repeatable
            seed=self.run.seed,
        )
        if self.state.target is not None:
            self.server.set_target(self.state.target)
        self._able = np.flatnonzero(self.federation.counts.sizes)
        self.evaluator = worker.evaluator()
        self._compared: tuple[Indices, list[tuple[Tensor, Vector]]] = np.zeros(0, dtype=np.int64), []
        """Held-out samples that this round's candidates were compared on, and the candidates with their outputs."""
        self.saved_by = SelectedBy.ESTIMATE if self.federation.held_out else SelectedBy.VALIDATION
        """What selects the saved models: no target sample where clients hold samples out."""

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or none of the saved models has improved for ``patience`` rounds."""
        patience = self.run.server.patience
        newest = max((best.round for best in self.state.best.values() if best.vector is not None), default=0)
        stale = patience is not None and self.state.round - newest >= patience
        return self.state.round >= self.run.server.rounds or stale

    def advance(self) -> RoundLine:
        """Compute one round; return its line for the record. The state changes only if all went well."""
        started = time.perf_counter()
        number = self.state.round + 1
        try:
            done = self.server.advance(
                self.server.participants(number, self._able), self._train, self._losses, self._compare
            )
        except DivergedError as error:
            rate = self.run.plan.learning_rate
            raise DivergedError(f"{error}; try a smaller learning_rate than {rate:g}") from None
        scores = self._evaluate()
        return RoundLine(
            round=number,
            loss=done.loss,
            trained=done.trained,
            participants=len(done.participants),
            refused=done.refused,
            raw=scores[Correction.RAW],
            prior=scores[Correction.PRIOR],
            calibrated=scores.get(Correction.CALIBRATED),
            weights=RoundWeights(tuple(done.participants.tolist()), tuple(done.alpha.tolist())),
            choice=done.choice,
            privacy=done.privacy,
            outliers=done.outliers,
            seconds=round(time.perf_counter() - started, 4),
        )

    def _train(self, clients: Sequence[int]) -> Iterable[Update]:
        state, server = self.state, self.server.rule_vector
        return self.pool.train([Job(state.round + 1, i, state.vector, server, state.clients.get(i)) for i in clients])

    def _losses(self, clients: Sequence[int]) -> Iterable[float]:
        return self.pool.losses([Job(self.state.round + 1, i, self.state.vector) for i in clients])

    def _compare(self, clients: Sequence[int], vectors: Sequence[Tensor]) -> Comparison | str:
        """Compare parameters on the samples that clients held out; or say why that cannot be.

        Losses of labels that the target does not have count for nothing, so these samples are left out.
        """
        if Part.CLIENTS not in self.evaluator.samples:
            return "no client holds samples out"
        x, y = self.evaluator.samples[Part.CLIENTS]
        ends = np.cumsum([indices.size for indices in self.federation.held_out])
        held_out = (np.arange(ends[i] - self.federation.held_out[i].size, ends[i]) for i in clients)
        rows = [part[self.server.target[y[part]] > 0] for part in held_out]
        own = np.concatenate(rows)
        if not own.size:
            return "no participant holds samples of the target's labels out"
        inputs = x[torch.from_numpy(own)]
        logits = [self.evaluator.outputs(vector, inputs) for vector in vectors]
        self._compared = own, list(zip(vectors, logits, strict=True))
        cuts = np.cumsum([part.size for part in rows])[:-1]
        by_client = zip(*(np.split(values, cuts) for values in logits), strict=True)
        return pooled_comparison(
            [Comparison.of(y[part], values) for part, values in zip(rows, by_client, strict=True) if part.size]
        )

    def _known_outputs(self, model: Tensor) -> Outputs:
        """Return the outputs of a model for all samples held out, if it was one of the candidates of this round."""
        own, compared = self._compared
        known = next((outputs for vector, outputs in compared if vector is model), None)
        if known is None:
            return {}
        x, y = self.evaluator.samples[Part.CLIENTS]
        outputs = np.empty((len(y), known.shape[1]))
        outputs[own] = known
        if (rest := np.setdiff1d(np.arange(len(y)), own)).size:
            outputs[rest] = self.evaluator.outputs(model, x[torch.from_numpy(rest)])
        return {Part.CLIENTS: outputs}

    def _evaluate(self) -> dict[Correction, Scores]:
        """Evaluate the model in every way, and keep the round where it is the best so far."""
        model = self.state.model
        logits = self.evaluator.logits(model, self._known_outputs(model))
        self._compared = self._compared[0], []
        if self.run.knowledge.target_estimate is not None:
            self._estimate_target(logits)
        target, shift = self.server.target, self.server.prior_shift
        results: dict[Correction, Scores] = {}
        for correction, calibration in self.evaluator.corrections(logits, target, shift).items():
            corrected = {part: calibration(values) for part, values in logits.items()}
            results[correction] = self.evaluator.scores(corrected, target)
            self._select(correction, results[correction], calibration)
        return results

    def _select(self, correction: Correction, scores: Scores, calibration: Calibration) -> None:
        """Keep the round where a rule finds it the best so far."""
        state = self.state
        for rule in SelectedBy:
            score = scores.by(rule)
            if score is None:
                continue
            evaluation = Evaluation.of(correction, rule)
            if score > state.best.setdefault(evaluation, BestRound()).score:
                vector = state.model.clone() if rule is self.saved_by else None
                state.best[evaluation] = BestRound(state.round, score, scores, vector, calibration)

    def _estimate_target(self, logits: Outputs) -> None:
        """Learn T from the target's validation inputs, not their labels; keep the last T where they do not tell."""
        try:
            if self.run.knowledge.target_estimate == "bbse":
                tally = Tally.of(self.evaluator.truth(Part.CLIENTS), logits[Part.CLIENTS])
                predicted = logits[Part.VALIDATION].argmax(axis=1)
                estimate = bbse(tally, np.bincount(predicted, minlength=self.server.target.size))
            else:
                estimate = em(scipy.special.softmax(logits[Part.VALIDATION], axis=1), self.server.learned_prior)
        except (InputError, NotConvergedError):
            return
        self.state.target = estimate.target
        self.server.set_target(estimate.target)

    def tallies(self, vector: Tensor) -> list[Tally]:
        """Return what every client says about a model on the samples that it held out."""
        logits, y = self.evaluator.logits(vector)[Part.CLIENTS], self.evaluator.truth(Part.CLIENTS)
        ends = np.cumsum([indices.size for indices in self.federation.held_out])[:-1]
        return [Tally.of(*parts) for parts in zip(np.split(y, ends), np.split(logits, ends), strict=True)]

    def last_model(self) -> LastModel:
        """Return what the last model is worth with a Gaussian head, where it can have one, and the model to use."""
        if self.run.protection.private:  # sums of features carry no noise
            return LastModel()
        number, vector = self.state.round, self.state.model
        gaussian = self._gaussian_head(vector, number)
        selected: dict[Evaluation, SelectedRound] = {}
        if gaussian is not None:
            features = self.evaluator.features(vector)
            selected |= self._worth(Correction.GAUSSIAN, {part: gaussian(seen) for part, seen in features.items()})
            selected |= self._rival_heads(features)
        if Part.CLIENTS not in self.evaluator.samples:
            return LastModel(gaussian, None, selected)
        recommended = self._recommended(vector, number, gaussian)
        if (earlier := self._before_spoiled(recommended.worth)) is not None and earlier.vector is not None:
            gaussian_then = self._gaussian_head(earlier.vector, earlier.round)
            recommended = self._recommended(earlier.vector, earlier.round, gaussian_then)
        selected[Evaluation.RECOMMENDED] = recommended.worth
        return LastModel(gaussian, recommended, selected)

    def _recommended(self, vector: Tensor, number: int, gaussian: Head | None) -> Recommended:
        """Return the recommended use of a round's model, whose Gaussian head is ``gaussian``."""
        evaluator, server = self.evaluator, self.server
        if gaussian is None:
            outputs: Outputs = evaluator.logits(vector)
            corrections = evaluator.corrections(outputs, server.target, server.prior_shift)
            use: Head | Calibration = corrections[Correction.CALIBRATED]
        else:
            outputs = evaluator.features(vector)
            own = Head.of(*self.worker.model.last_parameters())
            held_out = HeldOutFeatures(outputs[Part.CLIENTS], evaluator.truth(Part.CLIENTS))
            use = recommended_layer(own, gaussian, [held_out], server)
        scores = evaluator.scores({part: use(values) for part, values in outputs.items()}, server.target)
        score = scores.by(SelectedBy.ESTIMATE)
        assert score is not None  # clients hold samples out
        return Recommended(number, vector, use, SelectedRound(number, score, scores.test, scores.clients))

    def _before_spoiled(self, last: SelectedRound) -> BestRound | None:
        """Return the best round, if training has spoiled the model since then; with too high a rate, for instance.

        It counts as spoiled if the clients' estimate has fallen by more than `_SPOILED` and two standard errors. No
        estimate is one for labels of the target that nobody held out, nor where T was another one in that round.
        """
        best = self.state.best.get(Evaluation.CALIBRATED_BY_ESTIMATE)
        if best is None or best.scores.clients is None or last.clients is None or self.state.target is not None:
            return None
        recalls, errors = last.clients.per_label, (best.scores.clients.standard_error, last.clients.standard_error)
        if any(recalls[label] is None for label in np.flatnonzero(self.server.target)) or None in errors:
            return None
        margin = max(_SPOILED, 2.0 * math.hypot(*(error for error in errors if error is not None)))
        return best if best.score > last.score + margin else None

    def _gaussian_head(self, vector: Tensor, number: int) -> Head | None:
        """Return a round's head for what its participants say about the samples that they train with."""
        self.worker.model.load(vector)
        try:
            return gaussian_layer([c.feature_sums(self.worker.model) for c in self._participants(number)], self.server)
        except InputError:  # no features, or infinite ones, or nobody has a label of the target
            return None

    def _rival_heads(self, features: Outputs) -> dict[Evaluation, SelectedRound]:
        """Return what the last model is worth with the last layers of other authors that the run asks for."""
        worth: dict[Evaluation, SelectedRound] = {}
        for head in self.run.knowledge.rival_heads:
            clients = list(self._participants(self.state.round))
            layer = rival_layer(head, clients, self.worker.model, self.server, seed=self.run.seed)
            worth |= self._worth(head, {part: layer(seen) for part, seen in features.items()})
        return worth

    def _participants(self, number: int) -> Iterator[Client]:
        """Yield the participants of a round."""
        return (self.worker.client(i) for i in self.server.participants(number, self._able).tolist())

    def _worth(self, correction: Correction, logits: Outputs) -> dict[Evaluation, SelectedRound]:
        """Return what the last round is worth by validation data, and by the clients' estimate where there is one."""
        scores = self.evaluator.scores(logits, self.server.target)
        number, worth = self.state.round, {}
        for rule in (SelectedBy.VALIDATION, SelectedBy.ESTIMATE):
            if (score := scores.by(rule)) is not None:
                worth[Evaluation.of(correction, rule)] = SelectedRound(number, score, scores.test, scores.clients)
        return worth
