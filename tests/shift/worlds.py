"""Clients whose truth is known: confusions by chance, and Gaussians with known densities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpals.labels import Vector
from fedpals.shift import Tally

Counts = npt.NDArray[np.int64]


def behaviour(labels: int, accuracy: float, rng: np.random.Generator) -> Vector:
    """P(ŷ | y) of some model, (K, K)."""
    errors = rng.dirichlet(np.full(labels, 0.3), labels)
    np.fill_diagonal(errors, 0.0)
    errors /= errors.sum(axis=1, keepdims=True)
    return np.asarray(accuracy * np.eye(labels) + (1 - accuracy) * errors)


def tallies(
    samples: Counts, P: Vector, rng: np.random.Generator, odd: Mapping[int, Vector] | None = None
) -> list[Tally]:
    """Tally M clients with (M, K) ``samples`` that all behave like P, but for the ``odd`` ones."""
    M, K = samples.shape
    zeros = np.zeros(K)
    behaviours = [(odd or {}).get(i, P) for i in range(M)]
    return [Tally(zeros, zeros, rng.multinomial(n, Q)) for n, Q in zip(samples, behaviours, strict=True)]


@dataclass(frozen=True)
class Gaussians:
    """K labels on a circle in the plane, with unit variance."""

    labels: int
    radius: float

    @property
    def centres(self) -> Vector:
        angle = 2 * np.pi * np.arange(self.labels) / self.labels
        return self.radius * np.column_stack([np.cos(angle), np.sin(angle)])

    def inputs(self, y: Counts, rng: np.random.Generator) -> Vector:
        return np.asarray(self.centres[y] + rng.standard_normal((y.size, 2)))

    def logits(self, x: Vector, prior: Vector) -> Vector:
        """Logarithm of prior × density, up to a constant."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(prior) - 0.5 * np.square(x[:, None] - self.centres).sum(axis=2))

    def posterior(self, x: Vector, prior: Vector) -> Vector:
        joint = np.exp(self.logits(x, prior))
        return np.asarray(joint / joint.sum(axis=1, keepdims=True))
