"""The messages between server and sites, as FLARE's models.

A training message holds the global arrays and the number of the round, as FLARE's own FedAvg sends them. If the client
rule is not plain SGD, the rule with its options and its vectors is in the meta data. No message depends on the target,
on α or on the counts of other sites, except for a rule's vector of the server: SCAFFOLD's is a mean with weights α, and
IW-ERM's tells T, which is why it is sent only where the user says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from torch import Tensor

from fedpals.engine.client import Update
from fedpals.engine.layout import Layout, Values
from fedpals.engine.refusal import Refused, refusing
from fedpals.engine.roster import Introduction
from fedpals.errors import InputError
from fedpals.methods import ClientRule
from fedpals.methods.description import describe_rule, described_rule

TRAIN = "train"
LABEL_COUNTS = "fedpals.label_counts"
LOSS = "fedpals.loss"

_RULE, _SERVER, _CLIENT, _COUNTS, _EPSILON = (
    f"fedpals.{name}" for name in ("rule", "server", "client", "counts", "epsilon")
)
_TRAIN_LOSS = "train_loss"


def question() -> FLModel:
    """Return the message that asks for label counts."""
    return FLModel(params={})


def label_counts(introduction: Introduction) -> FLModel:
    """Return the answer to `LABEL_COUNTS`."""
    meta: dict[str, Any] = {_COUNTS: [int(count) for count in introduction.counts]}
    if introduction.epsilon is not None:
        meta[_EPSILON] = float(introduction.epsilon)
    return FLModel(metrics={}, meta=meta)


def read_label_counts(answer: FLModel) -> Introduction:
    """Return the introduction in an answer, or raise `Refused`."""
    counts, epsilon = answer.meta.get(_COUNTS), answer.meta.get(_EPSILON)
    if counts is None:
        raise Refused("it sends no label counts; call fedpals.nvflare.send_label_counts in its script")
    return Introduction(_counts(counts), epsilon=epsilon if isinstance(epsilon, float) else None)


def job(
    arrays: Mapping[str, Values],
    number: int,
    rounds: int,
    rule: ClientRule,
    server: Tensor | None,
    client: Tensor | None,
) -> FLModel:
    """Return a training message: the arrays, the round's ``number`` from 1, and what the client rule needs."""
    meta: dict[str, Any] = {}
    if rule != ClientRule():
        meta[_RULE] = describe_rule(rule)
    meta |= {key: vector.numpy() for key, vector in ((_SERVER, server), (_CLIENT, client)) if vector is not None}
    # FLARE counts rounds from 0.
    return FLModel(params=dict(arrays), current_round=number - 1, total_rounds=rounds, meta=meta)


def read_job(message: FLModel) -> tuple[ClientRule, int, Tensor | None, Tensor | None]:
    """Return the rule to train with, the round's number, and the rule's vectors for the server and for this client."""
    if message.current_round is None:
        raise InputError("the server's message has no current_round; its controller must be fedpals.nvflare's")
    server, client = (
        None if (value := message.meta.get(key)) is None else _vector(value) for key in (_SERVER, _CLIENT)
    )
    return described_rule(message.meta.get(_RULE, {"name": ClientRule.name})), message.current_round + 1, server, client


def answer(arrays: Mapping[str, Any], update: Update, rule: ClientRule, counts: Sequence[int] | None) -> FLModel:
    """Return the answer to a training message; it confirms the rule and repeats the label counts.

    ``counts`` is None if they are not to be repeated.
    """
    meta: dict[str, Any] = {} if counts is None else {_COUNTS: list(counts)}
    if rule != ClientRule():
        meta[_RULE] = {"name": rule.name}
    if update.state is not None:
        meta[_CLIENT] = update.state.numpy()
    return FLModel(params=dict(arrays), metrics={_TRAIN_LOSS: update.loss}, meta=meta)


def read_update(answer: FLModel, layout: Layout, start: Tensor, rule: ClientRule) -> tuple[Update, list[float] | None]:
    """Return the update in an answer, and the label counts if it repeats them; raise `Refused` if it has none."""
    if not isinstance(answer.params, Mapping):
        raise Refused("it sends no parameters")
    with refusing("the update"):
        if kinds := sorted({type(value).__name__ for value in answer.params.values()} - {"ndarray"}):
            raise Refused(f"its parameters are of type {kinds[0]} instead of numpy arrays")
        confirmed = answer.meta.get(_RULE)
        name = confirmed.get("name") if isinstance(confirmed, Mapping) else None
        if rule != ClientRule() and (not isinstance(name, str) or name != rule.name):
            raise Refused(f"it does not confirm that it trained with the client rule {rule.name!r}")
        state, counts = answer.meta.get(_CLIENT) if rule.keeps_vectors else None, answer.meta.get(_COUNTS)
        vector = layout.flatten(answer.params)
        if answer.params_type == ParamsType.DIFF:
            vector = start + vector
        update = Update(vector, _metric(answer, _TRAIN_LOSS), 0, None if state is None else _vector(state))
    return update, None if counts is None else _counts(counts)


def loss(value: float) -> FLModel:
    """Return the answer to `LOSS`."""
    return FLModel(metrics={"loss": value})


def read_loss(answer: FLModel | str) -> float:
    """Return the loss in an answer; NaN if there is none."""
    try:
        with refusing("the loss"):
            value = None if isinstance(answer, str) else _metric(answer, "loss")
    except Refused:
        return math.nan
    return math.nan if value is None else value


def _metric(answer: FLModel, key: str) -> float | None:
    """Return a number that a site reports, if any."""
    value = answer.metrics.get(key) if isinstance(answer.metrics, Mapping) else None
    return float(value) if isinstance(value, int | float | np.number) else None


def _counts(values: Any) -> list[float]:
    with refusing("its label counts"):
        counts = np.asarray(values)
        if counts.ndim != 1 or counts.dtype.kind not in "ui":
            raise Refused("its label counts are not whole numbers, one per label")
        return [float(count) for count in counts]


def _vector(value: Any) -> Tensor:
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or value.ndim != 1:
        shape = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise Refused(f"the rule's vector is {shape} instead of a flat float32")
    return torch.from_numpy(np.ascontiguousarray(value))
