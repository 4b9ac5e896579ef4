"""The power of the test of label shift: an effect that is said to be detected is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpals.shift import Tally, homogeneity
from fedpals.shift.contingency import compare_rows, fisher, holm
from fedpals.shift.power import decide, detectable_effect
from tests.shift.worlds import Counts

rng_of = np.random.default_rng


def shares(n: np.ndarray, mean: np.ndarray, effect: float, rng: np.random.Generator) -> np.ndarray:
    """Return (M, c) predictions of M clients with n samples that differ in random directions by Cramér's V."""
    M, c, total = len(n), np.count_nonzero(mean), n.sum()
    direction = rng.standard_normal((M, mean.size)) * (mean > 0)
    direction -= (direction @ np.sqrt(mean))[:, None] * np.sqrt(mean)
    direction -= n @ direction / total
    wanted = effect * math.sqrt(min((k - 1) * (total - k) / (total - 1) for k in (M, c)))
    scale = wanted
    for _ in range(8):  # shares below 0 are cut off, so the rest must differ more
        p = np.maximum(mean + scale * np.sqrt(mean) * direction, 0.0)
        p /= p.sum(axis=1, keepdims=True)
        pooled = n @ p / total
        present = pooled > 0
        found = math.sqrt((n[:, None] * (p - pooled)[:, present] ** 2 / pooled[present]).sum() / total)
        scale *= wanted / max(found, 1e-300)
    return np.asarray(p)


def told(n: Counts, effect: float, rng: np.random.Generator) -> list[Tally]:
    """Return tallies of clients with n, (M, K), samples: 7 of 10 right, the others mistaken for the next two labels."""
    M, K = n.shape
    confusions = np.zeros((M, K, K), dtype=np.int64)
    for y in range(K):
        mean = np.zeros(K)
        mean[[y, (y + 1) % K, (y + 2) % K]] = 0.7, 0.2, 0.1
        p = np.tile(mean, (M, 1)) if effect == 0 else shares(n[:, y], mean, effect, rng)
        confusions[:, y] = rng.multinomial(n[:, y], p)
    return [Tally(np.zeros(K), np.zeros(K), confusion) for confusion in confusions]


@pytest.mark.parametrize(("clients", "labels", "samples"), [(8, 4, 80), (3, 5, 200), (6, 6, 12)])
def test_the_stated_effect_is_detected_in_about_80_percent_of_draws(clients: int, labels: int, samples: int) -> None:
    rng = rng_of(clients)
    n = 1 + rng.poisson(samples, (clients, labels))
    stated = float(np.median([homogeneity(told(n, 0.0, rng), seed).detectable for seed in range(9)]))
    found = [homogeneity(told(n, stated, rng), seed).p <= 0.05 for seed in range(120)]
    assert 0.66 <= np.mean(found) <= 0.92  # 80 % ± 3 standard errors of 120 draws, and a little
    half = [homogeneity(told(n, stated / 2, rng), seed).p <= 0.05 for seed in range(40)]
    assert np.mean(half) < 0.45


def test_more_samples_detect_less() -> None:
    stated = [
        homogeneity(told(np.full((5, 4), samples), 0.0, rng_of(0)), 0).detectable for samples in (10, 40, 160, 640)
    ]
    assert stated == sorted(stated, reverse=True)
    assert stated[1] / stated[3] == pytest.approx(4, rel=0.35)  # V goes as one over the root of the samples


def test_the_same_seed_gives_the_same_effect_and_another_nearly() -> None:
    tallies = told(np.full((5, 4), 60), 0.0, rng_of(1))
    one, same, other = (homogeneity(tallies, seed).detectable for seed in (0, 0, 1))
    assert one == same != other
    assert one == pytest.approx(other, rel=0.15)


def test_what_nothing_can_detect_is_infinite() -> None:
    table = np.array([[1, 1], [1, 1]])
    test = compare_rows(table, None, 999)
    assert test is not None
    assert detectable_effect(table.sum(axis=1)[:, None], [test], 0) == math.inf


def test_the_decision_is_three_times_the_smallest_of_three_looks() -> None:
    labels, clients = np.array([0.2, 0.01, 0.5]), np.array([0.004, 0.3])
    looks = fisher(labels), holm(labels).min(), holm(clients).min()
    assert float(decide(labels, clients)) == pytest.approx(3 * min(looks))
    assert float(decide(np.array([0.9]), np.array([0.8, 0.9]))) == 1.0
