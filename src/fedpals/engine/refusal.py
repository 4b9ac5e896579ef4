"""Why an update, or another reply of a client, cannot be used: the one place where updates are checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedpals.engine.client import Update


class Refused(Exception):  # noqa: N818 -- a verdict on a reply, which never reaches the user as an error
    """Why a reply cannot be used."""


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn whatever goes wrong while ``what`` of a reply is read into `Refused`: a stranger chose its bytes."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:  # noqa: BLE001 -- one reply never ends the run
        raise Refused(f"{what} cannot be read ({type(error).__name__}: {error})") from None


def why_refused(update: Update, like: Tensor, rule_vector: Tensor | None = None) -> str | None:
    """Return why an update cannot be aggregated, or None.

    ``like`` is the global vector; ``rule_vector`` is one of the rule's vectors, where there is one already.
    """
    if update.loss is not None and not math.isfinite(update.loss):
        return f"its loss is {update.loss}"  # parameters that are about to diverge may still be finite
    if update.vector.shape != like.shape:
        return f"{tuple(update.vector.shape)} parameters instead of {tuple(like.shape)}"
    if rule_vector is not None and update.state is not None and update.state.shape != rule_vector.shape:
        return f"the rule's vector has shape {tuple(update.state.shape)} instead of {tuple(rule_vector.shape)}"
    if bad := _not_finite(update.vector):
        return f"{bad} of {like.numel()} parameters are NaN or infinite"
    if update.state is not None and (bad := _not_finite(update.state)):
        return f"{bad} of {update.state.numel()} entries of the rule's vector are NaN or infinite"
    return None


def _not_finite(vector: Tensor) -> int:
    return int((~torch.isfinite(vector)).sum())
