"""Sentences in plain words about a set of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpals.labels import Vector
from fedpals.weights import Weights

if TYPE_CHECKING:
    from fedpals.engine.round import EssChoice

_NEGLIGIBLE_MISMATCH = 0.005
"""Share of wrong samples below which the marginals count as equal."""
_SMALL_MISMATCH = 0.05
"""Share of wrong samples that hardly affects a model."""
_LOW_ESS = 0.25
"""Effective sample size, as a fraction, below which there is a warning."""
_SAME_ESS = 0.05
"""Difference of effective sample sizes that is not worth a word."""
_ROUNDED_ESS = 0.005
"""How much less than FedAvg's an effective sample size may be to be called FedAvg's."""
_NAMED_LABELS = 3
"""Number of labels named in a sentence."""

ESS_MEANING = "as noisy as training on that many equally weighted samples"


def mismatch(target: Vector, marginal: Vector) -> float:
    """Return ½ Σ|T − p|: the share of samples for which the mix p has the wrong label.

    >>> round(mismatch(np.array([0.5, 0.5]), np.array([0.7, 0.3])), 3)
    0.2
    """
    return float(0.5 * np.abs(target - marginal).sum())


def fedavg_mismatch(weights: Weights) -> float:
    """Return the share of samples for which FedAvg's mix is wrong."""
    return mismatch(weights.target, np.asarray(weights.fedavg @ weights.counts.marginals))


def used_clients(weights: Weights) -> int:
    """Return the number of clients with weight; a weight below the certificate's error counts as 0."""
    return int(np.count_nonzero(weights.alpha > weights.certificate.error))


def coverage_sentence(weights: Weights) -> str:
    """Say whether the target is covered; if not, how wrong the best mix is, and which labels no client has."""
    projection = weights.projection
    limit = "" if weights.max_weight is None else f" with weights of at most {weights.max_weight:g}"
    if projection.covered:
        return f"covered: some mix of the clients{limit} has exactly the target's labels"
    least = mismatch(weights.target, projection.point)
    absent = _absent_labels(weights)
    reason = f"; no client has {', '.join(map(repr, absent))}" if absent else ""
    if least < _NEGLIGIBLE_MISMATCH and not absent:
        return f"covered for all practical purposes: the best mix{limit} is wrong for {percent(least)} of samples"
    return f"not covered: even the best mix{limit} is wrong for {percent(least)} of samples{reason}"


def shortage_sentence(weights: Weights) -> str | None:
    """Say which labels the best mix lacks, and which client would help most; None if T is covered."""
    residual = weights.target - weights.projection.point
    lacking = [k for k in np.argsort(-residual, kind="stable").tolist() if residual[k] > _NEGLIGIBLE_MISMATCH]
    if weights.projection.covered or not lacking:
        return None
    counts = weights.counts
    parts = [
        f"{_named(counts.label(k))} ({percent(weights.projection.point[k])} instead of {percent(weights.target[k])})"
        for k in lacking[:_NAMED_LABELS]
    ]
    more = f" and {len(lacking) - _NAMED_LABELS} more" if len(lacking) > _NAMED_LABELS else ""
    shares = np.maximum(residual, 0.0) / np.maximum(residual, 0.0).sum()
    best = ", ".join(f"{percent(shares[k])} {_named(counts.label(k))}" for k in lacking[:_NAMED_LABELS])
    return f"The best mix has too little of {', '.join(parts)}{more}. A new client with {best} would help most."


