from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy

from fedpals.shift.softmax import log_softmax


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 2), (2000, 10), (4, 50, 7), (30, 182)])
def test_has_scipys_bits(shape: tuple[int, ...], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    for size in (0.0, 1.0, 40.0, 1e5):
        logits = (size * rng.standard_normal(shape)).astype(dtype)
        found = log_softmax(logits)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, scipy.special.log_softmax(logits, axis=-1), strict=True)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_outputs_that_are_not_finite_are_seen_in_their_own_row_alone() -> None:
    rows = np.array([[np.inf, 0.0, 1.0], [-np.inf, 0.0, 1.0], [np.nan, 0.0, 1.0], [-np.inf] * 3, [0.0, 0.0, 1.0]])
    found = log_softmax(rows)
    np.testing.assert_array_equal(found, scipy.special.log_softmax(rows, axis=1))
    assert np.isfinite(found[[1, 4], 1:]).all()
    assert found[1, 0] == -np.inf
