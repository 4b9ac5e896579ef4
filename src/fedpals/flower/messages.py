"""The messages between server and clients, as Flower records.

A training message holds the arrays and the config that Flower's own FedAvg would send. If the client rule is not plain
SGD, the rule with its options and its vectors is added. No message depends on the target, on α or on the counts of
other clients, except for a rule's vector of the server: SCAFFOLD's is a mean with weights α, and IW-ERM's tells T,
which is why it is sent only where the user says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedpals.engine.client import Update
from fedpals.engine.refusal import Refused, refusing
from fedpals.engine.roster import Introduction
from fedpals.errors import InputError
from fedpals.flower.arrays import Layout, load, pack, unpack
from fedpals.methods import ClientRule
from fedpals.methods.description import describe_rule, described_rule
from fedpals.shift import FeatureSums, HeldOutFeatures, Tally
from fedpals.shift.candidates import Comparison

Value = TypeVar("Value")
Sums = TypeVar("Sums", Tally, Comparison, FeatureSums, HeldOutFeatures)

LABELCOUNTS = "query.labelcounts"
LOSS = "query.loss"
TALLY = "query.tally"
COMPARISON = "query.comparison"
FEATURESUMS = "query.featuresums"
FEATURES = "query.features"

COUNTS_REMEDY = "add to the app: fedpals.flower.add_labelcounts(app, lambda context: counts), K whole numbers"
"""What to do if an app does not say its label counts."""

_PREFIX = "fedpals."
_RULE, _SERVER, _CLIENT, _COUNTS, _SUMS, _CANDIDATE = (
    _PREFIX + name for name in ("rule", "server", "client", "labelcounts", "sums", "candidate")
)


def job(rule: ClientRule, server: Tensor | None, client: Tensor | None) -> dict[str, ArrayRecord | ConfigRecord]:
    """Return the records that a training message adds to arrays and config."""
    records: dict[str, ArrayRecord | ConfigRecord] = {}
    if rule != ClientRule():
        records[_RULE] = ConfigRecord(describe_rule(rule))
    if server is not None:
        records[_SERVER] = pack(server)
    if client is not None:
        records[_CLIENT] = pack(client)
    return records


def read_job(content: RecordDict) -> tuple[ClientRule, Tensor | None, Tensor | None]:
    """Return the rule to train with, and its vectors for the server and for this client."""
    rule = described_rule(content.config_records.get(_RULE, {"name": ClientRule.name}))
    vectors = [unpack(content.array_records[key]) if key in content else None for key in (_SERVER, _CLIENT)]
    return rule, vectors[0], vectors[1]


def read_round(content: RecordDict) -> int:
    """Return the round number from the config of the message."""
    number = next(config["server-round"] for config in own(content.config_records).values())
    if not isinstance(number, int):
        raise InputError(f"server-round is {number!r}; it must be a whole number")
    return number


def own(records: Mapping[str, Value]) -> dict[str, Value]:
    """Return the app's own records, without those of fedpals."""
    return {key: value for key, value in records.items() if not key.startswith(_PREFIX)}


def answer(
    arrays: ArrayRecord,
    metrics: Mapping[str, float],
    rule: ClientRule,
    state: Tensor | None,
    counts: Sequence[int] | None,
) -> RecordDict:
    """Return the reply to a training message; it confirms the rule and repeats the label counts.

    ``counts`` is None if they are not to be repeated.
    """
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(dict(metrics))})
    if counts is not None:
        content[_COUNTS] = _counts(counts)
    content[_RULE] = ConfigRecord({"name": rule.name})
    if state is not None:
        content[_CLIENT] = pack(state)
    return content


def read_update(content: RecordDict, layout: Layout, rule: ClientRule) -> Update:
    """Return the update in a reply, or raise `Refused`."""
    # Each access of `content.array_records` copies all records to a new dictionary, so go through them once.
    arrays = [record for key, record in own(content).items() if isinstance(record, ArrayRecord)]
    if len(arrays) != 1:
        raise Refused(f"{len(arrays)} ArrayRecords instead of one")
    if rule != ClientRule():
        record = content.get(_RULE)
        if not isinstance(record, ConfigRecord) or record.get("name") != rule.name:
            raise Refused(f"it does not confirm that it trained with the client rule {rule.name!r}")
    vector = content.get(_CLIENT)
    with refusing("the update"):
        state = unpack(vector) if rule.keeps_vectors and isinstance(vector, ArrayRecord) else None
        return Update(layout.vector(arrays[0]), metrics_of(content).get("train_loss"), 0, state)


