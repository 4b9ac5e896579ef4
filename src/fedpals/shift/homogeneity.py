"""A test of label shift: under it, P(ŷ | y) of one model is the same at every client.

For every label, the held-out samples of the clients form a table, client × predicted label, whose
rows come from one distribution under label shift. Each table is tested (`contingency`), and the
results are combined in three ways:

- labels: Holm's correction over the labels shows which of them break the assumption;
- clients: each client is tested against all others, with Fisher's combination over its labels and
  Holm's correction over clients; within labels that break the assumption, Holm's correction over
  clients shows which clients do;
- overall: three p-values, Fisher's combination over labels (for small effects everywhere), and the
  smallest p-values of the labels and of the clients (for large effects somewhere). The overall p is
  three times the smallest, and labels and clients are named only if it is at most 0.05.

The light is **green** if p > 0.05 and there were enough samples to detect a medium effect (V = 0.3)
with 80 % probability; **red** if p ≤ 0.05 and the effect matters: V ≥ 0.1 overall, or the accuracy of a
client that breaks the assumption differs by 10 points from the others on the same labels; otherwise **amber**.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias

import numpy as np

from fedpals.errors import InputError
from fedpals.labels import Vector
from fedpals.rng import generator
from fedpals.shift.contingency import RowTest, compare_rows, cramers_v, holm
from fedpals.shift.power import LEVEL, decide, detectable_effect
from fedpals.shift.tally import Counts, Tally

Light: TypeAlias = Literal["green", "amber", "red"]

SMALL_EFFECT = 0.1
"""Smallest V of a violation that matters."""
MEDIUM_EFFECT = 0.3
"""V that the test must be able to detect for a green light."""
GAP = 0.1
"""Smallest difference in accuracy of a client that breaks the assumption that matters."""


@dataclass(frozen=True)
class LabelTest:
    """Test of whether the clients agree on one label."""

    label: str
    samples: int
    clients: int
    """Number of clients that held out samples of it."""
    p: float
    adjusted_p: float
    """p-value after Holm's correction over labels."""
    effect: float
    """Cramér's V, corrected for bias."""


@dataclass(frozen=True)
class ClientTest:
    """Test of whether one client agrees with all others on the labels that it shares with them."""

    client: str
    samples: int
    p: float
    adjusted_p: float
    """p-value after Holm's correction over clients."""
    gap: float
    """Its accuracy minus that of the others on the same labels."""
    evidence: float
    """Σ X² over its labels, in standard deviations above the mean; ranks clients even if p is 0."""


@dataclass(frozen=True)
class Break:
    """A client that breaks the assumption on a label that breaks it."""

    client: str
    label: str
    samples: int
    adjusted_p: float
    """p-value after Holm's correction over the label's clients; at least that of the label."""
    accuracy: float
    """Share of the client's samples of this label that are recognised."""
    elsewhere: float
    """The same share at all other clients."""


