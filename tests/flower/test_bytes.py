"""Bytes that a stranger chose: whatever a reply holds, it is read or refused, and nothing large is allocated."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedpals.engine.refusal import Refused, why_refused
from fedpals.engine.roster import Introduction, Roster
from fedpals.flower import messages
from fedpals.flower.arrays import Layout, load
from fedpals.methods import ClientRule, build_method
from fedpals.rng import generator
from fedpals.shift import FeatureSums, HeldOutFeatures, Tally
from fedpals.shift.candidates import Comparison

MUTATIONS = 1500
LABELS = 3

rng = generator(0, "bytes")
GLOBAL = ArrayRecord(
    {
        "weight": Array(rng.normal(size=(2, 3)).astype(np.float32)),
        "half": Array(np.ones(2, np.float16)),
        "seen": Array(np.array(7)),
    }
)
LAYOUT = Layout.of(GLOBAL)
LOGITS = rng.normal(size=(20, LABELS))
Y = rng.integers(LABELS, size=20)
SUMS: dict[type[Any], Any] = {
    Tally: Tally.of(Y, LOGITS),
    Comparison: Comparison.of(Y, [LOGITS, 2 * LOGITS]),
    FeatureSums: FeatureSums.of(LOGITS, Y, LABELS),
    HeldOutFeatures: HeldOutFeatures(LOGITS, Y),
}


def npy(shape: str, dtype: str = "'<f4'", data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An npy file with a header as one likes."""
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data


def array(data: bytes) -> Array:
    return Array("float32", (2, 3), "numpy.ndarray", data)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Other bytes: some changed, removed, repeated or cut off, mostly in the header."""
    content = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(min(len(content), 130) if rng.random() < 0.8 else len(content)))
        kind = rng.integers(5)
        if kind == 0:
            content[at] = rng.integers(256)
        elif kind == 1:
            letters = np.frombuffer(b"0123456789(),'{}LOfVUS[]-", np.uint8)
            content[at : at + 1] = rng.choice(letters, size=int(rng.integers(1, 12))).tobytes()
        elif kind == 2:
            del content[at : at + int(rng.integers(1, 9))]
        elif kind == 3:
            content[at:at] = content[at : at + int(rng.integers(1, 40))]
        else:
            del content[max(at, 1) :]
        content = content or bytearray(b"\x93")
    return bytes(content)


def replaced(record: ArrayRecord, key: str, data: bytes) -> ArrayRecord:
    old = record[key]
    return ArrayRecord({**record, key: Array(old.dtype, old.shape, old.stype, data)})


def outcomes(read: Callable[[bytes], object], data: bytes, mutations: int = MUTATIONS) -> tuple[int, int]:
    """How many mutations are read, and how many refused; anything else fails."""
    rng, read_count = generator(1, "mutations"), 0
    for _ in range(mutations):
        changed = mutated(data, rng)
        try:
            read(changed)
            read_count += 1
        except Refused:
            continue
    return read_count, mutations - read_count


@pytest.mark.parametrize("key", list(GLOBAL))
def test_the_arrays_of_an_update(key: str) -> None:
    def read(data: bytes) -> None:
        content = RecordDict({"arrays": replaced(GLOBAL, key, data)})
        update = messages.read_update(content, LAYOUT, ClientRule())
        assert why_refused(update, LAYOUT.vector(GLOBAL)) is None or not torch.isfinite(update.vector).all()

    _, refused = outcomes(read, GLOBAL[key].data)
    assert refused > MUTATIONS / 2


def test_the_vector_of_a_rule() -> None:
    rule = build_method("scaffold").rule
    vector = ArrayRecord({"vector": Array(np.ones(8, np.float32))})

    def read(data: bytes) -> None:
        content = RecordDict({"arrays": GLOBAL, "fedpals.rule": ConfigRecord({"name": rule.name})})
        content["fedpals.client"] = replaced(vector, "vector", data)
        messages.read_update(content, LAYOUT, rule)

    _, refused = outcomes(read, vector["vector"].data)
    assert refused > MUTATIONS / 2


@pytest.mark.parametrize("kind", list(SUMS))
def test_tallies_comparisons_and_features(kind: Any) -> None:
    record = messages.sums(SUMS[kind]).array_records["fedpals.sums"]
    for key in record:

        def read(data: bytes, key: str = key) -> None:
            messages.read_sums(RecordDict({"fedpals.sums": replaced(record, key, data)}), kind)

        _, refused = outcomes(read, record[key].data, MUTATIONS // 3)
        assert refused > MUTATIONS / 6


NUMBERS: list[Any] = [
    *(0, 1, -1, 3, 2**53, 2**63, -(2**63), 10**400, True),
    *(0.0, 0.5, -0.0, 1e308, float("nan"), float("inf"), -float("inf")),
    *([], [1], [10**400] * 3, [float("nan")] * 3, [1e308, 1e308, 1e308], [2**62] * 3, [-5, 9, 9], [-9, 1, 1]),
]


def record_of(**values: Any) -> MetricRecord:
    """A record as a stranger may send it, beyond what Flower's own constructor accepts."""
    record = MetricRecord()
    record.__dict__["_data"].update(values)
    return record


