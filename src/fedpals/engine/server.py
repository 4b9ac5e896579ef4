"""The server's round, whichever engine carries its messages.

Draw the participants, weigh them, refuse what cannot be used and weigh the rest afresh, aggregate in
a fixed order, renew the states of rule and weighting. How clients are reached is the engine's part.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedpals.engine import privacy
from fedpals.engine.aggregation import length, median_weights, private_mean, weighted_means
from fedpals.engine.collection import Collected, Train, collect
from fedpals.engine.collection import DivergedError as DivergedError  # every engine catches it
from fedpals.engine.protection import Protection
from fedpals.engine.round import EssChoice, PrivacySpent, Round
from fedpals.engine.state import ServerState
from fedpals.errors import InputError
from fedpals.labels import Indices, LabelCounts, Vector
from fedpals.methods import ClientRule, Method
from fedpals.methods.pals import DEFAULT_ESS
from fedpals.rng import generator
from fedpals.shift.candidates import CandidateLosses, Comparison
from fedpals.shift.prior import prior_shift

_WARM_UP_ROUNDS = 5
"""Rounds after which the running mean forgets half as slowly as it could."""


Losses = Callable[[Sequence[int]], Iterable[float]]
"""The losses of the global parameters at clients; NaN where a client does not say."""
Compare = Callable[[Sequence[int], Sequence[Tensor]], Comparison | str]
"""Compares parameters on samples that clients held out; or why nobody did."""


class Server:
    """One run's server: method, label counts and target, and the state that its rounds change."""

    def __init__(
        self,
        method: Method,
        counts: LabelCounts,
        target: Vector,
        state: ServerState,
        *,
        participation: float = 1.0,
        minimum: int = 1,
        momentum: float | None = None,
        averaging: float | None = None,
        protection: Protection = Protection(),  # noqa: B008 -- frozen
        noise_key: str | None = None,
        seed: int = 0,
    ) -> None:
        self.method, self.counts, self.target, self.state = method, counts, target, state
        self.participation, self.minimum, self.seed = participation, minimum, seed
        self.momentum, self.averaging, self.protection = momentum, averaging, protection
        method.weighting.check(self._drawn(int(np.count_nonzero(counts.sizes))))
        if protection.private:
            privacy.check_method(method)
            privacy.require_accountant()
            state.noise_key = state.noise_key or noise_key or secrets.token_hex(32)
            state.spent = np.zeros(counts.shape[0]) if state.spent is None else state.spent
        if state.weighting is None:
            state.weighting = method.weighting.start(counts)
        self._last_candidates: tuple[Indices, Sequence[Vector]] | None = None
        self._rule_vector: Tensor | None = None
        self._reachable: Indices | None = None
        """Rows of the clients that can be reached; None for all."""

    def admit(self, counts: LabelCounts, present: Indices | None = None, numbered: Indices | None = None) -> None:
        """Take in clients that joined: the rows of ``counts`` after those that the server has.

        A mixture over clients gives the newcomers their share n_i/N of the ``present`` (all, unless given), and keeps
        its proportions among the others. Who restarts under another name is a newcomer, and its old row may still look
        present. So with privacy a newcomer has spent as much as whoever it may be: the client that has spent most, of
        all for one without a number, and of those without a number for one that is among the ``numbered``, as a client
        with another number is another client.
        """
        mixture, start = self.state.weighting, self.method.weighting.start(counts)
        if mixture is not None and start is not None:
            self.state.weighting = _with_newcomers(mixture, start, present)
        if (spent := self.state.spent) is not None:
            has_number = np.isin(np.arange(counts.shape[0]), () if numbered is None else numbered)
            unnumbered = spent[~has_number[: spent.size]]
            begin = np.where(has_number[spent.size :], unnumbered.max(initial=0.0), spent.max(initial=0.0))
            self.state.spent = np.concatenate([spent, begin])
        self.counts = counts
        self._last_candidates = self._rule_vector = None

    def set_target(self, target: Vector) -> None:
        """Take another T from the next round on."""
        self.target = target
        self._last_candidates = self._rule_vector = None

    def participants(self, number: int, present: Indices | None = None) -> Indices:
        """Draw the clients of a round, in ascending order; clients without samples have nothing to say.

        ``present`` are the clients that can be reached; all of them unless given. Until the next draw the others have
        no share in anything: not in the rule's vector of the server either.
        """
        self._reachable, self._rule_vector = present, None
        able = self._able
        if self.participation >= 1.0:
            return able
        rng = generator(self.seed, "participants", number)
        return np.sort(rng.choice(able, self._drawn(able.size), replace=False))

    def _drawn(self, able: int) -> int:
        """Return how many of so many clients take part in a round."""
        return able if self.participation >= 1.0 else min(able, max(self.minimum, round(self.participation * able)))

    def weigh(self, participants: Indices) -> Vector:
        """Return α for ``participants``: of the candidates the one that was chosen last."""
        candidates = self._candidates(participants)
        return candidates[self._position(participants, candidates)]

    def weighed(self, participants: Indices) -> Indices:
        """Return those of ``participants`` that are trained in the next round: they have weight in a candidate."""
        return participants[np.any(self._candidates(participants), axis=0)]

    def achieved(self, done: Round) -> tuple[float, float]:
        """Return ‖T − Σ α_i S_i‖² and the ESS, a fraction of the participants' samples, of a round."""
        mix = np.asarray(done.alpha @ self.counts.subset(done.participants).marginals)
        return float(np.square(self.target - mix).sum()), self._ess(done.participants, done.alpha)

    def advance(self, participants: Indices, train: Train, losses: Losses, compare: Compare | None = None) -> Round:
        """Compute one round. The state changes only if all went well."""
        state, number = self.state, self.state.round + 1
        collected = collect(
            number,
            participants,
            self._candidates,
            train,
            start=state.vector,
            sizes=self.counts.sizes,
            lengths=state.lengths,
            keeps_vectors=self.method.rule.keeps_vectors,
            rule_vector=next(iter(state.clients.values()), None),
            protection=self.protection,
        )
        participants, candidates = collected.participants, collected.candidates
        weights, averages, clipped = self._aggregate(number, collected)
        moves = [self._move(self.method.rule.step(state.vector, average)) for average in averages]
        if not all(torch.isfinite(vector).all() for vector, _ in moves):
            raise DivergedError(f"round {number}: {_largest(collected, state.vector)}")
        compared = self._candidate_losses(participants, [vector for vector, _ in moves], compare)
        chosen = self._position(participants, candidates) if isinstance(compared, str) else compared.best
        choice = self._choice(participants, weights, chosen, compared)
        alpha, (vector, velocity) = weights[chosen], moves[chosen]
        mix = label_mix(self.method.rule, self.counts, self.target, participants, alpha, self._population)
        weighting = self._learn(participants, losses) if self.method.weighting.needs_losses else state.weighting
        spent = self._spend(participants, alpha, clipped)
        state.round, state.vector, state.weighting = number, vector, weighting
        state.lengths = collected.lengths
        if not isinstance(compared, str):
            state.position = chosen
        state.velocity, state.average = velocity, self._average(number, vector)
        if spent is None:  # with noise for privacy nothing of the clients is kept but the aggregate
            kept = {i: vector for i, vector in state.clients.items() if i not in collected.distrusted}
            state.clients = kept | {i: u.state for i, u in sorted(collected.updates.items()) if u.state is not None}
        self._rule_vector = None
        state.mixes.append(mix)
        del state.mixes[: -rounds_per_pass(self.participation)]
        return Round(
            number,
            participants,
            alpha,
            collected.trained,
            collected.loss(alpha),
            collected.refused,
            choice,
            spent,
            collected.outliers,
            compared if isinstance(compared, str) else "",
        )

    @property
    def rule_vector(self) -> Tensor | None:
        """The rule's vector of the server, which goes to every client of the next round.

        It follows from the clients' vectors and from the weights, counts and T of now, whatever they were before.
        """
        if self._rule_vector is None:
            clients: list[tuple[float, Tensor]] = []
            if self.state.clients:
                everyone = self._able
                share = dict(zip(everyone.tolist(), self.weigh(everyone).tolist(), strict=True))
                clients = [(share[i], vector) for i, vector in sorted(self.state.clients.items()) if i in share]
            self._rule_vector = self.method.rule.server_vector(clients, self._population, self.target)
        return self._rule_vector

    @property
    def _able(self) -> Indices:
        """Rows of the clients that can be reached and have samples, in ascending order."""
        is_able = self.counts.sizes > 0
        if self._reachable is not None:
            is_reachable = np.zeros(is_able.size, dtype=bool)
            is_reachable[self._reachable] = True
            is_able = is_able & is_reachable
        return np.flatnonzero(is_able).astype(np.int64)

    @property
    def _population(self) -> LabelCounts:
        """Counts of the clients that can be reached."""
        is_everyone = self._reachable is None or self._reachable.size == self.counts.shape[0]
        return self.counts if is_everyone else self.counts.subset(self._able)

    @property
    def prior_shift(self) -> Vector:
        """log T − log p, (K,), with p the label marginal that the model has learned."""
        return prior_shift(self.target, self.learned_prior, self._population.total)

    @property
    def learned_prior(self) -> Vector:
        """What the rule makes of p_α, (K,), up to a factor: of its mean over one pass through all clients."""
        return self.method.rule.learned_prior(np.asarray(np.mean(self.state.mixes, axis=0)))

    def _candidates(self, participants: Indices) -> Sequence[Vector]:
        """Return all weights to choose from; solved once as long as the participants stay the same."""
        weighting, last = self.method.weighting, self._last_candidates
        if last is not None and not weighting.needs_losses and np.array_equal(last[0], participants):
            return last[1]
        candidates = weighting.candidates(self.counts, self.target, participants, self.state.weighting)
        self._last_candidates = participants, candidates
        return candidates

    def _position(self, participants: Indices, candidates: Sequence[Vector]) -> int:
        """Return the number of the candidate that was chosen last; before that, of the one nearest to `DEFAULT_ESS`.

        So a client that only says that it could compare does not make FedPALS FedAvg.
        """
        if len(candidates) == 1:
            return 0
        if self.state.position is not None:
            return self.state.position
        return int(np.argmin([abs(self._ess(participants, alpha) - DEFAULT_ESS) for alpha in candidates]))

    def _candidate_losses(
        self, participants: Indices, vectors: Sequence[Tensor], compare: Compare | None
    ) -> CandidateLosses | str:
        """Return what clients estimate of the candidates' ``vectors``, or why nothing; "" if there is only one."""
        if compare is None or len(vectors) == 1:
            return ""
        comparison = compare(participants.tolist(), vectors)
        try:
            return comparison if isinstance(comparison, str) else CandidateLosses.of(comparison, self.target)
        except InputError as error:  # nobody who answered has a label of the target
            return str(error)

    def _choice(
        self, participants: Indices, weights: Sequence[Vector], chosen: int, losses: CandidateLosses | str
    ) -> EssChoice | None:
        """Return what was chosen, and why; ``weights`` are those used: a median's are not the candidates."""
        if not self.method.weighting.chooses:
            return None
        ess = tuple(self._ess(participants, alpha) for alpha in weights)
        if isinstance(losses, str):
            return EssChoice(ess[chosen])
        return EssChoice(ess[chosen], ess, tuple(losses.value.tolist()), tuple(losses.errors.tolist()))

    def _ess(self, participants: Indices, alpha: Vector) -> float:
        """Return 1/Σ(α_i²/n_i) as a fraction of the participants' samples."""
        sizes, used = self.counts.sizes[participants], alpha > 0
        return 1.0 / float((np.square(alpha[used]) / sizes[used]).sum() * sizes.sum())

    def _aggregate(self, number: int, collected: Collected) -> tuple[Sequence[Vector], list[Tensor], int]:
        """Return the weights of every candidate, the means with them, and how many updates privacy shortened."""
        start, candidates, vectors = self.state.vector, collected.candidates, collected.vectors
        protection = self.protection
        if protection.clip_update is not None:
            (alpha,) = candidates
            assert self.state.noise_key is not None
            mean, clipped = private_mean(
                start,
                vectors,
                alpha,
                clip=protection.clip_update,
                sigma=protection.sigma(self._largest_weight(alpha)),
                key=self.state.noise_key,
                number=number,
            )
            return candidates, [mean], clipped
        if protection.aggregation is not None:
            candidates = [median_weights(start, vectors, alpha) for alpha in candidates]
        return candidates, weighted_means(vectors, candidates, start), 0

    def _spend(self, participants: Indices, alpha: Vector, clipped: int) -> PrivacySpent | None:
        """Add a round to what every client has spent; return ε of the client that has spent most."""
        protection, spent = self.protection, self.state.spent
        if protection.noise_multiplier is None or spent is None:
            return None
        largest = self._largest_weight(alpha)
        self.state.spent = privacy.spend(spent, participants, alpha, protection.noise_multiplier, largest)
        return privacy.report(self.state.spent, protection.delta, protection.sigma(largest), clipped)

    def _largest_weight(self, alpha: Vector) -> float:
        """Return what noise has to cover: the cap, which does not tell who takes part, or else max α."""
        cap = self.method.weighting.largest_weight(alpha.size)
        return float(alpha.max()) if cap is None else cap

    def _move(self, average: Tensor) -> tuple[Tensor, Tensor | None]:
        """v_t = m v_{t−1} + (Σ α_i w_i − w_{t−1}), w_t = w_{t−1} + v_t (Hsu et al., 2019); or plainly Σ α_i w_i."""
        if self.momentum is None:
            return average, None
        step = average - self.state.vector
        velocity = step if self.state.velocity is None else self.momentum * self.state.velocity + step
        return self.state.vector + velocity, velocity

    def _average(self, number: int, vector: Tensor) -> Tensor | None:
        """w̄_t = d w̄_{t−1} + (1 − d) w_t in double precision; d grows towards the decay, as early models are poor."""
        if self.averaging is None:
            return None
        if self.state.average is None:
            return vector.double()
        decay = min(self.averaging, number / (number + _WARM_UP_ROUNDS))
        return decay * self.state.average + (1.0 - decay) * vector.double()

    def _learn(self, participants: Indices, losses: Losses) -> Vector | None:
        """Return the weighting's state after the participants have reported their losses."""
        reported = zip(participants.tolist(), losses(participants.tolist()), strict=True)
        finite = {i: loss for i, loss in reported if math.isfinite(loss)}
        if not finite:
            return self.state.weighting
        rows = np.array(list(finite), dtype=np.int64)
        return self.method.weighting.learn(self.state.weighting, rows, np.array(list(finite.values())))


