"""A strategy class for each method, all built on one strategy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy.typing as npt

from fedpals.flower.rounds import LabelAware
from fedpals.methods import Method, build_method, option_keys, options_of


def strategy(name: str, target: npt.ArrayLike | None = None, **settings: Any) -> LabelAware:
    """Return the strategy of a method such as ``fedprox+fedpals``.

    ``settings`` are the method's options and the arguments of `LabelAware` and Flower's FedAvg.
    """
    method, arguments = _split(name, settings)
    return LabelAware(method, target, **arguments)


class _NamedStrategy(LabelAware):
    """The strategy of one method; ``settings`` are as for `strategy`."""

    method_name: ClassVar[str]

    def __init__(self, target: npt.ArrayLike | None = None, **settings: Any) -> None:
        method, arguments = _split(self.method_name, settings)
        super().__init__(method, target, **arguments)


def _split(name: str, settings: dict[str, Any]) -> tuple[Method, dict[str, Any]]:
    """Return the method with its options, and the other settings."""
    keys = option_keys().keys()
    options = {key: value for key, value in settings.items() if key in keys}
    others = {key: value for key, value in settings.items() if key not in keys}
    method = build_method(name, options)
    if "ess" in options_of(name) and not {"ess", "lam"} & options.keys():
        others["if_held_out"] = build_method(name, {**options, "ess": "auto"})
    return method, others


class FedPALS(_NamedStrategy):
    """α = argmin ‖T − Σ α_i S_i‖² + λ Σ α_i²/n_i over the nodes that replied, by ``lam`` or ``ess``.

    Without either, ``ess`` is "auto" if clients hold samples out, else 0.5.
    """

    method_name = "fedpals"


class FedAvg(_NamedStrategy):
    """α_i = n_i/N, from the label counts that clients send once."""

    method_name = "fedavg"


class FedSGD(_NamedStrategy):
    """One gradient step on all samples of each client."""

    method_name = "fedsgd"


class FedProx(_NamedStrategy):
    """Clients add μ/2 ‖w − w_t‖² to their loss; μ is ``proximal_weight``."""

    method_name = "fedprox"


class SCAFFOLD(_NamedStrategy):
    """Control variates correct every local step for client drift; the server's step is ``server_step``."""

    method_name = "scaffold"


class FedRS(_NamedStrategy):
    """Clients scale logits by a + (1 − a)·n_c/max n, a being ``absent_factor``: its program's factor of step 1."""

    method_name = "fedrs_graded"


class FedRSBinary(_NamedStrategy):
    """Clients scale the logits of labels that they do not have by ``absent_factor``: the formula of FedRS's paper."""

    method_name = "fedrs_binary"


class FedLC(_NamedStrategy):
    """Clients train with logits − τ·n_c^(−1/4); τ is ``calibration``."""

    method_name = "fedlc"


class IWERM(_NamedStrategy):
    """Clients weigh their samples by T/S_i, or by T/S of all of them; needs ``tell_target=True``, as T shows."""

    method_name = "iwerm"


class LogitAdjusted(_NamedStrategy):
    """Clients remove the share ``adjustment`` of their own marginal, at least ``label_floor``, from the model."""

    method_name = "logit_adjusted"


class AFL(_NamedStrategy):
    """Weights move to the mixture of clients with the largest loss, in steps of ``mixture_step``."""

    method_name = "afl"


class FedDisco(_NamedStrategy):
    """α_i ∝ max(n_i/N − a·d_i + b, 0), d_i ∝ ‖S_i − T‖; a is ``discrepancy_weight``, b ``discrepancy_offset``."""

    method_name = "feddisco"