def advice(weights: Weights) -> str:
    """Recommend how to use these weights, depending on the remaining mismatch."""
    before, after = fedavg_mismatch(weights), mismatch(weights.target, weights.marginal)
    least = mismatch(weights.target, weights.projection.point)
    if before < _NEGLIGIBLE_MISMATCH:
        return "The clients together already have the target's labels: plain FedAvg is enough."
    effect = f"With these weights the mix is wrong for {percent(after)} of samples instead of {percent(before)}"
    samples = f"{weights.effective_samples:,.0f} of {weights.counts.total:,.0f} samples"
    if before - after < max(_NEGLIGIBLE_MISMATCH, 0.05 * before):
        smaller = "" if weights.lam == 0 else "allow a smaller effective sample size (--ess), or "
        return f"{effect}, hardly better than FedAvg: {smaller}find clients whose labels are more like the target's."
    if weights.ess < _LOW_ESS:
        return (
            f"{effect}, but they keep the effect of only {samples}: the model may become noisy. Compare it with a "
            "larger --ess on validation data."
        )
    if after > _SMALL_MISMATCH and after - least > _SMALL_MISMATCH:
        return f"{effect}, and they keep the effect of {samples}; a smaller --ess would come closer still."
    if after > _SMALL_MISMATCH:
        return f"{effect}, which is about the best that these clients allow, and they keep the effect of {samples}."
    return f"{effect}, and they keep the effect of {samples}: use them."


def sentence_of_choices(runs: Sequence[Sequence[EssChoice]]) -> str:
    """Say which effective sample sizes were chosen, and why, from what was compared in every round of every seed."""
    compared = [max(choice.candidates) for run in runs for choice in run if choice.candidates]
    return choice_sentence([[choice.ess for choice in run] for run in runs if run], compared)


def choice_sentence(runs: Sequence[Sequence[float]], fedavg: Sequence[float] = (1.0,)) -> str:
    """Say which effective sample sizes were chosen in the rounds of a training, a list per seed, and why.

    ``fedavg`` has FedAvg's ESS, below 1 with a cap, in the rounds in which weights were compared.

    >>> choice_sentence([[0.42, 0.41, 0.41, 0.41]])
    "The ESS was 41 %: weights nearer to the target's labels had a clearly smaller estimated target loss than FedAvg's."
    """
    early = float(np.median([value for run in runs for value in run[: max(1, len(run) // 4)]]))
    late = float(np.median([value for run in runs for value in run[-max(1, len(run) // 4) :]]))
    if abs(early - late) < _SAME_ESS:
        change = f"was {_with_exceptions(late, [value for run in runs for value in run])}"
    else:
        usual = [float(np.median(values)) for values in zip(*runs, strict=False)]
        there = next(i for i, value in enumerate(usual, 1) if abs(value - late) < _SAME_ESS or i == len(usual))
        change = f"{'fell' if late < early else 'rose'} from {percent(early)} to {percent(late)} by round {there}"
    if not fedavg:
        reason = "no weights were compared, since no others were possible, or nobody's held-out samples tell them apart"
    elif late > np.median(fedavg) - _ROUNDED_ESS:
        reason = "no other weights had a clearly smaller estimated target loss than FedAvg's"
    else:
        reason = "weights nearer to the target's labels had a clearly smaller estimated target loss than FedAvg's"
    return f"The ESS {change}: {reason}."


def _with_exceptions(usual: float, values: Sequence[float]) -> str:
    """Write what is usual, and how far single rounds are from it.

    >>> _with_exceptions(0.25, [0.25, 0.25, 0.55])
    'mostly 25 %, up to 55 % in some rounds'
    """
    low, high = min(values), max(values)
    parts = []
    if usual - low >= _SAME_ESS:
        parts.append(f"down to {percent(low)}")
    if high - usual >= _SAME_ESS:
        parts.append(f"up to {percent(high)}")
    return f"mostly {percent(usual)}, {' and '.join(parts)} in some rounds" if parts else percent(usual)


def _absent_labels(weights: Weights) -> list[str]:
    counts = weights.counts
    totals = np.asarray(counts.marginals.sum(axis=0)).reshape(-1)
    return [counts.label(k) for k in range(counts.shape[1]) if totals[k] == 0 and weights.target[k] > 0]


def _named(label: str) -> str:
    """Return a label as a sentence can have it: a number alone would look like an amount.

    >>> _named("bird"), _named("8")
    ('bird', 'label 8')
    """
    return f"label {label}" if label.isdigit() else label


def percent(share: float) -> str:
    """Write a share with as many digits as it needs.

    >>> percent(0.123), percent(0.0123), percent(0.0001)
    ('12 %', '1.2 %', 'less than 0.1 %')
    """
    if 0 < share < 0.001:
        return "less than 0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"
