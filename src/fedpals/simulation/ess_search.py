"""The effective sample size chosen without a target sample: the paper's grid, by the clients' own estimate.

One run per ESS of the grid, with the same clients, seed and held-out samples. In each of them the clients'
estimate of target accuracy (`fedpals.shift.risk`) selects a round; of these rounds the best names the ESS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpals.errors import InputError
from fedpals.methods import options_of
from fedpals.shift import pooled, target_accuracy
from fedpals.shift.evaluation import Correction, Evaluation, SelectedBy
from fedpals.simulation.record import Record
from fedpals.simulation.run import DEFAULT_METHOD, HELD_OUT, Run
from fedpals.simulation.server_view import counts_and_target
from fedpals.weights import ess_grid, solve

_DIGITS = 4
"""Decimals of an ESS, so that it can be typed again."""


@dataclass(frozen=True)
class Candidate:
    """An ESS, and what its selected round is worth."""

    ess: float
    lam: float
    round: int
    """Selected by ``estimate``."""
    estimate: float
    """Target accuracy as the clients' held-out samples estimate it."""
    standard_error: float | None
    """Of ``estimate``; None where no label has two samples."""
    validation: float | None
    """Accuracy on validation data of the target, which only a simulation has; chooses nothing."""
    test: float | None
    """Accuracy on test data of the target; chooses nothing."""


def ess_runs(settings: Mapping[str, Any], values: int = 4, data_folder: Path | None = None) -> list[Run]:
    """Return the runs to compare: ``settings`` at ``values`` equidistributed ESS, ascending, and at 100 %.

    The grid lies between the ESS of λ → 0⁺ and FedAvg's 100 %. It is made from what the server knows: label
    counts without the held-out samples, and T.

    Parameters
    ----------
    settings
        Keys of a run, without ``ess`` and ``lam``; clients hold out 10 % unless ``held_out`` is among them.
    values
        l, how many ESS besides 100 %.
    data_folder
        Where to look for official files first.
    """
    keys = {"held_out": HELD_OUT, **settings}
    method = str(keys.get("method", DEFAULT_METHOD))
    if given := [key for key in ("ess", "lam") if key in keys]:
        raise InputError(f"{given[0]} is {keys[given[0]]}, but it is what is to be chosen; leave it out")
    if "ess" not in options_of(method):
        raise InputError(f"method is {method!r}, which has no ESS to choose; join it with fedpals, as fedprox+fedpals")
    fedavg = Run.of({**keys, "ess": 1.0})
    known = counts_and_target(fedavg, fedavg.build_federation(data_folder))
    grid = ess_grid(*known, values, max_weight=fedavg.method.options.get("max_weight"))
    return [*(Run.of({**keys, "ess": round(weights.ess, _DIGITS)}) for weights in grid), fedavg]


def candidate(record: Record, correction: Correction = Correction.PRIOR) -> Candidate:
    """Read from a finished run with held-out samples what its ESS is worth."""
    view = record.server_view()
    selected = record.result().selected.get(Evaluation.of(correction, SelectedBy.ESTIMATE))
    ess = record.run.method.options.get("ess")
    scores = None if selected is None else record.lines()[selected.round - 1].scores(correction)
    if selected is None or not isinstance(ess, float) or scores is None or scores.clients is None:
        raise InputError(f"{record.path}: not a run with ess and held_out, hence no candidate")
    return Candidate(
        ess=ess,
        lam=solve(view.counts, view.target, ess=ess, max_weight=record.run.method.options.get("max_weight")).lam,
        round=selected.round,
        estimate=selected.score,
        standard_error=scores.clients.standard_error,
        validation=None if scores.validation is None else scores.validation.accuracy,
        test=None if scores.test is None else scores.test.accuracy,
    )


def unseen(record: Record) -> tuple[list[str], float]:
    """Return labels of the target that nobody held out, and their share of it: the estimate is about the rest."""
    view = record.server_view()
    estimate = target_accuracy(pooled(record.tallies()), view.target)
    return [view.labels[y] for y in estimate.unseen], estimate.unseen_share


def best_candidate(candidates: Sequence[Candidate]) -> int:
    """Return the number of the best candidate by the clients' estimate alone; of equals the largest ESS.

    A larger ESS averages over more samples, which nothing but the estimate can speak against.

    >>> few, many = (Candidate(ess, 1.0, 9, 0.9, 0.01, 0.8, 0.8) for ess in (0.25, 0.5))
    >>> best_candidate([few, many])
    1
    """
    if not candidates:
        raise InputError("no candidates to choose from")
    return max(range(len(candidates)), key=lambda i: (candidates[i].estimate, candidates[i].ess))
