"""What we recommend to use a trained network with: its own last layer and the Gaussian head, joined.

Both are linear in the same features φ ∈ ℝᵈ and know different things: the network's layer was trained to tell labels
apart but by clients who saw few of them together; the Gaussian head knows all labels together but takes their features
for Gaussian, and label shift at its word. Each is calibrated for the target on samples that clients held out
(`calibration`), and the geometric mean of their probabilities is taken,

    p(y | x) ∝ √(p_own(y | x) · p_Gauss(y | x)),

whose logits are the mean of theirs: again one linear layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError
from fedpals.labels import Vector
from fedpals.shift.calibration import calibrate
from fedpals.shift.gaussian import Head


@dataclass(frozen=True, eq=False)
class HeldOutFeatures:
    """What the last layer sees of the samples that clients held out.

    Raises
    ------
    InputError
        Naming the field, for shapes that do not fit, labels that are none, and features that are no numbers.
    """

    features: Vector
    """(n, d) φ."""
    labels: npt.NDArray[np.int64]
    """(n,) y."""

    def __post_init__(self) -> None:
        f, y = self.features, self.labels
        if f.ndim != 2 or y.ndim != 1 or len(f) != len(y):
            raise InputError(f"features {f.shape} do not fit labels {y.shape}: a row and a label per sample")
        if y.dtype.kind not in "ui" or (y.size and y.min() < 0):
            raise InputError(f"labels must be whole numbers ≥ 0, not {y.dtype}")
        if not np.isfinite(f).all():
            raise InputError("features are NaN or infinite: the network yields no numbers for some sample")


def recommended(
    own: Head, gaussian: Head, told: HeldOutFeatures, counts: Vector, target: Vector, shift: Vector
) -> Head:
    """Return the last layer to use.

    A label of the target that nobody has is for the Gaussian head alone to recognise. If only those whose features it
    was made of have none of some label, the network's own layer knows more.

    Parameters
    ----------
    own
        The network's last layer as trained.
    gaussian
        The Gaussian head for the target.
    told
        By which both are calibrated.
    counts
        (K,) samples of each label over all clients.
    target
        (K,) T.
    shift
        (K,) the prior correction of the network.
    """
    wanted = target > 0
    if (counts[wanted] == 0).any():
        return gaussian
    calibrated = own.calibrated(calibrate(own(told.features), told.labels, target, shift))
    if not np.isfinite(gaussian.bias[wanted]).all():
        return calibrated
    no_shift = np.where(wanted, 0.0, -np.inf)  # the Gaussian head has log T built in
    other = gaussian.calibrated(calibrate(gaussian(told.features), told.labels, target, no_shift))
    return calibrated.joined(other)
