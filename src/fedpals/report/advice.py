"""One sentence, in plain words, on what a set of weights means for the user."""

from __future__ import annotations

from fedpals.weights import Weights

_SAME = 1e-6
"""A squared distance that no classifier will notice."""
_FEW = 0.25
"""Below this fraction the effective sample size is worth a warning."""


def coverage_sentence(weights: Weights) -> str:
    """Say whether the target is covered, or how far it is away and why."""
    projection = weights.projection
    if projection.covered:
        return "covered: some mix of the clients has exactly the target's labels"
    counts = weights.counts
    held = counts.marginals.sum(axis=0)
    absent = [counts.label(k) for k in range(counts.shape[1]) if held[k] == 0 and weights.target[k] > 0]
    reason = f"; no client has {', '.join(map(repr, absent))}" if absent else ""
    if projection.squared_distance < _SAME and not absent:
        return f"covered for all practical purposes (squared distance {projection.squared_distance:.1e})"
    return f"not covered: the closest mix is {projection.squared_distance:.4g} away{reason}"


def advice(weights: Weights) -> str:
    """Recommend what to do with these weights."""
    gain = weights.fedavg_squared_distance - weights.squared_distance
    if weights.fedavg_squared_distance < _SAME:
        return "The clients together already have the target's labels: plain FedAvg will do."
    if gain <= 0.05 * weights.fedavg_squared_distance:
        smaller = "" if weights.lam == 0 else "allow a smaller effective sample size (--ess), or "
        return (
            f"These weights hardly come closer to the target than FedAvg: {smaller}find clients whose labels are more "
            "like the target's."
        )
    removed = 1.0 - weights.squared_distance / weights.fedavg_squared_distance
    effect = f"These weights remove {removed:.0%} of FedAvg's squared distance to the target"
    samples = f"{weights.effective_samples:,.0f} of {weights.counts.total:,.0f} samples"
    if weights.ess < _FEW:
        return (
            f"{effect}, but leave the effect of only {samples}: the model may become noisy, "
            "so compare it with a larger --ess on validation data."
        )
    if weights.squared_distance > _SAME and weights.squared_distance > 2 * weights.projection_squared_distance:
        return f"{effect} and keep the effect of {samples}; a smaller --ess would come closer still."
    return f"{effect} and keep the effect of {samples}: use them."
