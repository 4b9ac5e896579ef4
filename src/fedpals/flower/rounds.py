"""A Flower strategy for every method: the server of the simulator, reached by messages."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import Result

from fedpals.engine.client import Update
from fedpals.engine.refusal import Refused
from fedpals.engine.round import Round
from fedpals.engine.server import DivergedError, Server
from fedpals.errors import InputError
from fedpals.flower import attendance, heldout, messages, reporting
from fedpals.flower.arrays import Layout
from fedpals.flower.roster import Roster
from fedpals.flower.session import FlowerState, Session
from fedpals.labels import LabelCounts, Vector, as_target
from fedpals.methods import Method
from fedpals.rng import generator
from fedpals.shift import Head, Homogeneity, Tally

_log = logging.getLogger("flwr")


class LabelAware(strategy.FedAvg):
    """Flower's FedAvg with the method's weights: solved from label counts for the nodes that replied.

    Parameters
    ----------
    method
        Client rule and weighting; `fedpals.flower.strategy` and its siblings make one from a name.
    target
        T, K probabilities. Stays on the server. None for methods that do not look at it.
    seed
        Of the draw of participants.
    wait
        Seconds to wait for ``min_available_nodes``, after which `TooFewNodesError` is raised.
    max_samples
        No client counts as more samples than this, whatever it claims.
    server_momentum
        Share of its last move that the global model repeats in every round.
    averaging
        Decay of the running mean of the global models, which is evaluated and returned in place of the last of them.
    checkpoint
        File that holds the state after every round; `start` continues from it where it exists.
    flower
        What Flower's FedAvg takes: ``fraction_train``, ``min_available_nodes``, … Its
        ``weighted_by_key`` only weighs metrics of evaluation.
    """

    def __init__(
        self,
        method: Method,
        target: npt.ArrayLike | None = None,
        *,
        seed: int = 0,
        wait: float = 600.0,
        max_samples: int | None = None,
        server_momentum: float | None = None,
        averaging: float | None = None,
        checkpoint: Path | str | None = None,
        min_train_nodes: int = 1,
        **flower: Any,
    ) -> None:
        super().__init__(min_train_nodes=min_train_nodes, **flower)
        self._averages_metrics = flower.get("train_metrics_aggr_fn") is not None
        if target is None and method.weighting.needs_target:
            raise InputError(f"{method.title} needs target, the K label probabilities of the place to train for")
        if method.oracle:
            raise InputError("oracle redraws the clients' samples, which no server can; use the simulator")
        if max_samples is not None and max_samples < 1:
            raise InputError(f"max_samples is {max_samples}; it must be at least 1")
        for name, value in (("server_momentum", server_momentum), ("averaging", averaging)):
            if value is not None and not 0 < value < 1:
                raise InputError(f"{name} is {value}; it must be between 0 and 1, for instance 0.9")
        if not 0 < self.fraction_train <= 1:
            raise InputError(f"fraction_train is {self.fraction_train}; it must be above 0 and at most 1")
        self.method, self.seed, self.wait, self.max_samples = method, seed, wait, max_samples
        self.server_momentum, self.averaging = server_momentum, averaging
        self.target: Vector | None = None
        if target is not None:
            self.target = as_target(target, LabelCounts.of(np.ones((1, np.size(np.asarray(target))))))
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.rounds: list[Round] = []
        """What happened in the rounds of this process."""
        self._session: Session | None = None

    @property
    def prior_shift(self) -> Vector:
        """log T − log p_α, (K,), to be added to the logits in the target domain."""
        return self._ran("prior_shift").admit(self._build).prior_shift

    @property
    def best_round(self) -> int:
        """The round whose model is worth most in the target, as the samples that clients hold out estimate it."""
        return heldout.best(self._ran("best_round")).round

    @property
    def best_arrays(self) -> ArrayRecord:
        """The model of `best_round`."""
        session = self._ran("best_arrays")
        return session.layout.record(heldout.best(session).vector)

    @property
    def tally(self) -> Tally:
        """What the last model makes of the samples that clients hold out, over all of them.

        With the model's predictions on unlabelled inputs of the target, `fedpals.shift.bbse` estimates T by it.
        """
        return heldout.tally(self._ran("tally"))

    def check(self) -> Homogeneity:
        """Test whether clients differ by their labels alone, from their last tallies."""
        return heldout.check(self._ran("check"), self.seed)

    def with_gaussian_head(self) -> tuple[ArrayRecord, Head]:
        """Ask the participants for sums of features; return the model with the Gaussian head in its last layer.

        The head itself is needed only where no client has some label of the target: its ``stands_for`` then says
        which outputs mean that label, and it maps features to logits that the arrays alone cannot yield.
        """
        return heldout.with_gaussian_head(*self._asking("with_gaussian_head"))

    def with_recommended_layer(self) -> tuple[ArrayRecord, Head]:
        """Return the model with the last layer to use: its own and the Gaussian head, calibrated and joined.

        Participants are asked for what the Gaussian head needs, and for features and labels of the samples that they
        hold out. The layer itself is needed where that of `with_gaussian_head` is.
        """
        return heldout.with_recommended_layer(*self._asking("with_recommended_layer"))

    def _asking(self, what: str) -> tuple[Session, list[int], str]:
        """Return the session, the participants of the last round, and what messages to them call arrays."""
        session = self._ran(what)
        assert session.grid is not None
        attendance.wait_for_nodes(session, session.grid, what, self.min_available_nodes, self.wait)
        rows = session.admit(self._build).participants(session.state.round, session.roster.present)
        return session, rows.tolist(), self.arrayrecord_key

    def summary(self) -> None:
        """Log what the strategy does."""
        _log.info("\t├──> Method: %s (client rule %s, weighting %s)", *self._names())
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds up to ``num_rounds``, from the checkpoint on where there is one."""
        session = self._session = self._begin(initial_arrays, timeout)
        session.grid = grid
        done, arrays = session.state.round, session.layout.record(session.state.vector)
        if done:
            _log.info("%s: continues after round %d", self.checkpoint, done)
        shifted = (
            None if evaluate_fn is None else lambda number, now: evaluate_fn(done + number, session.evaluated(now))
        )
        result = super().start(grid, arrays, max(0, num_rounds - done), timeout, train_config, evaluate_config, shifted)
        for told in (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        ):
            numbered = {done + number: metrics for number, metrics in told.items()}
            told.clear()
            told.update(numbered)
        result.arrays = session.model
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Wait for enough nodes, draw the participants, and address those that have weight."""
        del server_round  # counted from the checkpoint on; the state knows the number
        session = self._session = self._session or replace(self._begin(arrays, None), wrapped=True)
        if session.wrapped and (self.server_momentum or self.averaging):
            raise InputError(
                "server_momentum and averaging know models without a wrapper's noise; leave out the wrapper"
            )
        number = session.state.round + 1
        try:
            session.state.vector = session.layout.vector(arrays)
        except Refused as why:
            raise InputError(f"round {number}: the global arrays are not those of the first round: {why}") from None
        attendance.wait_for_nodes(session, grid, f"round {number}", self.min_available_nodes, self.wait)
        server = session.admit(self._build)
        session.grid, session.arrays = grid, arrays
        session.config = ConfigRecord({**config, "server-round": number})
        session.participants = server.participants(number, session.roster.present)
        alpha = server.weigh(session.participants)
        _log.info("configure_train: %d of %d clients take part", session.participants.size, len(session.roster.members))
        return self._jobs(session, session.participants[alpha > 0].tolist())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refuse what cannot be used, weigh the rest afresh, and aggregate it."""
        del server_round
        session = self._session
        assert session is not None
        assert session.server is not None, "configure_train comes first"
        assert session.grid is not None
        grid = session.grid
        first: list[Message] | None = list(replies)
        contents: dict[int, RecordDict] = {}

        def train(rows: Sequence[int]) -> Iterable[Update | str]:
            nonlocal first
            if first is None:  # participants who got weight through a refusal
                first = list(grid.send_and_receive(self._jobs(session, rows), timeout=session.timeout))
            answers, first = session.sort(rows, first), None
            return [self._read(session, row, answers[row], contents) for row in rows]

        def losses(rows: Sequence[int]) -> Iterable[float]:
            record = RecordDict({self.arrayrecord_key: session.arrays})
            answers = session.ask(messages.LOSS, rows, record)
            told = [math.nan if isinstance(a, str) else messages.read_loss(a) for a in answers.values()]
            for row in (row for row, loss in zip(rows, told, strict=True) if not math.isfinite(loss)):
                _log.warning("%s tells no loss; its share of AFL's mixture stays", session.name(row))
            return told

        try:
            done = session.server.advance(session.participants, train, losses)
        except DivergedError as error:
            raise DivergedError(f"{error}; {self._remedy(session)}") from None
        self.rounds.append(done)
        metrics = self._report(session, done, contents)
        if not session.wrapped:  # else clients would see the arrays without the wrapper's noise
            metrics.update(heldout.estimate(session, done.participants.tolist(), self.arrayrecord_key))
        if self.checkpoint is not None:
            session.state.members = session.roster.members
            session.state.save(self.checkpoint)
        return session.layout.record(session.state.vector), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the nodes to evaluate at, in a bounded time and with an addressed generator."""
        if self.fraction_evaluate == 0.0 or self._session is None:
            return []
        number = self._session.state.round if self._session.state.round else server_round
        when = f"evaluation of round {number}"
        attendance.wait_for_nodes(self._session, grid, when, self.min_available_nodes, self.wait)
        nodes = np.array([self._session.node(row) for row in self._session.roster.present.tolist()], dtype=object)
        count = min(len(nodes), max(self.min_evaluate_nodes, int(self.fraction_evaluate * len(nodes))))
        chosen = np.sort(generator(self.seed, "evaluated", number).choice(len(nodes), count, replace=False))
        record = RecordDict(
            {
                self.arrayrecord_key: self._session.evaluated(arrays),
                self.configrecord_key: ConfigRecord({**config, "server-round": number}),
            }
        )
        return [_message(record, MessageType.EVALUATE, node) for node in nodes[chosen]]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics; replies that do not fit together are no reason to end the run."""
        try:
            return super().aggregate_evaluate(server_round, replies)
        except (InconsistentMessageReplies, ArithmeticError, ValueError, TypeError) as error:
            _log.warning("round %d: the metrics of evaluation cannot be averaged: %s", server_round, error)
            return None

    def _build(self, counts: LabelCounts) -> Server:
        """Return the server of a run; without a target the clients' pooled marginal stands for it."""
        assert self._session is not None
        pooled = np.asarray(counts.sizes @ counts.marginals / counts.total)
        return Server(
            self.method,
            counts,
            pooled if self.target is None else self.target,
            self._session.state,
            participation=self.fraction_train,
            minimum=self.min_train_nodes,
            momentum=self.server_momentum,
            averaging=self.averaging,
            seed=self.seed,
        )

    def _begin(self, arrays: ArrayRecord, timeout: float | None) -> Session:
        layout = Layout.of(arrays)
        settings = {
            "method": self.method.name,
            "options": {**asdict(self.method.rule), **asdict(self.method.weighting)},
            "target": None if self.target is None else self.target.tolist(),
            "seed": self.seed,
            "fraction_train": self.fraction_train,
            "server_momentum": self.server_momentum,
            "averaging": self.averaging,
            "arrays": layout.facts(),
        }
        if self.checkpoint is not None and self.checkpoint.is_file():
            state = FlowerState.load(self.checkpoint)
            if differs := [key for key, value in settings.items() if state.settings.get(key) != value]:
                raise InputError(
                    f"{self.checkpoint}: belongs to a run with another {differs[0]} "
                    f"({state.settings.get(differs[0])}); choose another file, or delete it to start afresh"
                )
        else:
            state = FlowerState(0, layout.vector(arrays), settings=settings)
        labels = None if self.target is None else self.target.size
        return Session(layout, state, Roster(labels, self.max_samples, state.members), timeout)

    def _jobs(self, session: Session, rows: Iterable[int]) -> list[Message]:
        """Return the training messages of clients; they share all records but the rule's vector of the client."""
        rule, state = self.method.rule, session.state
        shared = RecordDict(
            {
                self.arrayrecord_key: session.arrays,
                self.configrecord_key: session.config,
                **messages.job(rule, state.server, None),
            }
        )
        sent = []
        for row in rows:
            vector = state.clients.get(row)
            record = shared if vector is None else RecordDict({**shared, **messages.job(rule, None, vector)})
            sent.append(_message(record, MessageType.TRAIN, session.node(row)))
        return sent

    def _read(
        self, session: Session, row: int, answer: RecordDict | str, contents: dict[int, RecordDict]
    ) -> Update | str:
        """Return the update in an answer, or why there is none."""
        if isinstance(answer, str):
            return answer
        try:
            if messages.repeats_labelcounts(answer):
                session.roster.unchanged(row, messages.read_labelcounts(answer).counts)
            update = messages.read_update(answer, session.layout, self.method.rule)
        except Refused as why:
            return str(why)
        contents[row] = answer
        return update

    def _report(self, session: Session, done: Round, contents: Mapping[int, RecordDict]) -> MetricRecord:
        """Log the round and return its metrics: the clients' own, weighed as their arrays, and ours."""
        ours = reporting.log_round(session, done)
        used = {row: a for row, a in zip(done.participants.tolist(), done.alpha.tolist(), strict=True) if a > 0}
        replies, alpha = [contents[row] for row in used], list(used.values())
        if self._averages_metrics:
            return MetricRecord({**self.train_metrics_aggr_fn(replies, self.weighted_by_key), **ours})
        return MetricRecord({**reporting.average_metrics(replies, alpha, leave_out=self.weighted_by_key), **ours})

    def _remedy(self, session: Session) -> str:
        within = "" if session.timeout is None else f" of {session.timeout:g} s"
        kept = (
            "" if self.checkpoint is None else f". The state after round {session.state.round} is in {self.checkpoint}"
        )
        return f"if clients are late raise the timeout{within}; if they diverge lower their learning rate{kept}"

    def _ran(self, what: str) -> Session:
        if self._session is None or not self._session.state.round:
            raise InputError(f"{what} is known after the first round")
        return self._session

    def _names(self) -> tuple[str, str, str]:
        return self.method.title, self.method.rule.name, self.method.weighting.name


def _message(record: RecordDict, kind: str, node: int) -> Message:
    return Message(content=record, message_type=kind, dst_node_id=node)
