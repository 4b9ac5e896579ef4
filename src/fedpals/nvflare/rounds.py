"""The server's rounds on FLARE: the simulator's server, with sites reached by an exchange of models."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel

from fedpals.engine import summary
from fedpals.engine.client import Update
from fedpals.engine.layout import Layout, Values
from fedpals.engine.protection import Protection
from fedpals.engine.refusal import Refused
from fedpals.engine.roster import Introduction, Roster
from fedpals.engine.round import Round
from fedpals.engine.server import DivergedError, Server
from fedpals.engine.state import ServerState
from fedpals.errors import FedpalsError
from fedpals.labels import Vector
from fedpals.methods import Method
from fedpals.nvflare import messages

Answer: TypeAlias = FLModel | str
"""What a site has answered, or why there is none."""

Enough = Callable[[Mapping[str, Answer]], bool]
"""Says whether answers suffice to go on without the others."""


class TooFewSitesError(FedpalsError, TimeoutError):
    """Not enough sites have sent usable label counts."""


class Exchange(Protocol):
    """How sites are reached."""

    def sites(self) -> Sequence[str]:
        """Return the names of the sites that can be reached."""
        ...

    def ask(self, task: str, requests: Mapping[str, FLModel], enough: Enough | None = None) -> dict[str, Answer]:
        """Send every site its message; return its answer, or why there is none.

        Once the answers are ``enough``, the other sites are waited for only as long as there is news.
        """
        ...


@dataclass(frozen=True)
class Settings:
    """What a run needs beside the method, T and the initial arrays."""

    num_rounds: int
    min_clients: int
    participation: float = 1.0
    seed: int = 0
    max_samples: int | None = None
    server_momentum: float | None = None
    averaging: float | None = None
    protection: Protection = field(default_factory=Protection)


class Rounds:
    """One run: the server's state, the sites by row, and the exchange."""

    def __init__(
        self,
        method: Method,
        target: Vector | None,
        initial: Mapping[str, Values],
        settings: Settings,
        exchange: Exchange,
        log: logging.Logger,
    ) -> None:
        self.method, self.target, self.settings, self.exchange, self.log = method, target, settings, exchange, log
        self.layout = Layout.like(initial, "the initial model")
        self.state = ServerState(0, self.layout.flatten(initial))
        self.roster: Roster[str] = Roster(None if target is None else target.size, settings.max_samples)
        self.server: Server | None = None
        self._silent: dict[str, str] = {}
        """Reasons for which sites that were asked last have not sent their label counts, by site."""

    @property
    def arrays(self) -> dict[str, Values]:
        """The model to use: the running mean if there is one, otherwise the last arrays."""
        return self.layout.unflatten(self.state.model)

    def advance(self) -> Round:
        """Compute one round, and log it."""
        server, number = self._admit(), self.state.round + 1
        participants = server.participants(number, self.roster.present)
        try:
            result = server.advance(participants, self._train, self._losses)
        except DivergedError as error:
            names = ", ".join(f"client {row} is {self.name(row)}" for row in participants.tolist()[:3])
            raise DivergedError(
                f"{error}; {names}; if sites are late, raise train_timeout; if they diverge, lower their learning rate"
            ) from None
        for warning in summary.warnings(server, result, self.name):
            self.log.warning(warning)
        for line in summary.lines(server, result, self.name):
            self.log.info(line)
        return result

    def name(self, row: int) -> str:
        """Return the name of a row's site."""
        return self.roster.members[row].node

    def _admit(self) -> Server:
        """Ask new sites for their counts; return the server, which knows all that have sent some."""
        self._ask_for_counts()
        ready, needed = self.roster.present.size, self.settings.min_clients
        if ready < needed:
            raise TooFewSitesError(
                f"round {self.state.round + 1}: {ready} of the {needed} sites needed (min_clients={needed}) have sent "
                f"label counts{self._missing()}; look at the logs of the others, let all scripts call "
                "fedpals.nvflare.send_label_counts, or lower min_clients"
            )
        counts = self.roster.counts
        if self.server is None:
            pooled = np.asarray(counts.sizes @ counts.marginals / counts.total)
            self.server = Server(
                self.method,
                counts,
                pooled if self.target is None else self.target,
                self.state,
                participation=self.settings.participation,
                momentum=self.settings.server_momentum,
                averaging=self.settings.averaging,
                protection=self.settings.protection,
                seed=self.settings.seed,
            )
        elif self.server.counts.shape[0] < len(self.roster.members):
            self.server.admit(counts, self.roster.present, np.arange(len(self.roster.members)))  # a site is its name
        return self.server

    def _missing(self) -> str:
        """Return the sites that are not ready, with reasons, in parentheses."""
        present = set(self.roster.present.tolist())
        gone = {
            self.name(row): "lost, or silent since" for row in range(len(self.roster.members)) if row not in present
        }
        reasons = gone | self._silent | self.roster.refused
        return f" ({'; '.join(f'{site}: {reason}' for site, reason in sorted(reasons.items()))})" if reasons else ""

    def _ask_for_counts(self) -> None:
        asked = self.roster.connected(self.exchange.sites())
        introductions: dict[str, Introduction] = {}
        read: set[str] = set()

        def hear(answers: Mapping[str, Answer]) -> bool:
            """Read new answers; return whether enough sites are ready."""
            new: dict[str, Introduction] = {}
            for site in answers.keys() - read:
                answer = answers[site]
                try:
                    if not isinstance(answer, str):
                        new[site] = messages.read_label_counts(answer)
                except Refused as refusal:
                    self.roster.refuse(site, str(refusal))
            read.update(answers)
            self.roster.hear(new)
            introductions.update(new)
            return self.roster.present.size >= self.settings.min_clients

        answers = self.exchange.ask(messages.LABEL_COUNTS, dict.fromkeys(asked, messages.question()), hear)
        hear(answers)
        self.roster.settle()
        self._silent = {site: answer for site, answer in answers.items() if isinstance(answer, str)}
        for site, reason in self._silent.items():
            self.log.warning("%s sends no label counts: %s; it will be asked again", site, reason)
        for site in (site for site in asked if site in self.roster.refused):
            self.log.warning("%s is refused: %s", site, self.roster.refused[site])
        for claim in self.roster.claims(introductions, self.name) if introductions else ():
            self.log.warning(claim)

    def _train(self, rows: Sequence[int]) -> Iterable[Update | str]:
        assert self.server is not None
        arrays, rule, number = self.layout.unflatten(self.state.vector), self.method.rule, self.state.round + 1
        server = self.server.rule_vector
        jobs = {
            self.name(row): messages.job(
                arrays, number, self.settings.num_rounds, rule, server, self.state.clients.get(row)
            )
            for row in rows
        }
        answers = self.exchange.ask(messages.TRAIN, jobs)
        return [self._read(row, answers[self.name(row)]) for row in rows]

    def _read(self, row: int, answer: Answer) -> Update | str:
        """Return the update in an answer, or why there is none."""
        if isinstance(answer, str):
            return answer
        try:
            update, counts = messages.read_update(answer, self.layout, self.state.vector, self.method.rule)
            if counts is not None:
                self.roster.unchanged(row, counts)
        except Refused as refusal:
            return str(refusal)
        return update

    def _losses(self, rows: Sequence[int]) -> Iterable[float]:
        arrays = self.layout.unflatten(self.state.vector)
        requests = {self.name(row): FLModel(params=arrays) for row in rows}
        answers = self.exchange.ask(messages.LOSS, requests)
        losses = [messages.read_loss(answers[site]) for site in requests]
        for site in (site for site, loss in zip(requests, losses, strict=True) if not math.isfinite(loss)):
            self.log.warning("%s sends no loss; its share of AFL's mixture stays the same", site)
        return losses
