"""Everything a server carries from round to round, as a checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedpals.engine import checkpoint
from fedpals.engine.outliers import Lengths
from fedpals.errors import InputError
from fedpals.labels import Vector


@dataclass(eq=False)
class ServerState:
    """Everything a server carries from round to round."""

    round: int
    vector: Tensor
    velocity: Tensor | None = None
    """Where the global vector is heading, where the server has momentum."""
    average: Tensor | None = None
    """Running mean of the global vectors, where the server keeps one."""
    clients: dict[int, Tensor] = field(default_factory=dict)
    """The rule's vectors of clients."""
    weighting: Vector | None = None
    position: int | None = None
    """Number of the weights that were chosen last, where the weighting has several; None before they are compared."""
    mixes: list[Vector] = field(default_factory=list)
    """p_α of the last rounds, as many as it takes every client to have its turn."""
    lengths: Lengths = field(default_factory=dict)
    """The longest that clients have sent in line with the others."""
    spent: Vector | None = None
    """μ² of every client, with differential privacy."""
    noise_key: str | None = None
    """Secret that the noise for privacy is drawn with; whoever has it can take the noise away."""

    @property
    def model(self) -> Tensor:
        """The parameters that are worth most: the mean where there is one, else the last."""
        return self.vector if self.average is None else self.average.to(self.vector.dtype)

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all."""
        checkpoint.save(path, *self.parts())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a state that `save` wrote."""
        tensors, facts = checkpoint.load(path)
        try:
            state = cls.of(tensors, facts)
            state.check()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            raise InputError(f"{path}: not a checkpoint of such a run ({reason}); {checkpoint.remedy(path)}") from None
        return state

    def check(self) -> None:
        """Raise `InputError` if the parts of a state that was read cannot be those of one run."""
        if type(self.round) is not int or self.round < 0:
            raise InputError(f"its round is {self.round!r}")
        if self.vector.ndim != 1 or not self.vector.isfinite().all():
            raise InputError("its model is not one vector of finite numbers")
        for name in ("velocity", "average"):
            part = getattr(self, name)
            if part is not None and part.shape != self.vector.shape:
                raise InputError(f"its {name} has the shape {tuple(part.shape)} instead of {tuple(self.vector.shape)}")
        spent = self.spent
        if spent is not None and not (spent.ndim == 1 and np.isfinite(spent).all() and (spent >= 0).all()):
            raise InputError("what its clients have spent of their privacy is not one number of at least 0 for each")

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the facts that the state consists of."""
        tensors = {"vector": self.vector} | {f"client/{i}": t for i, t in self.clients.items()}
        tensors |= {name: t for name in ("velocity", "average") if (t := getattr(self, name)) is not None}
        if self.weighting is not None:
            tensors["weighting"] = torch.from_numpy(self.weighting)
        if self.mixes:
            tensors["mixes"] = torch.from_numpy(np.array(self.mixes))
        if self.spent is not None:
            tensors["spent"] = torch.from_numpy(self.spent)
        for what, norms in self.lengths.items():  # as text they would take long with many clients
            tensors[f"clients/{what}"] = torch.tensor(list(norms), dtype=torch.int64)
            tensors[f"lengths/{what}"] = torch.tensor(list(norms.values()), dtype=torch.float64)
        facts = {"round": self.round, "position": self.position, "noise_key": self.noise_key}
        return tensors, {name: value for name, value in facts.items() if value is not None}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        """Put a state together from its parts."""
        return cls(
            round=facts["round"],
            vector=tensors["vector"],
            velocity=tensors.get("velocity"),
            average=tensors.get("average"),
            clients={int(name[7:]): t for name, t in tensors.items() if name.startswith("client/")},
            weighting=tensors["weighting"].numpy() if "weighting" in tensors else None,
            position=facts.get("position"),
            mixes=list(tensors["mixes"].numpy()) if "mixes" in tensors else [],
            lengths={
                name[8:]: dict(zip(tensors[f"clients/{name[8:]}"].tolist(), norms.tolist(), strict=True))
                for name, norms in tensors.items()
                if name.startswith("lengths/")
            },
            spent=tensors["spent"].numpy() if "spent" in tensors else None,
            noise_key=facts.get("noise_key"),
        )
