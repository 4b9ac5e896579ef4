"""Checks of what a user asks a deployed server for, before anything is sent to clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedpals.config import validated
from fedpals.engine import privacy
from fedpals.engine.protection import Protection
from fedpals.errors import InputError
from fedpals.labels import LabelCounts, Vector, as_target
from fedpals.methods import Method


def checked_target(method: Method, target: npt.ArrayLike | None, *, tell_target: bool) -> Vector | None:
    """Return T, (K,), or None if there is none; raise `InputError` if a server cannot run ``method`` with it.

    ``tell_target`` says whether clients may find T out, which some methods tell them.
    """
    if target is None and (method.weighting.needs_target or method.rule.tells_target):
        raise InputError(f"{method.title} needs target, the K label probabilities of the target domain")
    if method.oracle:
        raise InputError("oracle redraws the clients' samples, which a server cannot do; use the simulator")
    if method.pooled:
        raise InputError("pooled puts all samples in one place, which a server cannot do; use the simulator")
    if method.rule.tells_target and not tell_target:
        raise InputError(
            f"{method.title} tells every client what T is, which stays on the server otherwise; give "
            "tell_target=True if clients may know it"
        )
    if target is None:
        return None
    return as_target(target, LabelCounts.of(np.ones((1, np.size(np.asarray(target))))))


def check_server(max_samples: int | None, server_momentum: float | None, averaging: float | None) -> None:
    """Raise `InputError` if one of the server's settings is out of bounds."""
    if max_samples is not None and max_samples < 1:
        raise InputError(f"max_samples is {max_samples}; it must be at least 1")
    for name, value in (("server_momentum", server_momentum), ("averaging", averaging)):
        if value is not None and not 0 < value < 1:
            raise InputError(f"{name} is {value}; it must be between 0 and 1, for instance 0.9")


def take_protection(settings: dict[str, Any], method: Method) -> Protection:
    """Take the keys of a `Protection` out of a server's ``settings``; far updates are refused unless it says else."""
    keys = {key: settings.pop(key) for key in Protection.model_fields if key in settings}
    if keys.get("clip_update") is None:
        keys.setdefault("outliers", "refuse")
    protection = validated(Protection, keys)
    if protection.private:
        privacy.check_method(method)
        privacy.require_accountant()
    return protection
