"""The recommended last layer of a trained network: its own layer and the Gaussian head, joined.

Both are linear in the same features φ ∈ ℝᵈ and complement each other: the network's layer was trained to distinguish
labels, but by clients with few labels each; the Gaussian head uses all labels together, but assumes Gaussian features
and exact label shift. Each is calibrated for the target on samples that clients held out (`calibration`), and the
geometric mean of their probabilities is taken,

    p(y | x) ∝ √(p_own(y | x) · p_Gauss(y | x)),

whose logits are the mean of their logits: again one linear layer.

A label u of the target that no client has is recognised by exclusion, by both. Held-out samples of it do not exist, so
those of the labels that stand for it in the Gaussian head take their place when the network's layer is calibrated:

    y_i ← u  for the samples i of these labels,    and with that τ and b, also b_u, as for any other label.

Where the network's output for a label that it never saw says nothing, τ becomes large, and the Gaussian head decides.
The head itself stays as it is, because it is modelled after these very labels. Its outputs for u, one per label v that
stands for u, are each joined with the network's output for u.
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
    """Inputs of the last layer, and labels, of the samples that clients held out.

    Raises
    ------
    InputError
        For shapes that do not fit, invalid labels, and features that are not finite; names the field.
    """

    features: Vector
    """(n, d) φ."""
    labels: npt.NDArray[np.int64]
    """(n,) y."""

    def __post_init__(self) -> None:
        f, y = self.features, self.labels
        if f.ndim != 2 or y.ndim != 1 or len(f) != len(y):
            raise InputError(f"features {f.shape} do not fit labels {y.shape}: give one row and one label per sample")
        if y.dtype.kind not in "ui" or (y.size and y.min() < 0):
            raise InputError(f"labels must be whole numbers ≥ 0, not {y.dtype}")
        if not np.isfinite(f).all():
            raise InputError("features are NaN or infinite: the network's output is not finite for some sample")


def recommended(
    own: Head, gaussian: Head, held_out: HeldOutFeatures, counts: Vector, target: Vector, shift: Vector
) -> Head:
    """Return the last layer to use.

    If no client has some label of the target, labels that the target lacks stand for it; if there are none, the
    Gaussian head is returned. If only the clients whose features it was fitted to have no sample of some label, the
    network's own layer is returned.

    Parameters
    ----------
    own
        The network's last layer as trained.
    gaussian
        The Gaussian head for the target.
    held_out
        Samples on which both are calibrated.
    counts
        (K,) samples of each label over all clients.
    target
        (K,) T.
    shift
        (K,) the prior correction of the network.
    """
    in_target = target > 0
    if (counts[in_target] == 0).any():
        stand_ins = gaussian.stands_for != np.arange(target.size)
        if not stand_ins.any():
            return gaussian
        labels = gaussian.stands_for[held_out.labels]
        return gaussian.joined(own.calibrated(calibrate(own(held_out.features), labels, target, shift)))
    calibrated_own = own.calibrated(calibrate(own(held_out.features), held_out.labels, target, shift))
    if not np.isfinite(gaussian.bias[in_target]).all():
        return calibrated_own
    no_shift = np.where(in_target, 0.0, -np.inf)  # the Gaussian head has log T built in
    calibrated_gaussian = gaussian.calibrated(calibrate(gaussian(held_out.features), held_out.labels, target, no_shift))
    return calibrated_gaussian.joined(calibrated_own)
