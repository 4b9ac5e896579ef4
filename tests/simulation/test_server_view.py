from __future__ import annotations

import numpy as np
import pytest

import fedpals
from fedpals.rng import generator
from fedpals.simulation.server_view import perturb

TARGET = [0.2, 0.3, 0.5]


def test_perturb_follows_the_paper() -> None:
    rng, same = generator(0, "noise"), generator(0, "noise")
    noisy = perturb(TARGET, 0.5, rng)
    expected = np.array(TARGET) + 0.5 * np.maximum(same.standard_normal(3), 0)
    assert noisy == pytest.approx(expected / expected.sum())
    assert perturb(TARGET, 0.0, rng) == pytest.approx(TARGET)
    with pytest.raises(fedpals.InputError, match="delta is -1"):
        perturb(TARGET, -1, rng)