@pytest.mark.parametrize("counts", NUMBERS, ids=range(len(NUMBERS)))
@pytest.mark.parametrize("epsilon", [None, 1.0, 0.0, float("nan"), float("inf")])
def test_label_counts(counts: Any, epsilon: Any) -> None:
    for client in NUMBERS:
        for held_out in (0, -1, 2**70, 1.5, [3]):
            values = {"counts": counts, "client": client, "held-out": held_out, "epsilon": epsilon}
            content = RecordDict({"fedpals.labelcounts": record_of(**values)})
            roster = Roster[int](LABELS, 1000)
            roster.hear({1: Introduction([5.0, 5.0, 5.0])})
            try:
                introduction = messages.read_labelcounts(content)
            except Refused:
                continue
            roster.hear({7: introduction})
            assert len(roster.members) + len(roster.refused) == 2
            assert roster.counts.total <= 1015
            assert all(0 <= member.held_out <= 2**53 for member in roster.members)


@pytest.mark.parametrize("loss", NUMBERS, ids=range(len(NUMBERS)))
def test_losses(loss: Any) -> None:
    assert isinstance(messages.read_loss(RecordDict({"metrics": record_of(loss=loss)})), float)
    content = RecordDict({"arrays": GLOBAL, "metrics": record_of(train_loss=loss)})
    try:
        messages.read_update(content, LAYOUT, ClientRule())
    except Refused as refusal:
        assert "OverflowError" in str(refusal)  # noqa: PT017 -- reading it is just as well


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (npy("(100000000000,)"), r"is float32 \(100000000000,\) instead of float32 \(2, 3\)"),
        (npy("(2, 3)"), "claims 24 bytes, but 0 were sent"),
        (npy("(2, 3)", data=bytes(25)), "claims 24 bytes, but 25 were sent"),
        (npy("(2, 3)", dtype="'|O'", data=bytes(48)), r"is object \(2, 3\) instead"),
        (npy("(2, 3)", dtype="'>f4'", data=bytes(24)), "is >f4 .* instead"),
        (npy("(" * 900 + ")" * 900), "cannot be read"),
        (npy("(2, 3)", data=bytes(24), version=b"\x09\x09"), "cannot be read"),
        (b"", "cannot be read"),
    ],
    ids=range(8),
)
def test_headers_that_lie(data: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=f"'weight' {reason}"):
        LAYOUT.vector(replaced(GLOBAL, "weight", data))


def test_a_claim_of_terabytes_allocates_nothing() -> None:
    liars = [npy("(1000000000000,)"), npy("(1000000, 1000000)", "'<f8'"), npy("(-1, -8)", "'<f8'", bytes(64))]
    tracemalloc.start()
    try:
        for data in liars:
            with pytest.raises(Refused, match=r"claims \d+ bytes, but 0 were sent|no array of numbers"):
                load("sums", array(data))
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("order", ["C", "F"])
def test_honest_arrays_of_either_order_are_read(order: Any) -> None:
    value = np.asarray(rng.normal(size=(4, 5)), order=order)
    assert np.array_equal(load("x", Array(value)), value)
    assert load("x", Array(value)).flags.writeable


def test_noise_without_a_size_makes_an_empty_client() -> None:
    roster = Roster[int](LABELS)
    roster.hear({1: Introduction([-4.0, 1.0, 1.0], epsilon=1.0)})
    assert roster.members[0].counts == (0, 0, 0)
