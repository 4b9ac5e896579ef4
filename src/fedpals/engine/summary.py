"""A round in words and numbers, for the log and the metrics of an engine."""

from __future__ import annotations

from fedpals.engine.roster import Name
from fedpals.engine.round import Round
from fedpals.engine.server import Server

_SHOWN_WEIGHTS = 10
"""Number of weights in a line of the log, the largest first."""


def warnings(server: Server, result: Round, name: Name) -> list[str]:
    """Return a line for every client whose update was refused or is far from the others'.

    Also for a cap that is too low, and for candidates that could not be compared.
    """
    policy, lines = server.protection.outliers, []
    weighting, left = server.method.weighting, result.participants.size
    cap, usual = weighting.largest_weight(left), weighting.largest_weight(server.counts.shape[0])
    if cap is not None and usual is not None and cap > usual:
        lines.append(
            f"round {result.number}: only {left} clients are left, whose weights cannot all be below max_weight = "
            f"{usual:g}: each has {cap:.4g}"
        )
    if result.uncompared and result.choice is not None:
        position = server.state.position
        kept = "the one nearest to an ESS of 50 %" if position is None else f"number {position + 1}, as chosen last,"
        lines.append(
            f"round {result.number}: the candidates for the ESS are not compared ({result.uncompared}): {kept} is "
            f"taken, here {100 * result.choice.ess:.1f} %"
        )
    if policy != "refuse":  # otherwise they are among the refused
        done = "it is shortened to the median" if policy == "clip" else "it is used as it is"
        lines += [f"round {result.number}: {name(far.client)}: {far}; {done}" for far in result.outliers]
    return lines + [f"round {result.number}: {name(refusal.client)}: {refusal.reason}" for refusal in result.refused]


def lines(server: Server, result: Round, name: Name) -> list[str]:
    """Return weights, squared distance and ESS of a round; and what its privacy has cost, if it has any."""
    squared_distance, ess = server.achieved(result)
    weights = dict(zip(result.participants.tolist(), result.alpha.tolist(), strict=True))
    rows = sorted((row for row, a in weights.items() if a > 0), key=lambda row: -weights[row])
    shown = ", ".join(f"{name(row)} {weights[row]:.4f}" for row in rows[:_SHOWN_WEIGHTS])
    more = f" and {len(rows) - _SHOWN_WEIGHTS} more" if len(rows) > _SHOWN_WEIGHTS else ""
    achieved = (
        f"round {result.number}: trained {result.trained} of {result.participants.size} participants; "
        f"squared distance {squared_distance:.6f}, ESS {100 * ess:.1f} %; α: {shown}{more}"
    )
    if (spent := result.privacy) is None:
        return [achieved]
    cost = (
        f"round {result.number}: ε = {spent.epsilon:.3f} at δ = {spent.delta:g} for {name(spent.client)}, which has "
        f"spent most; noise of σ = {spent.sigma:.3g}; {spent.clipped} updates shortened"
    )
    return [achieved, cost]


def metrics(server: Server, result: Round) -> dict[str, float | int]:
    """Return what a round achieved."""
    squared_distance, ess = server.achieved(result)
    achieved: dict[str, float | int] = {
        "squared_distance": squared_distance,
        "ess": ess,
        "trained": result.trained,
        "refused": len(result.refused),
    }
    if (spent := result.privacy) is not None:
        achieved |= {"epsilon": spent.epsilon, "delta": spent.delta}
    return achieved
