"""Is it label shift at all? Then P(ŷ | y) of one model is the same at every client.

For every label, the held-out samples of the clients form a table, client × predicted label, whose
rows come from one distribution under label shift. Each table is tested (`contingency`), and the
answers are put together in three ways:

- labels: Holm's correction over the labels says which break it;
- clients: a client against all others, Fisher's combination over its labels, Holm's correction over
  clients, says who breaks it; in labels that break it, Holm's correction over clients says who does
  so there;
- overall: three looks, Fisher's combination over labels (a little everywhere), the smallest of the
  labels' and of the clients' p-values (much somewhere). The overall p is three times the smallest,
  and labels and clients are named only where it is at most 0.05.

The light is **green** if p > 0.05 and there were enough samples to see a medium effect (V = 0.3)
with 80 % probability; **red** if p ≤ 0.05 and it matters: V ≥ 0.1 overall, or a client that breaks
it is 10 points more or less often right than the others on the same labels; **amber** otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias

import numpy as np
from scipy.special import chndtrinc
from scipy.stats import chi2

from fedpals.errors import InputError
from fedpals.labels import Vector
from fedpals.rng import generator
from fedpals.shift.contingency import RowTest, compare_rows, cramers_v, fisher, holm
from fedpals.shift.tally import Counts, Tally

Light: TypeAlias = Literal["green", "amber", "red"]

LEVEL = 0.05
"""Probability of a false alarm."""
SMALL_EFFECT = 0.1
"""V from which a violation matters."""
MEDIUM_EFFECT = 0.3
"""V that the test must be able to see for a green light."""
GAP = 0.1
"""Difference in accuracy from which a client that breaks the assumption matters."""
_POWER = 0.8


@dataclass(frozen=True)
class LabelTest:
    """Whether the clients agree on one label."""

    label: str
    samples: int
    clients: int
    """Clients that held out samples of it."""
    p: float
    adjusted_p: float
    """By Holm's correction over labels."""
    effect: float
    """Cramér's V, corrected for bias."""


@dataclass(frozen=True)
class ClientTest:
    """Whether one client agrees with all others, on the labels that it shares with them."""

    client: str
    samples: int
    p: float
    adjusted_p: float
    """By Holm's correction over clients."""
    gap: float
    """Its accuracy minus that of the others on the same labels."""
    evidence: float
    """Σ X² over its labels, in standard deviations above the mean; orders clients even where p is 0."""


@dataclass(frozen=True)
class Break:
    """A client that breaks the assumption in a label that breaks it."""

    client: str
    label: str
    samples: int
    adjusted_p: float
    """By Holm's correction over the label's clients; at least that of the label."""
    accuracy: float
    """Share of the client's samples of this label that are recognised."""
    elsewhere: float
    """The same at all other clients."""


@dataclass(frozen=True)
class Homogeneity:
    """What the clients' tallies say about the assumption of label shift."""

    light: Light
    p: float
    effect: float
    """Cramér's V over all labels, corrected for bias."""
    detectable: float
    """V that would be found with 80 % probability; ∞ where nothing can be tested."""
    labels: tuple[LabelTest, ...]
    """Labels that can be tested."""
    untested: tuple[str, ...]
    """Labels that fewer than two clients held out, or that all predict alike."""
    clients: tuple[ClientTest, ...]
    breaks: tuple[Break, ...]
    """The strongest first."""
    leave_out: tuple[str, ...] = ()
    """The fewest clients found without which the light is no longer red; none unless a quarter of them is enough."""

    @property
    def broken_labels(self) -> tuple[str, ...]:
        """Labels on which the clients differ."""
        return tuple(test.label for test in self.labels if test.adjusted_p <= LEVEL)

    @property
    def broken_clients(self) -> tuple[str, ...]:
        """Clients that differ from the others, the one with the strongest evidence first."""
        found = [test for test in self.clients if test.adjusted_p <= LEVEL]
        return tuple(test.client for test in sorted(found, key=lambda test: -test.evidence))

    @property
    def advice(self) -> str:
        """What to do, in a sentence or two."""
        if self.light == "green":
            return "Nothing speaks against label shift: weights for the target may be trusted."
        if not self.labels:
            return "No label is held out by two clients and predicted in two ways: label shift cannot be checked."
        if self.p > LEVEL:
            return (
                "Too few held-out samples to tell: only differences of V ≥ "
                f"{self.detectable:.2f} would be found. Hold out more samples before you rely on it."
            )
        seen = f"The clients differ within labels (p = {self.p:.2g}, V = {self.effect:.2f})"
        if self.light == "amber":
            return f"{seen}, but so little that weights for the target may be used; watch {_names(self._named)}."
        if self.leave_out:
            named = _names([f"client {name}" for name in self.leave_out])
            return f"{seen}: leave out {named}, without whom it does not matter; or raise the ESS."
        return (
            f"{seen}, and no few clients are to blame: raise the ESS, so that the weights rely less on label shift; "
            f"look at {_names(self._named)}."
        )

    @property
    def _named(self) -> tuple[str, ...]:
        named = [f"client {c}" for c in self.broken_clients] or [f"label {y}" for y in self.broken_labels]
        return tuple(named) or ("all clients",)


