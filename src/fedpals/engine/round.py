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


@dataclass(frozen=True)
class PrivacySpent:
    """What differential privacy has cost after a round: ε at δ of the client that has spent most."""

    epsilon: float
    delta: float
    client: int
    sigma: float
    """Standard deviation of this round's noise in every parameter."""
    clipped: int
    """How many updates of this round were shortened; a number of the server's that no noise covers."""


@dataclass(frozen=True)
class Outlier:
    """A client whose update, or whose vector of the rule, is far longer than the others'."""

    client: int
    norm: float
    median: float
    """Of all clients' norms in the round."""
    what: str
    """The update, or the rule's vector."""

    def __str__(self) -> str:
        times = self.norm / self.median
        return f"the norm of its {self.what} is {self.norm:.3g}, {times:.3g} times the median of the round's clients"


@dataclass(frozen=True, eq=False)
class Round:
    """What happened in a round."""

    number: int
    participants: Indices
    """The clients whose weights were solved for; refused ones are not among them, but for those that count as zero."""
    alpha: Vector
    """Their weights in the mean that the global model became."""
    trained: int
    """How many participants had weight in a candidate, hence were trained."""
    loss: float
    """Σ α_i of the clients' mean losses; NaN where one of them does not tell it."""
    refused: tuple[Refusal, ...]
    choice: EssChoice | None = None
    """Where the weighting chooses."""
    privacy: PrivacySpent | None = None
    """Where the models carry noise for differential privacy."""
    outliers: tuple[Outlier, ...] = ()
    """Clients whose updates are far longer than the others', whatever was done to them."""
    uncompared: str = ""
    """Why candidates were not compared, where there were several and they were not."""
