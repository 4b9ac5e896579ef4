"""Everything a simulated run carries from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import TypeAdapter
from torch import Tensor

from fedpals.engine.metrics import Scores
from fedpals.engine.state import ServerState
from fedpals.errors import InputError
from fedpals.labels import Vector
from fedpals.shift.calibration import Calibration
from fedpals.shift.evaluation import Evaluation

_SCORES = TypeAdapter(Scores)


@dataclass(eq=False)
class BestRound:
    """The best round so far by some rule, and what it is worth."""

    round: int = 0
    score: float = -1.0
    scores: Scores = field(default_factory=Scores)
    vector: Tensor | None = None
    """Kept for one rule only, that of the saved models."""
    correction: Calibration | None = None


@dataclass(eq=False)
class SimulationState(ServerState):
    """The server's state, the best rounds so far, and T where it is estimated."""

    run: str = ""
    """Digest of the run that it belongs to."""
    best: dict[Evaluation, BestRound] = field(default_factory=dict)
    target: Vector | None = None
    """T as the server estimates it, where it does not know it."""

    def check_run(self, path: Path, digest: str, size: int) -> None:
        """Raise `InputError` where a state that was read from ``path`` is not that of the run, or of its model."""
        if (self.run, self.vector.numel()) != (digest, size):
            raise InputError(f"{path}: the checkpoint is that of another run")

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Add the best rounds and the estimate of T to the server's state."""
        tensors, facts = super().parts()
        selected: dict[str, Any] = {}
        for name, best in self.best.items():
            scores = _SCORES.dump_python(best.scores, mode="json")
            selected[name.value] = {"round": best.round, "score": best.score, "scores": scores}
            if best.vector is not None and best.correction is not None:
                selected[name.value]["temperature"] = best.correction.temperature
                shift = torch.from_numpy(best.correction.shift)
                tensors |= {f"selected/{name}/vector": best.vector, f"selected/{name}/shift": shift}
        if self.target is not None:
            tensors["target"] = torch.from_numpy(self.target)
        return tensors, {**facts, "run": self.run, "selected": selected}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        """Put a state together from its parts."""
        state = super().of(tensors, facts)
        state.run = facts["run"]
        state.target = tensors["target"].numpy() if "target" in tensors else None
        for name, values in facts["selected"].items():
            scores = _SCORES.validate_python(values["scores"])
            best = state.best[Evaluation(name)] = BestRound(values["round"], values["score"], scores)
            if "temperature" in values:
                best.vector = tensors[f"selected/{name}/vector"]
                best.correction = Calibration(values["temperature"], tensors[f"selected/{name}/shift"].numpy())
        return state
