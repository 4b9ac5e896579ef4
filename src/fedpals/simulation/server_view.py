"""What the server takes for the clients' label counts and for T: exact, with noise, or still to be estimated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedpals.data import Federation
from fedpals.engine.server import Server, label_mix, rounds_per_pass
from fedpals.errors import InputError
from fedpals.labels import LabelCounts, Vector
from fedpals.labels.private import noisy_counts, repair
from fedpals.rng import generator
from fedpals.simulation.record import NoiseEffect, RoundLine, ServerView, WeightsChange
from fedpals.simulation.run import Knowledge, Run
from fedpals.weights.uncertainty import WeightUncertainty


def counts_and_target(run: Run, federation: Federation) -> tuple[LabelCounts, Vector]:
    """Return what the server takes for the clients' label counts and for T: with noise where the run says so.

    For a T that it does not know, it takes the clients' own labels until it has an estimate.
    """
    counts, target, knowledge = federation.counts, federation.target, run.knowledge
    if knowledge.count_epsilon is not None:
        counts = repair(noisy_counts(counts, knowledge.count_epsilon, run.seed), like=counts)
    if knowledge.target_estimate is not None:
        target = np.asarray(counts.sizes @ counts.marginals / counts.total)
    if knowledge.target_noise is not None:
        target = perturb(target, knowledge.target_noise, generator(run.seed, "target noise"))
    return counts, target


def perturb(target: npt.ArrayLike, delta: float, rng: np.random.Generator) -> Vector:
    """Noise model of the paper's appendix: T + δ·max(ε, 0) with Gaussian ε, normalised."""
    T = np.asarray(target, dtype=np.float64)
    if not (np.isfinite(delta) and delta >= 0):
        raise InputError(f"delta is {delta}; the size of the noise must be a number ≥ 0")
    noisy = T + delta * np.maximum(rng.standard_normal(T.shape), 0.0)
    return np.asarray(noisy / noisy.sum())


def first_view(server: Server, federation: Federation) -> ServerView:
    """Return what the server knows before the first round."""
    counts = _rows(np.asarray(server.counts.table, dtype=np.int64))
    names = federation.names or None
    return ServerView(federation.dataset.labels, counts, tuple(server.target.tolist()), clients=names)


def server_view(
    server: Server, federation: Federation, knowledge: Knowledge, rounds: tuple[WeightsChange, ...]
) -> ServerView:
    """Return what the server knew; of noisy label counts also the exact ones, and how far its weights may be off."""
    epsilon, effect = knowledge.count_epsilon, None
    if epsilon is not None:
        off = server.method.weighting.uncertainty(server.counts, server.target, epsilon, server.seed)
        effect = None if off is None else _noise_effect(off)
    return ServerView(
        labels=federation.dataset.labels,
        counts=_rows(np.asarray(server.counts.table, dtype=np.int64)),
        target=tuple(server.target.tolist()),
        rounds=rounds,
        exact_target=None if np.array_equal(server.target, federation.target) else tuple(federation.target.tolist()),
        exact_counts=None if epsilon is None else _rows(federation.table),
        spread=effect,
        clients=federation.names or None,
    )


def learned_prior(run: Run, lines: Sequence[RoundLine], counts: LabelCounts, target: Vector) -> Vector:
    """Return the label mix π, (K,), that the model of the last of ``lines`` has built in.

    It is what the client rule makes of p_α = Σ α_i S_i, averaged over the rounds in which all clients had their turn;
    a rule that weighs labels does it for ``target``.
    """
    weights = [line.weights for line in lines[-rounds_per_pass(run.server.participation) :]]
    rule = run.method.rule
    mixes = [label_mix(rule, counts, target, np.asarray(w.participants), np.asarray(w.alpha)) for w in weights]
    prior = rule.learned_prior(np.asarray(np.mean(mixes, axis=0)))
    return np.asarray(prior / prior.sum())


def _noise_effect(off: WeightUncertainty) -> NoiseEffect:
    lower, upper = (tuple(bound.tolist()) for bound in (off.lower, off.upper))
    return NoiseEffect(lower, upper, off.moved, off.squared_distance, off.worst_squared_distance)


def _rows(table: npt.NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, table.tolist()))
