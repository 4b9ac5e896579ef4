"""What the server can learn about the target, and about label shift, from what clients held out.

Clients report tallies of a model's losses and predictions by label (`Tally`). From them follow the
target risk without a target sample (`target_loss`, `target_accuracy`, `best`), a test of label shift
itself (`homogeneity`), and T where only unlabelled target inputs exist (`bbse`, `em`). From sums of features
by label (`FeatureSums`) follows a last layer for the target (`gaussian_head`), which is best used together with the
network's own (`recommended`).
"""

from fedpals.shift.estimate import TargetEstimate, bbse, em
from fedpals.shift.gaussian import FeatureSums, Head, gaussian_head
from fedpals.shift.homogeneity import Break, ClientTest, Homogeneity, LabelTest, Light, homogeneity
from fedpals.shift.joined import HeldOutFeatures, recommended
from fedpals.shift.risk import Estimate, best, target_accuracy, target_loss
from fedpals.shift.tally import Tally, pooled

__all__ = [
    "Break",
    "ClientTest",
    "Estimate",
    "FeatureSums",
    "Head",
    "HeldOutFeatures",
    "Homogeneity",
    "LabelTest",
    "Light",
    "Tally",
    "TargetEstimate",
    "bbse",
    "best",
    "em",
    "gaussian_head",
    "homogeneity",
    "pooled",
    "recommended",
    "target_accuracy",
    "target_loss",
]
