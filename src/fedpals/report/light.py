"""A traffic light for a federation and its runs: what was checked, and what each check says, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpals.report.advice import coverage_sentence, mismatch, percent
from fedpals.report.majority import Majority
from fedpals.shift import Homogeneity, Light
from fedpals.weights import Weights

_ORDER: tuple[Light, ...] = ("green", "amber", "red")
_SMALL_MISMATCH, _LARGE_MISMATCH = 0.05, 0.2
"""Shares of wrong samples in the best mix up to which the light is green, and amber."""
_LOW_ESS = 0.25
"""Effective sample size below which weights are noisy."""
_MOST_WEIGHT, _ALL_WEIGHT = 0.5, 0.995
"""Share of the weight from which clients cannot just be left out, and from which it is all of it."""
_WIDE_ERROR = 0.05
"""Standard error of an estimate above which it says little."""


@dataclass(frozen=True)
class Check:
    """What was checked, with its light."""

    light: Light
    text: str


def worst(checks: Sequence[Check]) -> Light:
    """Return the light of the worst check; green without any.

    >>> worst([Check("green", ""), Check("amber", "")])
    'amber'
    """
    return max((check.light for check in checks), key=_ORDER.index, default="green")


def check_coverage(limit: Weights, where: str = "") -> Check:
    """Say whether the clients can match the target's labels; ``limit`` are the weights at λ → 0⁺."""
    least = mismatch(limit.target, limit.projection.point)
    light: Light = "green" if least <= _SMALL_MISMATCH else "amber" if least <= _LARGE_MISMATCH else "red"
    return Check(light, f"The target{where} is {coverage_sentence(limit)}.")


def check_ess(method: str, ess: float) -> Check:
    """Say whether a method's weights keep enough samples."""
    if ess < _LOW_ESS:
        return Check("amber", f"{method} keeps the effect of {percent(ess)} of the samples: its models may be noisy.")
    return Check("green", f"{method} keeps the effect of {percent(ess)} of the samples.")


def check_label_shift(test: Homogeneity, carried: Mapping[str, Mapping[str, float]] | None = None) -> Check:
    """Say whether clients differ by more than their labels.

    ``carried`` are the weights by method and client: to leave out those that carry most of it would be no advice.
    """
    for method, weights in (carried or {}).items():
        share = sum(weights.get(client, 0.0) for client in test.leave_out)
        if share >= _MOST_WEIGHT:
            names, several = " and ".join(f"client {name}" for name in test.leave_out), len(test.leave_out) > 1
            weight = "all the weight" if share >= _ALL_WEIGHT else f"{percent(share)} of the weight"
            return Check(
                test.light,
                f"{test.finding}: {names} {'differ' if several else 'differs'} from the others, and "
                f"{'carry' if several else 'carries'} {weight} of {method}. Ask what differs there before you use the "
                "model.",
            )
    return Check(test.light, test.advice)


def check_guess(majority: Majority, models: Sequence[str]) -> Check | None:
    """Name the models that are no better than always predicting the target's most frequent label; None without any."""
    return Check("amber", majority.warning(models)) if models else None


def check_refusals(refused: int, asked: int) -> Check:
    """Say how many updates of clients were refused, of those that were asked for."""
    if not refused:
        return Check("green", "No update of a client was refused.")
    light: Light = "red" if refused > asked / 2 else "amber"
    return Check(light, f"{refused:,} of {asked:,} updates were refused: see their reasons below.")


def check_divergence(diverged: Sequence[str]) -> Check | None:
    """Name the runs that diverged; None if there are none."""
    if not diverged:
        return None
    return Check("red", f"Diverged: {', '.join(diverged)}. Try a smaller learning rate.")


def check_estimate(error: float | None, unseen: float = 0.0) -> Check:
    """Say how precise the estimates of target accuracy are, from the largest of their standard errors.

    ``unseen`` is the share of the target whose labels no client has, which estimates cannot know of.
    """
    if error is None:
        return Check("amber", "Target accuracy cannot be estimated: let clients hold samples out (held_out = 0.1).")
    said = f"Estimates of target accuracy have a standard error of up to {100 * error:.1f} points"
    if unseen > 0:
        left_out = (
            f"{said}, and leave out {percent(unseen)} of the target, whose labels no client has: "
            "all of it may be wrong."
        )
        return Check("red" if unseen > _WIDE_ERROR else "amber", left_out)
    return Check("amber", f"{said}: wide.") if error > _WIDE_ERROR else Check("green", f"{said}.")
