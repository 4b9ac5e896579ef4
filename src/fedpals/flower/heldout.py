"""Sums that clients compute for a model, and their use: its target accuracy, the best round, a test, a last layer.

A client that does not answer, or whose sums are impossible, is named in the log and left out.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from fedpals.engine.last_layer import gaussian_layer, recommended_layer
from fedpals.engine.refusal import Refused
from fedpals.errors import InputError
from fedpals.flower import messages
from fedpals.flower.session import BestModel, Session
from fedpals.labels import Vector
from fedpals.methods import Method
from fedpals.shift import (
    FeatureSums,
    Head,
    HeldOutFeatures,
    Homogeneity,
    Tally,
    homogeneity,
    pooled,
    target_accuracy,
)
from fedpals.shift.candidates import Comparison, pooled_comparison
from fedpals.shift.gaussian import WIDEST

_log = logging.getLogger("flwr")
_SHOWN_LABELS = 10
"""Number of labels in a line of the log."""


def estimate(session: Session, rows: Sequence[int], key: str) -> dict[str, float]:
    """Ask clients that hold samples out for tallies of the model; return its estimated target accuracy as metrics.

    The session's state keeps the tallies, and the model if it is better than all earlier ones. ``key`` is the name of
    the arrays in messages.
    """
    state = session.state
    assert session.server is not None

    def check(row: int, tally: Tally) -> None:
        if len(tally.loss) != session.roster.labels:
            raise Refused(f"a tally of {len(tally.loss)} labels instead of {session.roster.labels}")
        _check_held_out(session, row, tally.confusion.sum(axis=1, dtype=float), "a tally of")

    rows = session.roster.holders(rows)
    tallies = _collect(session, Tally, messages.TALLY, rows, RecordDict({key: session.model}), check)
    if not tallies:
        return {}
    state.tallies = tallies
    try:
        accuracy = target_accuracy(pooled(list(tallies.values())), session.server.target)
    except InputError as error:
        _log.warning("round %d: target accuracy cannot be estimated: %s", state.round, error)
        return {}
    if state.best is None or accuracy.value > state.best.score:
        state.best = BestModel(state.round, accuracy.value, state.model.clone())
    metrics = {"target_accuracy_estimate": accuracy.value}
    if math.isfinite(accuracy.standard_error):
        metrics["target_accuracy_standard_error"] = accuracy.standard_error
    _log.info(
        "round %d: target accuracy %.1f ± %.1f %%, estimated by %d clients whose labels cover %.1f %% of the target",
        state.round,
        100 * accuracy.value,
        100 * accuracy.standard_error,
        len(tallies),
        100 * (1 - accuracy.unseen_share),
    )
    return metrics


def choose_method(session: Session, target: Vector, given: Method, if_held_out: Method | None) -> Method:
    """Return the method of a run: the ``given`` one, or ``if_held_out`` if the clients can choose its ESS for T.

    They can if those that hold samples out have all labels of T that any client has; else the estimates would leave
    out a part of T that matters, and a single client without any label of T would make FedPALS FedAvg.

    Raises
    ------
    InputError
        If the given method chooses and nobody holds samples out.
    """
    roster = session.roster
    present = roster.present.tolist()
    holders = roster.holders(present)
    if given.weighting.chooses and not holders:
        raise InputError(
            "ess is 'auto', but no client holds samples out to choose with: let them, as in "
            "Trainee(..., held_out=0.1), or give a number, as ess=0.5"
        )
    if if_held_out is None or not holders:
        return given
    some = f"{len(holders)} of {len(present)} clients hold samples out"
    anybody, held_out = (np.any([roster.members[row].counts for row in rows], axis=0) for rows in (present, holders))
    lacking = np.flatnonzero((target > 0) & anybody & ~held_out)
    if lacking.size:
        shown = ", ".join(map(str, lacking[:_SHOWN_LABELS])) + (", …" if lacking.size > _SHOWN_LABELS else "")
        _log.warning(
            "%s, but none of them has these labels of the target: %s; the ESS cannot be chosen for it, and %s stays: "
            "let clients with these labels hold samples out, or give ess or lam",
            some,
            shown,
            given.full_title,
        )
        return given
    _log.info("%s: %s is taken; give ess or lam to decide yourself", some, if_held_out.full_title)
    return if_held_out


def compare(session: Session, rows: Sequence[int], vectors: Sequence[Tensor]) -> Comparison | str:
    """Ask clients that hold samples out to compare models; return why not if nobody does."""
    shape = session.roster.labels, len(vectors)

    def check(row: int, comparison: Comparison) -> None:
        if comparison.loss.shape != shape:
            raise Refused(f"a comparison of {comparison.loss.shape} labels × models instead of {shape}")
        _check_held_out(session, row, comparison.samples.astype(float), "a comparison on")

    rows = session.roster.holders(rows)
    if not rows:
        return "no participant holds samples out"
    content = messages.candidates([session.layout.record(vector) for vector in vectors])
    answers = _collect(session, Comparison, messages.COMPARISON, rows, content, check)
    if not answers:
        return f"none of the {len(rows)} clients that hold samples out sent an answer that can be used"
    return pooled_comparison([answers[row] for row in rows if row in answers])


def best(session: Session) -> BestModel:
    """Return the round with the highest estimated target accuracy."""
    if session.state.best is None:
        raise InputError(
            "no round has an estimate: let clients hold samples out, as in Trainee(..., held_out=0.1); with "
            "clip_update nobody is asked for tallies, which carry no noise: use the last round"
        )
    return session.state.best


def tally(session: Session) -> Tally:
    """Return the last tallies, added up."""
    if not session.state.tallies:
        raise InputError("no client sent a tally: let clients hold samples out, as in Trainee(..., held_out=0.1)")
    return pooled(list(session.state.tallies.values()))


def check(session: Session, seed: int) -> Homogeneity:
    """Test label shift with the last tallies; clients without distinct numbers are named by node."""
    members = [session.roster.members[row] for row in session.state.tallies]
    numbers = [str(member.number) for member in members if member.number is not None]
    names = numbers if len(set(numbers)) == len(members) else [str(member.node) for member in members]
    return homogeneity(list(session.state.tallies.values()), seed, clients=names)


def with_gaussian_head(session: Session, rows: Sequence[int], key: str) -> tuple[ArrayRecord, Head]:
    """Ask clients for sums of features; return the model's arrays with the Gaussian head, and the head."""
    weight, bias, width = _last_layer(session)
    head = _gaussian_head(session, rows, key, width)
    return _with_layer(session, weight, bias, head), head