def homogeneity(
    tallies: Sequence[Tally],
    seed: int,
    *,
    clients: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
) -> Homogeneity:
    """Test whether P(ŷ | y) is the same at every client.

    Parameters
    ----------
    tallies
        One per client, of the same model, on samples that it was not trained on.
    seed
        Of the draws where counts are small, from the addresses ("homogeneity", label).
    clients, labels
        Names; their numbers by default.
    """
    if len(tallies) < 2:
        raise InputError(f"{len(tallies)} tallies: comparing clients takes at least two")
    shapes = {tally.confusion.shape for tally in tallies}
    if len(shapes) > 1:
        raise InputError(f"tallies are over {' and '.join(str(s[0]) for s in sorted(shapes))} labels; they must agree")
    tables = np.stack([tally.confusion for tally in tallies])
    M, K, _ = tables.shape
    clients, labels = _named("clients", clients, M), _named("labels", labels, K)
    found = _test(tables, clients, labels, seed)
    if found.light == "red":
        found = replace(found, leave_out=_odd_ones_out(tables, clients, labels, seed))
    return found


def _odd_ones_out(tables: Counts, clients: Sequence[str], labels: Sequence[str], seed: int) -> tuple[str, ...]:
    """Take away the client with the strongest evidence until the light is no longer red.

    One client that differs from all others makes them differ from each other, if less; so clients
    are taken away one at a time, by χ² alone, and those that are left are tested in full.
    """
    M = len(clients)
    most = max(1, M // 4) if M > 2 else 0
    kept, out = list(range(M)), list[str]()
    found = _test(tables, clients, labels, None)
    while found.light == "red" and len(out) < most:
        out.append(max(found.clients, key=lambda test: test.evidence).client)
        kept.remove(clients.index(out[-1]))
        found = _test(tables[kept], [clients[i] for i in kept], labels, None)
    if found.light != "red":
        found = _test(tables[kept], [clients[i] for i in kept], labels, seed)
    return tuple(out) if found.light != "red" else ()


def _test(tables: Counts, clients: Sequence[str], labels: Sequence[str], seed: int | None) -> Homogeneity:
    """Test the (M, K, K) confusions of M clients; by χ² alone where there is no seed."""
    M, K, _ = tables.shape
    held = tables.sum(axis=2) > 0
    draws = max(999, math.ceil(max(M, K) / LEVEL))  # for p-values as small as Holm's correction asks for
    tests: dict[int, RowTest] = {}
    for y in range(K):
        rng = None if seed is None else generator(seed, "homogeneity", y)
        if (test := compare_rows(tables[:, y][held[:, y]], rng, draws)) is not None:
            tests[y] = test
    untested = tuple(labels[y] for y in range(K) if y not in tests)
    if not tests:
        return Homogeneity("amber", 1.0, 0.0, math.inf, (), untested, (), ())
    cells = _Cells.of(tables, tests)
    able = np.flatnonzero(cells.samples.any(axis=1))
    label_p, client_p = np.array([test.p for test in tests.values()]), cells.client_p()[able]
    label_adjusted, client_adjusted = holm(label_p), holm(client_p)
    p = min(1.0, 3.0 * min(fisher(label_p), float(label_adjusted.min()), float(client_adjusted.min())))
    by_label = tuple(
        LabelTest(labels[y], test.samples, test.row_p.size, test.p, max(p, float(adjusted)), cramers_v([test]))
        for (y, test), adjusted in zip(tests.items(), label_adjusted, strict=True)
    )
    sizes, gaps, evidence = cells.samples.sum(axis=1), cells.gaps(), cells.evidence()
    by_client = tuple(
        ClientTest(clients[i], int(sizes[i]), float(q), max(p, float(adjusted)), float(gaps[i]), float(evidence[i]))
        for i, q, adjusted in zip(able.tolist(), client_p, client_adjusted, strict=True)
    )
    effect, detectable = cramers_v(list(tests.values())), _detectable(tests.values())
    return Homogeneity(
        light=_light(p, effect, detectable, by_client),
        p=p,
        effect=effect,
        detectable=detectable,
        labels=by_label,
        untested=untested,
        clients=by_client,
        breaks=cells.breaks(clients, by_label),
    )


def _light(p: float, effect: float, detectable: float, clients: Iterable[ClientTest]) -> Light:
    if p > LEVEL:
        return "green" if detectable <= MEDIUM_EFFECT else "amber"
    apart = any(test.adjusted_p <= LEVEL and abs(test.gap) >= GAP for test in clients)
    return "red" if effect >= SMALL_EFFECT or apart else "amber"


@dataclass(frozen=True, eq=False)
class _Cells:
    """What is known of M clients on L testable labels."""

    samples: Counts
    """(M, L)."""
    correct: Counts
    """(M, L) samples that are recognised."""
    statistic: Vector
    """(M, L) X²_i of the client in the label's table; 0 without samples."""
    p: Vector
    """(M, L) its p-value; 1 without samples."""
    freedom: Vector
    """(L,) degrees of freedom of X²_i."""
    mean: Vector
    """(L,) E[X²_i] under the null hypothesis."""

    @classmethod
    def of(cls, tables: Counts, tests: dict[int, RowTest]) -> Self:
        tested = list(tests)
        samples = tables[:, tested].sum(axis=2)
        statistic, p = np.zeros(samples.shape), np.ones(samples.shape)
        for column, test in enumerate(tests.values()):
            rows = samples[:, column] > 0
            statistic[rows, column], p[rows, column] = test.row_statistics, test.row_p
        freedom = np.array([test.columns - 1.0 for test in tests.values()])
        n = samples.sum(axis=0)
        return cls(samples, tables[:, tested, tested], statistic, p, freedom, freedom * n / (n - 1))

    def client_p(self) -> Vector:
        """(M,) p-values by Fisher's combination over each client's labels."""
        held = self.samples > 0
        return np.asarray(chi2.sf(-2.0 * np.log(self.p).sum(axis=1), 2.0 * np.maximum(held.sum(axis=1), 1)))

    def evidence(self) -> Vector:
        """(M,) Σ X²_i over each client's labels, in standard deviations of χ² above its mean."""
        held = self.samples > 0
        return np.asarray(
            (self.statistic.sum(axis=1) - held @ self.mean) / np.sqrt(np.maximum(2 * held @ self.freedom, 1))
        )

    def elsewhere(self) -> Vector:
        """(M, L) accuracy at all other clients; every testable label is held by two."""
        n = self.samples.sum(axis=0) - self.samples
        return np.asarray((self.correct.sum(axis=0) - self.correct) / n)

    def gaps(self) -> Vector:
        """(M,) accuracy minus that of the others, had they the client's mix of labels."""
        n = np.maximum(self.samples.sum(axis=1), 1)
        return np.asarray((self.correct - self.samples * self.elsewhere()).sum(axis=1) / n)

    def breaks(self, clients: Sequence[str], labels: Sequence[LabelTest]) -> tuple[Break, ...]:
        """List who breaks the assumption in labels that break it."""
        elsewhere = self.elsewhere()
        found: dict[Break, float] = {}
        for column, told in enumerate(labels):
            rows = np.flatnonzero(self.samples[:, column]).tolist()
            for i, adjusted in zip(rows, np.maximum(holm(self.p[rows, column]), told.adjusted_p), strict=True):
                if adjusted <= LEVEL:
                    n = int(self.samples[i, column])
                    accuracy = float(self.correct[i, column] / n)
                    broken = Break(clients[i], told.label, n, float(adjusted), accuracy, float(elsewhere[i, column]))
                    found[broken] = float(self.statistic[i, column] / self.freedom[column])
        return tuple(sorted(found, key=found.__getitem__, reverse=True))


def _detectable(tests: Iterable[RowTest]) -> float:
    """V at which Σ X² over the tables exceeds its critical value with 80 % probability."""
    freedom, span = map(sum, zip(*((test.freedom, test.span) for test in tests), strict=True))
    shift = float(chndtrinc(chi2.isf(LEVEL, freedom), freedom, 1.0 - _POWER))
    return math.sqrt(shift / span) if span > 0 else math.inf


def _named(what: str, names: Sequence[str] | None, expected: int) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(expected)))
    if len(names) != expected or len(set(names)) != expected:
        raise InputError(f"{len(names)} names for {expected} {what}; every one needs its own")
    return tuple(names)


def _names(words: Sequence[str], most: int = 5) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
