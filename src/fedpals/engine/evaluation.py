"""Evaluation: one network, the target's samples where there are any, and the samples that clients held out."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import numpy as np
from torch import Tensor

from fedpals.engine.flat_model import FlatModel
from fedpals.engine.metrics import Metrics, Scores, held_out_metrics, metrics
from fedpals.labels import Indices, Vector
from fedpals.shift.calibration import Calibration, calibrate
from fedpals.shift.evaluation import Correction


class Part(StrEnum):
    """A set of samples to evaluate with."""

    VALIDATION = "validation"
    """The target's, to select with."""
    TEST = "test"
    """The target's, to report with."""
    CLIENTS = "clients"
    """Held out by clients, of all of them together."""


Outputs = Mapping[Part, Vector]
"""Logits or features of every part, (n, K) or (n, d)."""


class Evaluator:
    """Runs a network over the same samples round by round; every correction of its outputs costs next to nothing."""

    def __init__(self, model: FlatModel, samples: Mapping[Part, tuple[Tensor, Indices]]) -> None:
        self.model, self.samples = model, samples

    def logits(self, vector: Tensor, known: Outputs | None = None) -> dict[Part, Vector]:
        """Return the outputs of the parameters ``vector``, (n, K) for every part; ``known`` are some of them."""
        done = known or {}
        return {part: done[part] if part in done else self.outputs(vector, x) for part, (x, _) in self.samples.items()}

    def outputs(self, vector: Tensor, x: Tensor) -> Vector:
        """Return the outputs of the parameters ``vector`` for inputs, (n, K)."""
        self.model.load(vector)
        return np.asarray(self.model.logits(x).double().cpu().numpy())

    def features(self, vector: Tensor) -> dict[Part, Vector]:
        """Return what the last layer sees, (n, d) for every part; d = 0 where that layer is not linear."""
        self.model.load(vector)
        seen = {part: self.model.features(x) for part, (x, _) in self.samples.items()}
        return {
            part: np.empty((len(self.truth(part)), 0)) if features is None else features.double().cpu().numpy()
            for part, features in seen.items()
        }

    def truth(self, part: Part) -> Indices:
        """Return the labels of a part."""
        return self.samples[part][1]

    def corrections(self, logits: Outputs, target: Vector, shift: Vector) -> dict[Correction, Calibration]:
        """Return the model as it is, with the target prior correction, and calibrated where samples are held out."""
        ways = {
            Correction.RAW: Calibration(1.0, np.zeros_like(shift)),
            Correction.PRIOR: Calibration(1.0, shift),
        }
        if Part.CLIENTS in logits:
            ways[Correction.CALIBRATED] = calibrate(logits[Part.CLIENTS], self.truth(Part.CLIENTS), target, shift)
        return ways

    def scores(self, logits: Outputs, target: Vector) -> Scores:
        """Return what corrected outputs are worth on every part."""
        clients = None
        if Part.CLIENTS in logits:
            clients = held_out_metrics(self.truth(Part.CLIENTS), logits[Part.CLIENTS], target)
        return Scores(self._metrics(Part.VALIDATION, logits), self._metrics(Part.TEST, logits), clients)

    def _metrics(self, part: Part, logits: Outputs) -> Metrics | None:
        if part not in logits:
            return None
        return metrics(self.truth(part), logits[part])