def metrics_of(content: RecordDict) -> dict[str, float]:
    """Return the numeric metrics in a reply."""
    return {
        key: float(value)
        for record in own(content).values()
        if isinstance(record, MetricRecord)
        for key, value in record.items()
        if isinstance(value, int | float)
    }


def labelcounts(introduction: Introduction) -> RecordDict:
    """Return the reply to `LABELCOUNTS`."""
    record = _counts(introduction.counts)
    if introduction.number is not None:
        record["client"] = introduction.number
    if introduction.held_out:
        record["held-out"] = introduction.held_out
    if introduction.epsilon is not None:
        record["epsilon"] = float(introduction.epsilon)
    return RecordDict({_COUNTS: record})


def read_labelcounts(content: RecordDict) -> Introduction:
    """Return the introduction in a reply, or raise `Refused`."""
    record = content.get(_COUNTS)
    counts = record.get("counts") if isinstance(record, MetricRecord) else None
    if not isinstance(record, MetricRecord) or not isinstance(counts, list):
        raise Refused(f"it sends no label counts; {COUNTS_REMEDY}")
    number, held_out, epsilon = (record.get(key) for key in ("client", "held-out", "epsilon"))
    with refusing("its label counts"):
        return Introduction(
            [float(count) for count in counts],
            number if isinstance(number, int) else None,
            held_out if isinstance(held_out, int) else 0,
            epsilon if isinstance(epsilon, float) else None,
        )


def repeats_labelcounts(content: RecordDict) -> bool:
    """Return whether a training reply repeats the client's counts."""
    return _COUNTS in content


def lacks_query(reason: str | None) -> bool:
    """Return whether a client's error says that its app has no answer to a question."""
    return "function registered with name" in (reason or "")


def explained(reply: Message) -> str:
    """Return the error in a reply, with the remedy if the client's app does not know the question."""
    reason, question = reply.error.reason, reply.metadata.message_type
    if lacks_query(reason) and question.startswith("query."):
        return f"its app does not answer {question}; build it with fedpals.flower.client_app, or register an answer"
    return f"error: {(reason or '').removeprefix('Error: ')}"


def loss(value: float) -> RecordDict:
    """Return the reply to `LOSS`."""
    return RecordDict({"metrics": MetricRecord({"loss": float(value)})})


def read_loss(content: RecordDict) -> float:
    """Return the loss in a reply to `LOSS`; NaN if there is none that can be read."""
    try:
        with refusing("the loss"):
            return metrics_of(content).get("loss", math.nan)
    except Refused:
        return math.nan


def candidates(models: Sequence[ArrayRecord]) -> RecordDict:
    """Return the question `COMPARISON`: several models, in ascending order of ESS."""
    return RecordDict({f"{_CANDIDATE}{number}": arrays for number, arrays in enumerate(models)})


def read_candidates(content: RecordDict) -> list[ArrayRecord]:
    """Return the models of a question `COMPARISON`, in their order."""
    models = content.array_records
    return [models[f"{_CANDIDATE}{number}"] for number in range(len(models))]


def sums(values: Tally | Comparison | FeatureSums | HeldOutFeatures) -> RecordDict:
    """Return the reply to `TALLY`, `COMPARISON`, `FEATURESUMS` or `FEATURES`: one array per field."""
    arrays = {field.name: Array(np.asarray(getattr(values, field.name))) for field in fields(values)}
    return RecordDict({_SUMS: ArrayRecord(arrays)})


def read_sums(content: RecordDict | str, kind: type[Sums]) -> Sums:
    """Return the sums in a reply; raise `Refused` if they cannot be used or there is no reply."""
    if isinstance(content, str):
        raise Refused(content)
    record, names = content.get(_SUMS), [field.name for field in fields(kind)]
    if not isinstance(record, ArrayRecord) or sorted(record) != sorted(names):
        raise Refused(f"it sends no {kind.__name__} of {', '.join(names)}")
    values = {name: load(name, record[name]) for name in names}
    # Sums of smaller integers may overflow.
    if invalid := [name for name, value in values.items() if value.dtype not in (np.int64, np.float64)]:
        raise Refused(f"{invalid[0]!r} is {values[invalid[0]].dtype} instead of int64 or float64")
    with refusing(kind.__name__), np.errstate(all="ignore"):
        try:
            return kind(**values)
        except InputError as error:
            raise Refused(str(error)) from None


def _counts(counts: Sequence[float]) -> MetricRecord:
    return MetricRecord({"counts": [int(count) for count in counts]})
