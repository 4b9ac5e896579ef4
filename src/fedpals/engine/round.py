"""What happened in a round; loads no torch, because records are read without it."""

from __future__ import annotations

from dataclasses import dataclass

from fedpals.labels import Indices, Vector


@dataclass(frozen=True)
class Refusal:
    """A client whose update was not used, and why."""

    client: int
    reason: str


@dataclass(frozen=True)
class EssChoice:
    """Which effective sample size was chosen in a round, and what the candidates are worth."""

    ess: float
    """The chosen one, a fraction of the participants' samples."""
    candidates: tuple[float, ...] = ()
    """ESS that were compared; none where nobody compared."""
    losses: tuple[float, ...] = ()
    """Their estimated losses in the target."""
    errors: tuple[float, ...] = ()
    """Standard errors of the differences to the smallest of these losses."""


@dataclass(frozen=True, eq=False)
class Round:
    """What happened in a round."""

    number: int
    participants: Indices
    """The clients whose weights were solved for; refused ones are not among them."""
    alpha: Vector
    trained: int
    """How many participants had weight in a candidate, hence were trained."""
    loss: float
    """Σ α_i of the clients' mean losses; NaN where one of them does not tell it."""
    refused: tuple[Refusal, ...]
    choice: EssChoice | None = None
    """Where the weighting chooses."""
