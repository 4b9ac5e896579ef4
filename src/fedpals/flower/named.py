"""The methods by name: thin siblings over one strategy."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from fedpals.flower.label_aware import LabelAware
from fedpals.methods import method, option_names


def strategy(name: str, target: npt.ArrayLike | None = None, **settings: Any) -> LabelAware:
    """Return the strategy of a method such as ``fedprox+fedpals``.

    ``settings`` are the method's options, and what `LabelAware` and Flower's FedAvg take.
    """
    options = {key: settings.pop(key) for key in option_names() & settings.keys()}
    return LabelAware(method(name, {k: v for k, v in options.items() if v is not None}), target, **settings)


class FedPALS(LabelAware):
    """α = argmin ‖T − Σ α_i S_i‖² + λ Σ α_i²/n_i over the nodes that replied; give ``lam`` or ``ess``."""

    def __init__(
        self, target: npt.ArrayLike, *, ess: float | None = None, lam: float | None = None, **settings: Any
    ) -> None:
        given = {"ess": ess, "lam": lam} if ess is not None or lam is not None else {"ess": 0.5}
        super().__init__(method("fedpals", {k: v for k, v in given.items() if v is not None}), target, **settings)


class FedAvg(LabelAware):
    """α_i = n_i/N, with the counts that clients told once."""

    def __init__(self, target: npt.ArrayLike | None = None, **settings: Any) -> None:
        super().__init__(method("fedavg"), target, **settings)


class FedSGD(LabelAware):
    """One gradient step on all samples of each client."""

    def __init__(self, target: npt.ArrayLike | None = None, **settings: Any) -> None:
        super().__init__(method("fedsgd"), target, **settings)


class FedProx(LabelAware):
    """Clients add μ/2 ‖w − w_t‖² to their loss; μ is ``proximal_weight``."""

    def __init__(self, target: npt.ArrayLike | None = None, *, proximal_weight: float = 0.01, **settings: Any) -> None:
        super().__init__(method("fedprox", {"proximal_weight": proximal_weight}), target, **settings)


class SCAFFOLD(LabelAware):
    """Control variates take the client drift out of every local step."""

    def __init__(self, target: npt.ArrayLike | None = None, *, server_step: float = 1.0, **settings: Any) -> None:
        super().__init__(method("scaffold", {"server_step": server_step}), target, **settings)


class FedRS(LabelAware):
    """Clients scale the logits of labels they lack by ``absent_factor``."""

    def __init__(self, target: npt.ArrayLike | None = None, *, absent_factor: float = 0.5, **settings: Any) -> None:
        super().__init__(method("fedrs", {"absent_factor": absent_factor}), target, **settings)


class LogitAdjusted(LabelAware):
    """Clients take the share ``adjustment`` of their own marginal out of what the model learns."""

    def __init__(
        self,
        target: npt.ArrayLike | None = None,
        *,
        adjustment: float = 1.0,
        label_floor: float = 0.01,
        **settings: Any,
    ) -> None:
        options = {"adjustment": adjustment, "label_floor": label_floor}
        super().__init__(method("logit_adjusted", options), target, **settings)


class AFL(LabelAware):
    """The mixture of clients that is worst for the model gets the weight."""

    def __init__(self, target: npt.ArrayLike | None = None, *, mixture_step: float = 0.1, **settings: Any) -> None:
        super().__init__(method("afl", {"mixture_step": mixture_step}), target, **settings)
