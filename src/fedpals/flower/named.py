"""The methods by name: thin siblings over one strategy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy.typing as npt

from fedpals.flower.label_aware import LabelAware
from fedpals.methods import Method, method, option_keys


def strategy(name: str, target: npt.ArrayLike | None = None, **settings: Any) -> LabelAware:
    """Return the strategy of a method such as ``fedprox+fedpals``.

    ``settings`` are the method's options, and what `LabelAware` and Flower's FedAvg take.
    """
    made, rest = _split(name, settings)
    return LabelAware(made, target, **rest)


class _Named(LabelAware):
    """The strategy of one method; ``settings`` are as for `strategy`."""

    method_name: ClassVar[str]

    def __init__(self, target: npt.ArrayLike | None = None, **settings: Any) -> None:
        made, rest = _split(self.method_name, settings)
        super().__init__(made, target, **rest)


def _split(name: str, settings: dict[str, Any]) -> tuple[Method, dict[str, Any]]:
    """Return the method with its options, and the other settings."""
    keys = option_keys().keys()
    options = {key: value for key, value in settings.items() if key in keys}
    return method(name, options), {key: value for key, value in settings.items() if key not in keys}


class FedPALS(_Named):
    """α = argmin ‖T − Σ α_i S_i‖² + λ Σ α_i²/n_i over the nodes that replied; ``lam`` or ``ess``, 0.5 unless given."""

    method_name = "fedpals"


class FedAvg(_Named):
    """α_i = n_i/N, with the counts that clients told once."""

    method_name = "fedavg"


class FedSGD(_Named):
    """One gradient step on all samples of each client."""

    method_name = "fedsgd"


class FedProx(_Named):
    """Clients add μ/2 ‖w − w_t‖² to their loss; μ is ``proximal_weight``."""

    method_name = "fedprox"


class SCAFFOLD(_Named):
    """Control variates take the client drift out of every local step; the server's step is ``server_step``."""

    method_name = "scaffold"


class FedRS(_Named):
    """Clients scale the logits of labels they lack by ``absent_factor``."""

    method_name = "fedrs"


class LogitAdjusted(_Named):
    """Clients take the share ``adjustment`` of their own marginal, at least ``label_floor``, out of the model."""

    method_name = "logit_adjusted"


class AFL(_Named):
    """The mixture of clients that is worst for the model gets the weight, in steps of ``mixture_step``."""

    method_name = "afl"
