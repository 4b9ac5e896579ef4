"""What server and clients tell each other, as Flower records.

A training message holds the arrays and the config that Flower's own FedAvg would send; where the client
rule is not plain SGD, the rule with its options and the vectors it keeps are added. Nothing in a
message depends on the target, on α or on the counts of other clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedpals.engine.client import Update
from fedpals.engine.refusal import Refused
from fedpals.errors import InputError
from fedpals.flower.arrays import Layout, load, pack, unpack
from fedpals.methods import METHODS, ClientRule
from fedpals.shift import FeatureSums, HeldOutFeatures, Tally

Value = TypeVar("Value")
Sums = TypeVar("Sums", Tally, FeatureSums, HeldOutFeatures)

LABELCOUNTS = "query.labelcounts"
LOSS = "query.loss"
TALLY = "query.tally"
FEATURESUMS = "query.featuresums"
FEATURES = "query.features"

_OURS = "fedpals."
_RULE, _SERVER, _CLIENT, _COUNTS, _SUMS = (_OURS + name for name in ("rule", "server", "client", "labelcounts", "sums"))


def client_rules() -> dict[str, type[ClientRule]]:
    """Return the client rules that this machine has, by name; a user's own once they are registered."""
    rules: list[type[ClientRule]] = [ClientRule, *(entry.rule for entry in METHODS.values() if entry.rule)]
    return {rule.name: rule for rule in rules}


def job(rule: ClientRule, server: Tensor | None, client: Tensor | None) -> dict[str, ArrayRecord | ConfigRecord]:
    """Return what a training message adds to arrays and config."""
    added: dict[str, ArrayRecord | ConfigRecord] = {}
    if rule != ClientRule():
        added[_RULE] = ConfigRecord({"name": rule.name, **asdict(rule)})
    if server is not None:
        added[_SERVER] = pack(server)
    if client is not None:
        added[_CLIENT] = pack(client)
    return added


def read_job(content: RecordDict) -> tuple[ClientRule, Tensor | None, Tensor | None]:
    """Return the rule to train with, and its vectors of the server and of this client."""
    told = dict(content.config_records.get(_RULE, {"name": ClientRule.name}))
    name = str(told.pop("name"))
    rules = client_rules()
    if name not in rules:
        raise InputError(
            f"the server asks for the client rule {name!r}, and this client has {', '.join(rules)}; update fedpals, or "
            "register the rule here too (fedpals.register)"
        )
    options: dict[str, Any] = told
    vectors = [unpack(content.array_records[key]) if key in content else None for key in (_SERVER, _CLIENT)]
    return rules[name](**options), vectors[0], vectors[1]


def read_round(content: RecordDict) -> int:
    """Return the number of the round, which Flower's strategies put into their config."""
    number = next(config["server-round"] for config in own(content.config_records).values())
    if not isinstance(number, int):
        raise InputError(f"server-round is {number!r}; it must be a whole number")
    return number


def own(records: Mapping[str, Value]) -> dict[str, Value]:
    """Leave out the records that are ours."""
    return {key: value for key, value in records.items() if not key.startswith(_OURS)}


def answer(
    arrays: ArrayRecord,
    metrics: Mapping[str, float],
    rule: ClientRule,
    state: Tensor | None,
    counts: Sequence[int] | None,
) -> RecordDict:
    """Return the reply to a training message; it confirms the rule and repeats the counts it trained on.

    None for counts that it keeps to itself.
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
    # Every look at `content.array_records` makes a new dictionary of them, so all records are sorted in one pass.
    arrays = [record for key, record in own(content).items() if isinstance(record, ArrayRecord)]
    if len(arrays) != 1:
        raise Refused(f"{len(arrays)} ArrayRecords instead of one")
    if rule != ClientRule():
        told = content.get(_RULE)
        if not isinstance(told, ConfigRecord) or told.get("name") != rule.name:
            raise Refused(f"it does not say that it trained with the client rule {rule.name!r}")
    kept = content.get(_CLIENT)
    state = unpack(kept) if isinstance(kept, ArrayRecord) else None
    return Update(layout.vector(arrays[0]), metrics_of(content).get("train_loss"), 0, state)


def metrics_of(content: RecordDict) -> dict[str, float]:
    """Return the numbers of a reply's own metrics."""
    return {
        key: float(value)
        for record in own(content).values()
        if isinstance(record, MetricRecord)
        for key, value in record.items()
        if isinstance(value, int | float)
    }


