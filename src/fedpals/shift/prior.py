"""The target prior correction.

Under label shift a model trained on the mix p_α(y) = Σ α_i S_i(y) becomes the target's Bayes
classifier by p_T(y|x) ∝ p(y|x)·T(y)/p_α(y). This is a shift of the logits that the server can compute from
T and α alone, without training or target samples.
"""

from __future__ import annotations

import numpy as np

from fedpals.labels import Vector


def prior_shift(target: Vector, mix: Vector, samples: float) -> Vector:
    """Return log T − log p_α, (K,), to be added to the logits.

    A label that is not in the target gets −∞. A label that the model was not trained on
    (p_α(y) = 0) is treated as if half of one of the ``samples`` had it.

    >>> prior_shift(np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.5, 0.25]), 100).round(3).tolist()
    [0.693, 0.0, -inf]
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(target) - np.log(np.maximum(mix, 0.5 / samples)))
