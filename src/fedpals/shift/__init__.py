"""Inference about the target and about label shift, from samples that clients held out.

Clients report tallies of a model's losses and predictions by label (`Tally`). They give the target risk
without a target sample (`target_loss`, `target_accuracy`, `best`), a test of label shift itself
(`homogeneity`), and an estimate of T from unlabelled target inputs (`bbse`, `em`). Sums of features by label
(`FeatureSums`) give a last layer for the target (`gaussian_head`), which works best together with the
network's own layer (`recommended`); the heads of FedCGS, Fed3R, FedCOF and CCVR are there to compare with.
"""

from fedpals.shift.ccvr import ccvr_head
from fedpals.shift.estimate import TargetEstimate, bbse, em
from fedpals.shift.gaussian import FeatureSums, Head, gaussian_head
from fedpals.shift.homogeneity import Break, ClientTest, Homogeneity, LabelTest, Light, homogeneity
from fedpals.shift.joined import HeldOutFeatures, recommended
from fedpals.shift.risk import Estimate, best, target_accuracy, target_loss
from fedpals.shift.rival_heads import RidgeHead, fed3r_head, fedcgs_head, fedcof_head
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
    "RidgeHead",
    "Tally",
    "TargetEstimate",
    "bbse",
    "best",
    "ccvr_head",
    "em",
    "fed3r_head",
    "fedcgs_head",
    "fedcof_head",
    "gaussian_head",
    "homogeneity",
    "pooled",
    "recommended",
    "target_accuracy",
    "target_loss",
]