@dataclass(frozen=True)
class Introduction:
    """What a client says about itself, once."""

    counts: Sequence[float]
    """K numbers of training samples, with noise where there is an ``epsilon``."""
    number: int | None = None
    """Its partition, where it has one."""
    held_out: int = 0
    """Samples that it holds out and tallies when asked."""
    epsilon: float | None = None
    """ε of the noise in its counts."""


def labelcounts(told: Introduction) -> RecordDict:
    """Return the reply to `LABELCOUNTS`."""
    record = _counts(told.counts)
    if told.number is not None:
        record["client"] = told.number
    if told.held_out:
        record["held-out"] = told.held_out
    if told.epsilon is not None:
        record["epsilon"] = float(told.epsilon)
    return RecordDict({_COUNTS: record})


def read_labelcounts(content: RecordDict) -> Introduction:
    """Return what a client says about itself, or raise `Refused`."""
    record = content.get(_COUNTS)
    counts = record.get("counts") if isinstance(record, MetricRecord) else None
    if not isinstance(record, MetricRecord) or not isinstance(counts, list):
        raise Refused("it tells no label counts; add fedpals.flower.add_labelcounts to its app")
    number, held_out, epsilon = (record.get(key) for key in ("client", "held-out", "epsilon"))
    return Introduction(
        [float(count) for count in counts],
        number if isinstance(number, int) else None,
        held_out if isinstance(held_out, int) else 0,
        epsilon if isinstance(epsilon, float) else None,
    )


def repeats_labelcounts(content: RecordDict) -> bool:
    """Return whether a training reply repeats the client's counts."""
    return _COUNTS in content


def loss(value: float) -> RecordDict:
    """Return the reply to `LOSS`."""
    return RecordDict({"metrics": MetricRecord({"loss": float(value)})})


def read_loss(content: RecordDict) -> float:
    """Return the loss in a reply to `LOSS`; NaN where there is none."""
    return metrics_of(content).get("loss", math.nan)


def sums(told: Tally | FeatureSums | HeldOutFeatures) -> RecordDict:
    """Return the reply to `TALLY`, `FEATURESUMS` or `FEATURES`: an array for every field."""
    return RecordDict({_SUMS: ArrayRecord({f.name: Array(np.asarray(getattr(told, f.name))) for f in fields(told)})})


def read_sums(content: RecordDict | str, kind: type[Sums]) -> Sums:
    """Return the sums in a reply; raise `Refused` for what cannot be used, or with why there is no reply."""
    if isinstance(content, str):
        raise Refused(content)
    record, wanted = content.get(_SUMS), [f.name for f in fields(kind)]
    if not isinstance(record, ArrayRecord) or sorted(record) != sorted(wanted):
        raise Refused(f"it tells no {kind.__name__} of {', '.join(wanted)}")
    values = {name: load(name, record[name]) for name in wanted}
    # Other whole numbers may not fit when they are added up.
    if strange := [name for name, value in values.items() if value.dtype not in (np.int64, np.float64)]:
        raise Refused(f"{strange[0]!r} is {values[strange[0]].dtype} instead of int64 or float64")
    try:
        return kind(**values)
    except InputError as error:
        raise Refused(str(error)) from None


def _counts(counts: Sequence[float]) -> MetricRecord:
    return MetricRecord({"counts": [int(count) for count in counts]})