def _with_newcomers(mixture: Vector, sizes: Vector, present: Indices | None) -> Vector:
    """Return a mixture with newcomers, the last of ``sizes``: each has its share n_i/N of the clients that are present.

    ``sizes`` are n_i/N over all clients. With m the mixture's part of the old clients that are present, and s that of
    the newcomers in N, theirs is m s/(m s + 1 − s): among those present just s. Where m = 0 only newcomers have weight.
    """
    old, new = mixture.size, sizes[mixture.size :]
    is_away = np.ones(old, dtype=bool)
    is_away[slice(None) if present is None else present[present < old]] = False
    if is_away.any() and (part := float(mixture[~is_away].sum())) > 0:
        new = new / (1.0 - sizes[:old][is_away].sum())
        new = part * new / (1.0 - (1.0 - part) * new.sum())
    return np.concatenate([mixture * (1.0 - new.sum()), new])


def _largest(collected: Collected, start: Tensor) -> str:
    """Name the client whose update is the longest, where the mean of all is not finite."""
    norms = {i: length(update.vector.double() - start.double()) for i, update in collected.updates.items()}
    client = max(norms, key=lambda i: norms[i])
    return f"the mean of the updates is not finite; the longest is client {client}'s, of norm {norms[client]:.3g}"


def label_mix(
    rule: ClientRule,
    counts: LabelCounts,
    target: Vector,
    participants: Indices,
    alpha: Vector,
    population: LabelCounts | None = None,
) -> Vector:
    """Return the label mix that a round trains on, (K,): p_α = Σ α_i S_i; ∝ Σ α_i w_i S_i if the rule weighs labels.

    ``population`` are the counts of the clients that can be reached; all of ``counts`` unless given.
    """
    some = counts.subset(participants)
    plain = np.asarray(alpha @ some.marginals)
    weights = rule.label_weights(torch.from_numpy(some.table), rule.server_vector((), population or counts, target))
    if weights is None:
        return plain
    mix = np.asarray(alpha @ (weights.double().numpy() * some.marginals))
    return mix / mix.sum() if mix.any() else plain  # without any weight nobody moves the model


def rounds_per_pass(participation: float) -> int:
    """Return in how many rounds all clients have their turn."""
    return max(1, round(1 / participation))