@dataclass(frozen=True)
class Homogeneity:
    """Result of the test of label shift."""

    light: Light
    p: float
    effect: float
    """Cramér's V over all labels, corrected for bias."""
    detectable: float
    """V that would be detected with 80 % probability (`power`); ∞ if no difference would."""
    labels: tuple[LabelTest, ...]
    """Labels that can be tested."""
    untested: tuple[str, ...]
    """Labels that fewer than two clients held out, or whose samples are all predicted as one label."""
    clients: tuple[ClientTest, ...]
    breaks: tuple[Break, ...]
    """Violations by client and label, the strongest first."""
    leave_out: tuple[str, ...] = ()
    """Few clients without which the light is not red; empty if more than a quarter would have to be left out."""

    @property
    def broken_labels(self) -> tuple[str, ...]:
        """Labels on which the clients differ."""
        return tuple(test.label for test in self.labels if test.adjusted_p <= LEVEL)

    @property
    def broken_clients(self) -> tuple[str, ...]:
        """Clients that differ from the others, the one with the strongest evidence first."""
        tests = [test for test in self.clients if test.adjusted_p <= LEVEL]
        return tuple(test.client for test in sorted(tests, key=lambda test: -test.evidence))

    @property
    def finding(self) -> str:
        """What was found, where clients differ."""
        return f"The clients differ within labels (p = {self.p:.2g}, V = {self.effect:.2f})"

    @property
    def advice(self) -> str:
        """Recommendation in one or two sentences."""
        if self.light == "green":
            return "There is no evidence against label shift: you can use weights for the target."
        if not self.labels:
            return "Label shift cannot be tested: no label is held out by two clients and predicted in two ways."
        if self.p > LEVEL:
            found = f"only differences of V ≥ {self.detectable:.2f}" if self.detectable <= 1.0 else "no difference"
            return (
                f"Too few held-out samples to decide: {found} would be detected reliably. Hold out more samples before "
                "you rely on it."
            )
        finding = self.finding
        if self.light == "amber":
            return f"{finding}, but so little that you can use weights for the target; watch {_join(self._suspects)}."
        if self.leave_out:
            clients = _join([f"client {name}" for name in self.leave_out])
            return f"{finding}: leave out {clients}, without which the difference is not relevant; or raise the ESS."
        return (
            f"{finding}, and not because of a few clients: raise the ESS, so that weights rely less on label shift; "
            f"look at {_join(self._suspects)}."
        )

    @property
    def _suspects(self) -> tuple[str, ...]:
        suspects = [f"client {c}" for c in self.broken_clients] or [f"label {y}" for y in self.broken_labels]
        return tuple(suspects) or ("all clients",)


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
        One tally per client, of the same model, on samples that it was not trained on.
    seed
        Seed of the tables drawn if counts are small, at the addresses ("homogeneity", label), and of the simulation of
        the test's power.
    clients, labels
        Names; by default their numbers.
    """
    if len(tallies) < 2:
        raise InputError(f"{len(tallies)} tallies: a comparison of clients needs at least two")
    shapes = {tally.confusion.shape for tally in tallies}
    if len(shapes) > 1:
        raise InputError(f"tallies are over {' and '.join(str(s[0]) for s in sorted(shapes))} labels; they must agree")
    tables = np.stack([tally.confusion for tally in tallies])
    M, K, _ = tables.shape
    clients, labels = _check_names("clients", clients, M), _check_names("labels", labels, K)
    result = _run_tests(tables, clients, labels, seed, power=True)
    if result.light == "red":
        result = replace(result, leave_out=_clients_to_leave_out(tables, clients, labels, seed))
    return result


def _clients_to_leave_out(tables: Counts, clients: Sequence[str], labels: Sequence[str], seed: int) -> tuple[str, ...]:
    """Remove the client with the strongest evidence until the light is not red.

    One client that differs from all others makes the others seem to differ, too, only less. So clients are
    removed one at a time, using χ² alone, and the remaining ones are then tested in full.
    """
    M = len(clients)
    max_outliers = max(1, M // 4) if M > 2 else 0
    remaining, outliers = list(range(M)), list[str]()
    result = _run_tests(tables, clients, labels, None)
    while result.light == "red" and len(outliers) < max_outliers:
        outliers.append(max(result.clients, key=lambda test: test.evidence).client)
        remaining.remove(clients.index(outliers[-1]))
        result = _run_tests(tables[remaining], [clients[i] for i in remaining], labels, None)
    if result.light != "red":
        result = _run_tests(tables[remaining], [clients[i] for i in remaining], labels, seed)
    return tuple(outliers) if result.light != "red" else ()


def _run_tests(
    tables: Counts, clients: Sequence[str], labels: Sequence[str], seed: int | None, *, power: bool = False
) -> Homogeneity:
    """Test the (M, K, K) confusions of M clients; without a seed, by χ² alone.

    Without ``power`` the detectable effect is not computed, and the light is either red or not.
    """
    M, K, _ = tables.shape
    has_samples = tables.sum(axis=2) > 0
    draws = max(999, math.ceil(max(M, K) / LEVEL))  # for p-values as small as Holm's correction needs
    tests: dict[int, RowTest] = {}
    for y in range(K):
        rng = None if seed is None else generator(seed, "homogeneity", y)
        if (test := compare_rows(tables[:, y][has_samples[:, y]], rng, draws)) is not None:
            tests[y] = test
    untested = tuple(labels[y] for y in range(K) if y not in tests)
    if not tests:
        return Homogeneity("amber", 1.0, 0.0, math.inf, (), untested, (), ())
    cells = _Cells.of(tables, tests)
    rows = np.flatnonzero(cells.samples.any(axis=1))
    label_p, client_p = np.array([test.p for test in tests.values()]), cells.client_p()[rows]
    label_adjusted, client_adjusted = holm(label_p), holm(client_p)
    p = float(decide(label_p, client_p))
    by_label = tuple(
        LabelTest(labels[y], test.samples, test.row_p.size, test.p, max(p, float(adjusted)), cramers_v([test]))
        for (y, test), adjusted in zip(tests.items(), label_adjusted, strict=True)
    )
    sizes, gaps, evidence = cells.samples.sum(axis=1), cells.gaps(), cells.evidence()
    by_client = tuple(
        ClientTest(clients[i], int(sizes[i]), float(q), max(p, float(adjusted)), float(gaps[i]), float(evidence[i]))
        for i, q, adjusted in zip(rows.tolist(), client_p, client_adjusted, strict=True)
    )
    effect = cramers_v(list(tests.values()))
    detectable = detectable_effect(cells.samples, list(tests.values()), seed or 0) if power else math.inf
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
    has_gap = any(test.adjusted_p <= LEVEL and abs(test.gap) >= GAP for test in clients)
    return "red" if effect >= SMALL_EFFECT or has_gap else "amber"


@dataclass(frozen=True, eq=False)
class _Cells:
    """Statistics of M clients on L testable labels."""

    samples: Counts
    """(M, L) samples."""
    correct: Counts
    """(M, L) samples that are recognised."""
    statistic: Vector
    """(M, L) X²_i of the client in the label's table; 0 without samples."""
    p: Vector
    """(M, L) p-value of X²_i; 1 without samples."""
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
        """Return (M,) p-values by Fisher's combination over each client's labels."""
        from scipy.special import chdtrc  # slow to load: only where it is used

        has_samples = self.samples > 0
        return np.asarray(chdtrc(2.0 * np.maximum(has_samples.sum(axis=1), 1), -2.0 * np.log(self.p).sum(axis=1)))

    def evidence(self) -> Vector:
        """Return (M,) Σ X²_i over each client's labels, in standard deviations of χ² above its mean."""
        has_samples = self.samples > 0
        return np.asarray(
            (self.statistic.sum(axis=1) - has_samples @ self.mean)
            / np.sqrt(np.maximum(2 * has_samples @ self.freedom, 1))
        )

    def accuracy_elsewhere(self) -> Vector:
        """Return (M, L) the accuracy at all other clients; at least two clients have each testable label."""
        n = self.samples.sum(axis=0) - self.samples
        return np.asarray((self.correct.sum(axis=0) - self.correct) / n)

    def gaps(self) -> Vector:
        """Return (M,) the accuracy minus that of the others, reweighted to the client's mix of labels."""
        n = np.maximum(self.samples.sum(axis=1), 1)
        return np.asarray((self.correct - self.samples * self.accuracy_elsewhere()).sum(axis=1) / n)

    def breaks(self, clients: Sequence[str], labels: Sequence[LabelTest]) -> tuple[Break, ...]:
        """Return the clients that break the assumption on labels that break it, the strongest first."""
        elsewhere = self.accuracy_elsewhere()
        strengths: dict[Break, float] = {}
        for column, label_test in enumerate(labels):
            rows = np.flatnonzero(self.samples[:, column]).tolist()
            for i, adjusted in zip(rows, np.maximum(holm(self.p[rows, column]), label_test.adjusted_p), strict=True):
                if adjusted <= LEVEL:
                    n = int(self.samples[i, column])
                    accuracy = float(self.correct[i, column] / n)
                    violation = Break(
                        clients[i], label_test.label, n, float(adjusted), accuracy, float(elsewhere[i, column])
                    )
                    strengths[violation] = float(self.statistic[i, column] / self.freedom[column])
        return tuple(sorted(strengths, key=strengths.__getitem__, reverse=True))


def _check_names(what: str, names: Sequence[str] | None, expected: int) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(expected)))
    if len(names) != expected or len(set(names)) != expected:
        raise InputError(f"{len(names)} names for {expected} {what}; each needs its own name")
    return tuple(names)


def _join(words: Sequence[str], limit: int = 5) -> str:
    return ", ".join(words[:limit]) + (f" and {len(words) - limit} more" if len(words) > limit else "")
