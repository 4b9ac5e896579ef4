"""Why an update, or another reply of a client, cannot be used: the one place where updates are checked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
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


def usual_shape(updates: Sequence[Update | str], like: Tensor) -> torch.Size:
    """Return the shape that most of the rule's vectors have; where two are as frequent, rather that of ``like``.

    A network's buffers have no gradient, so that these vectors may be shorter than the global one, and only the clients
    know by how much.
    """
    shapes = Counter(u.state.shape for u in updates if isinstance(u, Update) and u.state is not None)
    return max(shapes, key=lambda shape: (shapes[shape], shape == like.shape), default=like.shape)


def why_refused(update: Update, like: Tensor, rule_shape: torch.Size | None = None) -> str | None:
    """Return why an update cannot be aggregated, or None.

    ``like`` is the global vector; ``rule_shape`` is that of the rule's vectors, None where it keeps none.
    """
    if update.loss is not None and not math.isfinite(update.loss):
        return f"its loss is {update.loss}"  # parameters that are about to diverge may still be finite
    if update.vector.shape != like.shape:
        return f"{tuple(update.vector.shape)} parameters instead of {tuple(like.shape)}"
    if rule_shape is not None and update.state is None:
        return "it sends no vector of the rule"
    if rule_shape is not None and update.state is not None and update.state.shape != rule_shape:
        return f"the rule's vector has shape {tuple(update.state.shape)} instead of {tuple(rule_shape)}"
    if bad := _not_finite(update.vector):
        return f"{bad} of {like.numel()} parameters are NaN or infinite"
    if update.state is not None and (bad := _not_finite(update.state)):
        return f"{bad} of {update.state.numel()} entries of the rule's vector are NaN or infinite"
    return None


def _not_finite(vector: Tensor) -> int:
    return int((~torch.isfinite(vector)).sum())
