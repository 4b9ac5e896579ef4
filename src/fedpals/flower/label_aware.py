"""A Flower strategy for every method: the server of the simulator, reached by messages."""

from __future__ import annotations

import logging
import math
import time
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

from fedpals.errors import FedpalsError, InputError
from fedpals.flower import messages, sums
from fedpals.flower.arrays import Layout, Refused
from fedpals.flower.roster import Roster
from fedpals.flower.session import Session, State
from fedpals.labels import LabelCounts, Vector, as_target
from fedpals.methods import Method
from fedpals.methods.pals import Pals
from fedpals.rng import generator
from fedpals.server import DivergedError, Round, Server
from fedpals.shift import Head, Homogeneity, Tally
from fedpals.training import Update

_log = logging.getLogger("flwr")
_POLL = 1.0
"""Seconds between two looks at who is connected."""
_SHOWN = 10
"""As many weights stand in the log, the largest first."""


class TooFewNodesError(FedpalsError, TimeoutError):
    """Not enough nodes connected in time."""


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
        if target is None and isinstance(method.weighting, Pals):
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
        return sums.best(self._ran("best_round")).round

    @property
    def best_arrays(self) -> ArrayRecord:
        """The model of `best_round`."""
        session = self._ran("best_arrays")
        return session.layout.record(sums.best(session).vector)

    @property
    def tally(self) -> Tally:
        """What the last model makes of the samples that clients hold out, over all of them.

        With the model's predictions on unlabelled inputs of the target, `fedpals.shift.bbse` estimates T by it.
        """
        return sums.tally(self._ran("tally"))

    def check(self) -> Homogeneity:
        """Test whether clients differ by their labels alone, from their last tallies."""
        return sums.check(self._ran("check"), self.seed)

    def with_gaussian_head(self) -> tuple[ArrayRecord, Head]:
        """Ask the participants for sums of features; return the model with the Gaussian head in its last layer.

        The head itself is needed only where no client has some label of the target: its ``stands_for`` then says
        which outputs mean that label, and it maps features to logits that the arrays alone cannot yield.
        """
        return sums.with_gaussian_head(*self._asking("with_gaussian_head"))

    def with_recommended_layer(self) -> tuple[ArrayRecord, Head]:
        """Return the model with the last layer to use: its own and the Gaussian head, calibrated and joined.

        Participants are asked for what the Gaussian head needs, and for features and labels of the samples that they
        hold out. The layer itself is needed where that of `with_gaussian_head` is.
        """
        return sums.with_recommended_layer(*self._asking("with_recommended_layer"))

    def _asking(self, what: str) -> tuple[Session, list[int], str]:
        """Return the session, the participants of the last round, and what messages to them call arrays."""
        session = self._ran(what)
        assert session.grid is not None
        self._meet(session, session.grid, what)
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
        self._meet(session, grid, f"round {number}")
        known = session.admit(self._build)
        session.grid, session.arrays = grid, arrays
        session.config = ConfigRecord({**config, "server-round": number})
        session.participants = known.participants(number, session.roster.present)
        alpha = known.weigh(session.participants)
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
            metrics.update(sums.estimate(session, done.participants.tolist(), self.arrayrecord_key))
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
        self._meet(self._session, grid, f"evaluation of round {number}")
        nodes = np.array([self._session.node(row) for row in self._session.roster.present.tolist()], dtype=object)
        count = min(len(nodes), max(self.min_evaluate_nodes, int(self.fraction_evaluate * len(nodes))))
        chosen = np.sort(generator(self.seed, "evaluated", number).choice(len(nodes), count, replace=False))
        record = RecordDict(
            {
                self.arrayrecord_key: self._session.evaluated(arrays),
                self.configrecord_key: ConfigRecord({**config, "server-round": number}),
            }
        )
        return [self._message(record, MessageType.EVALUATE, node) for node in nodes[chosen]]

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
            "options": {**asdict(self.method.rule), **asdict(self.method.weighting)},  # type: ignore[call-overload]
            "target": None if self.target is None else self.target.tolist(),
            "seed": self.seed,
            "fraction_train": self.fraction_train,
            "server_momentum": self.server_momentum,
            "averaging": self.averaging,
            "arrays": layout.facts(),
        }
        if self.checkpoint is not None and self.checkpoint.is_file():
            state = State.load(self.checkpoint)
            if differs := [key for key, value in settings.items() if state.settings.get(key) != value]:
                raise InputError(
                    f"{self.checkpoint}: belongs to a run with another {differs[0]} "
                    f"({state.settings.get(differs[0])}); choose another file, or delete it to start afresh"
                )
        else:
            state = State(0, layout.vector(arrays), settings=settings)
        labels = None if self.target is None else self.target.size
        return Session(layout, state, Roster(labels, self.max_samples, state.members), timeout)

    def _meet(self, session: Session, grid: Grid, when: str) -> None:
        """Wait until enough clients are there and have told their counts."""
        deadline = time.monotonic() + self.wait
        needed, roster = self.min_available_nodes, session.roster
        while True:
            nodes = list(grid.get_node_ids())
            self._ask_for_counts(session, grid, roster.connected(nodes))
            ready = roster.present.size
            if ready >= needed:
                return
            if time.monotonic() >= deadline:
                refused = "; ".join(f"node {node}: {why}" for node, why in roster.refused.items())
                raise TooFewNodesError(
                    f"{when}: {ready} of the {needed} nodes needed (min_available_nodes={needed}) were ready after "
                    f"{self.wait:g} s, {len(nodes)} are connected{f' ({refused})' if refused else ''}; "
                    "start more SuperNodes, or lower min_available_nodes"
                )
            _log.info("Waiting for nodes: %d of %d are ready, %d connected", ready, needed, len(nodes))
            time.sleep(min(_POLL, max(0.0, deadline - time.monotonic())))

    def _ask_for_counts(self, session: Session, grid: Grid, nodes: Sequence[int]) -> None:
        if not nodes:
            return
        roster = session.roster
        asked = [self._message(RecordDict(), messages.LABELCOUNTS, node) for node in nodes]
        limit = self.wait if session.timeout is None else min(self.wait, session.timeout)
        replies = list(grid.send_and_receive(asked, timeout=limit))
        roster.hear({r.metadata.src_node_id: r.content for r in replies if r.has_content()})
        for reply in replies:
            if reply.has_error():
                _log.warning("query.labelcounts: node %d: %s", reply.metadata.src_node_id, reply.error.reason)
        for node in nodes:
            if node in roster.refused:
                _log.warning("node %d is refused: %s", node, roster.refused[node])
            elif (row := roster.row(node)) is None:
                _log.warning("node %d did not tell its label counts; it is asked again next time", node)
            elif row in roster.capped:
                claimed = sum(roster.members[row].counts)
                _log.warning("%s claims %d samples and counts as %d", session.name(row), claimed, self.max_samples)

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
            sent.append(self._message(record, MessageType.TRAIN, session.node(row)))
        return sent

    @staticmethod
    def _message(record: RecordDict, kind: str, node: int) -> Message:
        return Message(content=record, message_type=kind, dst_node_id=node)

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
        assert session.server is not None
        for refusal in done.refused:
            _log.warning("round %d: %s: %s", done.number, session.name(refusal["client"]), refusal["reason"])
        distance, ess = session.server.achieved(done)
        weights = dict(zip(done.participants.tolist(), done.alpha.tolist(), strict=True))
        used = sorted((row for row, a in weights.items() if a > 0), key=lambda row: -weights[row])
        more = f" and {len(used) - _SHOWN} more" if len(used) > _SHOWN else ""
        _log.info(
            "round %d: trained %d of %d participants; distance %.6f, ESS %.1f %%; α: %s%s",
            done.number,
            done.trained,
            done.participants.size,
            distance,
            100 * ess,
            ", ".join(f"{session.name(row)} {weights[row]:.4f}" for row in used[:_SHOWN]),
            more,
        )
        averaged = self._average([contents[row] for row in sorted(used)], [weights[row] for row in sorted(used)])
        ours = {"distance": distance, "ess": ess, "trained": done.trained, "refused": len(done.refused)}
        return MetricRecord({**averaged, **ours})

    def _average(self, contents: list[RecordDict], alpha: list[float]) -> Mapping[str, Any]:
        """Return the clients' training metrics, weighed as their arrays unless the user averages them himself."""
        if self._averages_metrics:
            return self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        told = [messages.metrics_of(content) for content in contents]
        common = set.intersection(*map(set, told)) - {self.weighted_by_key}
        return {key: sum(a * metrics[key] for a, metrics in zip(alpha, told, strict=True)) for key in sorted(common)}

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