def with_recommended_layer(session: Session, rows: Sequence[int], key: str) -> tuple[ArrayRecord, Head]:
    """Ask also for features of held-out samples; return the arrays with the recommended layer, and the layer."""
    weight, bias, width = _last_layer(session)
    assert session.server is not None
    members, labels = session.roster.members, session.roster.labels or 0

    def check(row: int, answer: HeldOutFeatures) -> None:
        if answer.features.shape != (members[row].held_out, width):
            raise Refused(f"features of {answer.features.shape} instead of {(members[row].held_out, width)}")
        if (answer.labels >= labels).any():
            raise Refused(f"label {answer.labels.max()}, but there are only {labels} labels")

    holders = session.roster.holders(rows)
    answers = _collect(session, HeldOutFeatures, messages.FEATURES, holders, RecordDict({key: session.model}), check)
    if not answers:
        raise InputError(
            "no client sent features of held-out samples: hold samples out, as in Trainee(..., held_out=0.1)"
        )
    gaussian, arrays = _gaussian_head(session, rows, key, width), session.model
    own = Head.of(*(arrays[name].numpy().astype(np.float64) for name in (weight, bias)))
    layer = recommended_layer(own, gaussian, [answers[row] for row in sorted(answers)], session.server)
    return _with_layer(session, weight, bias, layer), layer


def _last_layer(session: Session) -> tuple[str, str, int]:
    """Return the keys of the last layer's weight and bias, and the number of its inputs."""
    if session.server is not None and session.server.protection.private:
        raise InputError(
            "clip_update: sums of features and held-out samples carry no noise, and a last layer made of them would "
            "tell about clients; use the model as it is, and add prior_shift to its logits"
        )
    labels = session.roster.labels or 0
    last = session.layout.last_layer(labels)
    if last is None or last[2] > WIDEST:
        raise InputError(
            f"the arrays do not end in a linear layer with a bias, {labels} labels and at most {WIDEST} features "
            "that the Gaussian head could replace"
        )
    return last


def _gaussian_head(session: Session, rows: Sequence[int], key: str, width: int) -> Head:
    labels = session.roster.labels or 0
    assert session.server is not None

    def check(row: int, answer: FeatureSums) -> None:
        if answer.features.shape != (labels, width):
            raise Refused(f"sums of {answer.features.shape} labels × features instead of {(labels, width)}")
        _check_bound(session, float(answer.samples.sum(dtype=float)))
        session.roster.unchanged(row, answer.samples.tolist())

    sums = _collect(session, FeatureSums, messages.FEATURESUMS, rows, RecordDict({key: session.model}), check)
    return gaussian_layer(list(sums.values()), session.server)


def _with_layer(session: Session, weight: str, bias: str, layer: Head) -> ArrayRecord:
    """Return the model's arrays with another last layer."""
    arrays, values = session.model, {weight: layer.weight, bias: layer.bias}
    last = {name: Array(value.astype(arrays[name].numpy().dtype)) for name, value in values.items()}
    return ArrayRecord({**arrays, **last})


def _collect(
    session: Session,
    kind: type[messages.Sums],
    question: str,
    rows: Sequence[int],
    content: RecordDict,
    check: Callable[[int, messages.Sums], None],
) -> dict[int, messages.Sums]:
    """Ask clients about models; return their answers by row; ``check`` raises `Refused` for an impossible answer."""
    answers: dict[int, messages.Sums] = {}
    if not rows:
        return answers
    for row, reply in session.ask(question, rows, content).items():
        try:
            answer = messages.read_sums(reply, kind)
            check(row, answer)
        except Refused as refusal:
            _log.warning("%s: %s is left out: %s", question, session.name(row), refusal)
        else:
            answers[row] = answer
    return answers


def _check_held_out(session: Session, row: int, samples: Vector, what: str) -> None:
    """Raise `Refused` for another number of held-out samples than a client has said; name it if a label's are too many.

    More of a label than it trains on would be a way to decide alone what is good for the target. A client that claims
    more altogether was named when it joined.
    """
    member = session.roster.members[row]
    if (total := float(samples.sum())) != member.held_out:
        raise Refused(f"{what} {total:g} samples, but it holds {member.held_out} out")
    excess = np.flatnonzero(samples > np.array(member.counts))
    if excess.size and total <= sum(member.counts) and row not in session.named:
        session.named.add(row)
        label = int(excess[0])
        _log.warning(
            "%s claims to hold %d samples of label %d out, more than the %d that it trains on: the estimates, and an "
            "ESS that is chosen by them, depend on whether that is true",
            session.name(row),
            samples[label],
            label,
            member.counts[label],
        )


def _check_bound(session: Session, samples: float) -> None:
    cap = session.roster.cap
    if cap is not None and samples > cap:
        raise Refused(f"it claims {samples:g} samples, more than max_samples={cap}")
