"""Power of the test of label shift: how large a difference between clients it detects with 80 % probability.

The decision combines three looks at the same tables (`decide`), so no formula gives its power, and it is simulated. A
label's table of r clients with n_i samples and c predictions behaves like r independent vectors g_i ~ N(√n_i δ_i, I) of
c − 1 dimensions, with the share s_i = n_i/n and

    h_i = g_i − √s_i Σ_k √s_k g_k,    X²_i = ‖h_i‖²/(1 − s_i),    X² = Σ_i ‖h_i‖².

The clients differ in random directions δ_i with Σ n_i δ_i = 0, in all labels by the same Cramér's V, so that
Σ n_i ‖δ_i‖² = V² span. Then X²_i is quadratic in V, and the same draws serve for all V.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector
from fedpals.rng import generator
from fedpals.shift.contingency import MIN_P, RowTest, fisher
from fedpals.shift.tally import Counts

LEVEL = 0.05
"""Probability of a false alarm."""
POWER = 0.8
"""Probability with which the stated effect is detected."""
_DRAWS, _MIN_DRAWS = 200, 100
_DRAWN_CELLS = 14_000
"""Number of cells, over all draws, from which on fewer are drawn."""
_EVALUATIONS = 3
"""Number of effects for which the power is simulated."""
_SLOPE = 4.0
"""Typical slope of Φ⁻¹(power) in log V, from which the search starts."""


def decide(label_p: Vector, client_p: Vector) -> Vector:
    """Return the overall p-value, (…), from those of labels, (…, L), and of clients, (…, M).

    Three times the smallest of Fisher's combination over labels and Holm's smallest over labels and over clients.
    """
    L, M = label_p.shape[-1], client_p.shape[-1]
    smallest = np.minimum(L * label_p.min(axis=-1), M * client_p.min(axis=-1))
    return np.asarray(np.minimum(1.0, 3.0 * np.minimum(fisher(label_p), smallest)))


def detectable_effect(samples: Counts, tests: Sequence[RowTest], seed: int) -> float:
    """Return the V that is detected with 80 % probability; ∞ if that takes more than V = 1.

    Parameters
    ----------
    samples
        (M, L) samples of every client, of the labels that are tested.
    tests
        Tests of the L labels.
    seed
        Seed of the simulation, at the address ("power",).
    """
    from scipy.special import chdtri, chndtrinc, ndtri  # slow to load: only where it is used

    freedom, span = sum(test.freedom for test in tests), sum(test.span for test in tests)
    if span <= 0:
        return math.inf
    simulation = _Simulation.of(samples, tests, generator(seed, "power"))
    # One χ² test of all tables is almost as powerful, and gives where to begin. Φ⁻¹(power) is nearly linear in log V.
    log_effect = math.log(1.2 * math.sqrt(float(chndtrinc(chdtri(freedom, LEVEL), freedom, 1.0 - POWER)) / span))
    slope, previous = _SLOPE, None
    for _ in range(_EVALUATIONS):
        quantile = simulation.power_quantile(math.exp(log_effect))
        if previous is not None and log_effect != previous[0]:
            slope = max((quantile - previous[1]) / (log_effect - previous[0]), _SLOPE / 4)
        previous = log_effect, quantile
        log_effect += min(max((float(ndtri(POWER)) - quantile) / slope, -1.0), 1.0)
    return math.exp(log_effect) if log_effect <= 0.0 else math.inf


@dataclass(frozen=True, eq=False)
class _Simulation:
    """Statistics of all non-empty cells, client × label, as functions of V: X²_i = (a + bV + cV²)/(1 − s)."""

    constant: Vector
    """(draws, cells) a; likewise b and c."""
    linear: Vector
    quadratic: Vector
    rest: Vector
    """(cells,) 1 − s."""
    row_freedom: Vector
    """(cells,) degrees of freedom of X²_i."""
    label_freedom: Vector
    """(L,) degrees of freedom of X²."""
    label_starts: npt.NDArray[np.int64]
    """(L,) first cell of every label; cells are ordered by label."""
    client_order: npt.NDArray[np.int64]
    """(cells,) cells ordered by client."""
    client_starts: npt.NDArray[np.int64]
    """(M,) first cell of every client in that order."""

    @classmethod
    def of(cls, samples: Counts, tests: Sequence[RowTest], rng: np.random.Generator) -> Self:
        cells = int(np.count_nonzero(samples))
        draws = int(np.clip(_DRAWN_CELLS // cells, _MIN_DRAWS, _DRAWS))
        terms = [_cell_terms(n[n > 0], test, draws, rng) for n, test in zip(samples.T, tests, strict=True)]
        constant, linear, quadratic = (np.concatenate(term, axis=1) for term in zip(*terms, strict=True))
        sizes = np.count_nonzero(samples, axis=0)
        label, client = np.nonzero(samples.T)
        order = np.argsort(client, kind="stable")
        per_client = np.bincount(client)[np.unique(client)]
        return cls(
            constant,
            linear,
            quadratic,
            1.0 - samples.T[label, client] / samples.sum(axis=0)[label],
            np.repeat([test.columns - 1.0 for test in tests], sizes),
            np.array([float(test.freedom) for test in tests]),
            np.cumsum([0, *sizes[:-1]]),
            order,
            np.cumsum([0, *per_client[:-1]]),
        )

    def power_quantile(self, effect: float) -> float:
        """Return Φ⁻¹ of the share of draws in which an effect V is detected."""
        from scipy.special import chdtrc, ndtri  # slow to load: only where it is used

        deviation = self.constant + effect * self.linear + effect**2 * self.quadratic
        label_statistic = np.add.reduceat(deviation, self.label_starts, axis=1)
        label_p = np.maximum(chdtrc(self.label_freedom, label_statistic), MIN_P)
        row_p = np.maximum(chdtrc(self.row_freedom, deviation / self.rest), MIN_P)
        logs = np.add.reduceat(np.log(row_p)[:, self.client_order], self.client_starts, axis=1)
        labels_of_client = np.diff(self.client_starts, append=self.client_order.size)
        client_p = chdtrc(2.0 * labels_of_client, -2.0 * logs)
        detected = np.count_nonzero(decide(label_p, client_p) <= LEVEL)
        return float(ndtri((detected + 0.5) / (len(deviation) + 1.0)))


def _cell_terms(
    n: npt.NDArray[np.int64], test: RowTest, draws: int, rng: np.random.Generator
) -> tuple[Vector, Vector, Vector]:
    """Return ‖h_i‖² of one label as the terms of a quadratic function of V, (draws, r) each."""
    g, direction = rng.standard_normal((2, draws, n.size, test.columns - 1))
    root_share = np.sqrt(n / n.sum())
    h, m = (x - root_share[:, None] * np.einsum("i,tij->tj", root_share, x)[:, None] for x in (g, direction))
    m *= np.sqrt(max(test.span, 0.0) / np.square(m).sum(axis=(1, 2), keepdims=True))
    return np.square(h).sum(axis=2), 2 * (h * m).sum(axis=2), np.square(m).sum(axis=2)
