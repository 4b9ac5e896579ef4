"""A Flower strategy for every method: the simulator's server, with clients reached by messages."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import Result

from fedpals.engine import checkpoint
from fedpals.engine.client import Update
from fedpals.engine.refusal import Refused
from fedpals.engine.roster import Roster
from fedpals.engine.round import Round
from fedpals.engine.server import DivergedError, Server
from fedpals.engine.settings import check_server, checked_target, take_protection
from fedpals.errors import InputError
from fedpals.flower import attendance, heldout, messages, reporting
from fedpals.flower.arrays import Layout
from fedpals.flower.patient_grid import PatientGrid
from fedpals.flower.protection import WRAPPED
from fedpals.flower.record import open_record, record_round, round_line
from fedpals.flower.session import FlowerState, Session
from fedpals.labels import LabelCounts, Vector
from fedpals.methods import Method
from fedpals.methods.description import all_options
from fedpals.rng import generator
from fedpals.shift import Head, Homogeneity, Tally

_log = logging.getLogger("flwr")


class LabelAware(strategy.FedAvg):
    """Flower's FedAvg with the method's weights, solved from the label counts of the nodes that replied.

    Parameters
    ----------
    method
        Client rule and weighting; `fedpals.flower.strategy` builds one from a name.
    target
        T, K probabilities. Stays on the server, unless ``tell_target``. None for methods that do not use it.
    seed
        Seed of the draw of participants.
    wait
        Seconds to wait for ``min_available_nodes`` before `TooFewNodesError` is raised.
    patience
        Seconds without news after which connected nodes that have not sent their label counts are left out, as long as
        the others are enough; longer where answers take longer.
    max_samples
        Largest number of samples that a client can count for.
    server_momentum
        Share of its last step that the global model repeats in every round.
    averaging
        Decay of the running mean of the global models, which is evaluated and returned instead of the last model.
    tell_target
        Whether clients may find out T, for the methods that weigh their samples by it (IW-ERM).
    checkpoint
        File for the state after every round; `start` continues from it if it exists.
    record
        Folder for a line per round, which `fedpals watch` shows.
    if_held_out
        Method to take instead if the clients that hold samples out when the first round begins have all labels of T
        that any client has, and updates carry no noise.
    clip_update, noise_multiplier, privacy_delta, outliers, aggregation
        Differential privacy and far updates: `fedpals.engine.protection.Protection`, docs/privacy.md.
    flower
        Arguments of Flower's FedAvg: ``fraction_train``, ``min_available_nodes``, … Its ``weighted_by_key`` weights
        evaluation metrics only.
    """

    def __init__(
        self,
        method: Method,
        target: npt.ArrayLike | None = None,
        *,
        seed: int = 0,
        wait: float = 600.0,
        patience: float = 30.0,
        max_samples: int | None = None,
        server_momentum: float | None = None,
        averaging: float | None = None,
        tell_target: bool = False,
        checkpoint: Path | str | None = None,
        record: Path | str | None = None,
        if_held_out: Method | None = None,
        min_train_nodes: int = 1,
        **flower: Any,
    ) -> None:
        self.protection = take_protection(flower, method)
        super().__init__(min_train_nodes=min_train_nodes, **flower)
        self._averages_metrics = flower.get("train_metrics_aggr_fn") is not None
        if not 0 < self.fraction_train <= 1:
            raise InputError(f"fraction_train is {self.fraction_train}; it must be above 0 and at most 1")
        self.method, self.seed, self.max_samples = method, seed, max_samples
        self._given, self._if_held_out = method, None if self.protection.private else if_held_out
        self.wait, self.patience = wait, patience
        self.server_momentum, self.averaging = server_momentum, averaging
        self.target = checked_target(method, target, tell_target=tell_target)
        check_server(max_samples, server_momentum, averaging)
        # Through links: lock, state and previous state are those of the file itself, however it is reached.
        self.checkpoint, self.record = (None if path is None else Path(path).resolve() for path in (checkpoint, record))
        self.rounds: list[Round] = []
        """Results of the rounds of this process."""
        self._session: Session | None = None
        self._running = False

    @property
    def prior_shift(self) -> Vector:
        """log T − log p_α, (K,); add it to the logits in the target domain."""
        return self._started_session("prior_shift").admit(self._build).prior_shift

    @property
    def best_round(self) -> int:
        """The round with the highest target accuracy, as estimated on the clients' held-out samples."""
        return heldout.best(self._started_session("best_round")).round

    @property
    def best_arrays(self) -> ArrayRecord:
        """The model of `best_round`."""
        session = self._started_session("best_arrays")
        return session.layout.record(heldout.best(session).vector)

    @property
    def tally(self) -> Tally:
        """Tally of the last model on the held-out samples of all clients.

        `fedpals.shift.bbse` estimates T from it and the model's predictions on unlabelled inputs of the target.
        """
        return heldout.tally(self._started_session("tally"))

    def check(self) -> Homogeneity:
        """Test, with the clients' last tallies, whether they differ only in their labels."""
        return heldout.check(self._started_session("check"), self.seed)

    def with_gaussian_head(self) -> tuple[ArrayRecord, Head]:
        """Ask the participants for sums of features; return the model with the Gaussian head as its last layer.

        The head itself is needed only if no client has some label of the target: its ``stands_for`` then gives the
        label that each output predicts, and it maps features to logits that the arrays alone cannot give.
        """
        return heldout.with_gaussian_head(*self._query_arguments("with_gaussian_head"))

    def with_recommended_layer(self) -> tuple[ArrayRecord, Head]:
        """Return the model with the recommended last layer: its own and the Gaussian head, calibrated and joined.

        Participants are asked for what the Gaussian head needs, and for features and labels of their held-out samples.
        The layer itself is needed in the same case as the head of `with_gaussian_head`.
        """
        return heldout.with_recommended_layer(*self._query_arguments("with_recommended_layer"))

    def _query_arguments(self, caller: str) -> tuple[Session, list[int], str]:
        """Return the session, the participants of the last round, and the key of the arrays in messages."""
        session = self._started_session(caller)
        self._wait_for_nodes(session, caller)
        rows = session.admit(self._build).participants(session.state.round, session.roster.present)
        return session, rows.tolist(), self.arrayrecord_key

    def summary(self) -> None:
        """Log the settings of the strategy."""
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
        """Run the rounds up to ``num_rounds``; continue from the checkpoint if there is one."""
        with nullcontext() if self.checkpoint is None else checkpoint.sole_writer(self.checkpoint):
            session = self._session = self._begin(initial_arrays, timeout, grid)
            session.planned = num_rounds
            open_record(self.record, session, self.method, self._build)
            last_round, arrays = session.state.round, session.layout.record(session.state.vector)
            if last_round:
                _log.info("%s: continue after round %d", self.checkpoint, last_round)
            evaluate = (
                None if evaluate_fn is None else lambda i, model: evaluate_fn(last_round + i, session.evaluated(model))
            )
            rounds = max(0, num_rounds - last_round)
            self._running = True
            try:
                result = super().start(session.grid, arrays, rounds, timeout, train_config, evaluate_config, evaluate)
            finally:
                self._running = False
            for history in (
                result.train_metrics_clientapp,
                result.evaluate_metrics_clientapp,
                result.evaluate_metrics_serverapp,
            ):
                metrics_by_round = {last_round + i: metrics for i, metrics in history.items()}
                history.clear()
                history.update(metrics_by_round)
            result.arrays = session.model
            return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Wait for enough nodes, draw the participants, and send training messages to those with a positive weight."""
        del server_round  # it starts at 1 after a checkpoint; the state has the round's number
        session = self._session
        if session is None or not self._running:
            raise InputError(WRAPPED)
        session.grid = PatientGrid.over(grid, session.grid)
        number = session.state.round + 1
        try:
            session.state.vector = session.layout.vector(arrays)
        except Refused as refusal:
            raise InputError(f"round {number}: the global arrays do not match the first round's: {refusal}") from None
        self._wait_for_nodes(session, f"round {number}")
        if not session.state.round:
            target = self._target(session.roster.counts)
            self.method = heldout.choose_method(session, target, self._given, self._if_held_out)
            session.state.settings["options"] = all_options(self.method)
        server = session.admit(self._build)
        session.arrays = arrays
        session.config = ConfigRecord({**config, "server-round": number})
        session.participants = server.participants(number, session.roster.present)
        _log.info("configure_train: %d of %d clients take part", session.participants.size, len(session.roster.members))
        return self._jobs(session, server.weighed(session.participants).tolist())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refuse updates that cannot be used, compute the weights of the others again, and aggregate them."""
        del server_round
        session = self._session
        assert session is not None
        assert session.server is not None, "configure_train comes first"
        first_replies: Iterable[Message] | None = replies
        contents: dict[int, RecordDict] = {}

        def train(rows: Sequence[int]) -> Iterable[Update | str]:
            nonlocal first_replies
            arriving = first_replies
            if arriving is None:  # participants that have weight only since others were refused
                arriving = session.grid.send_and_receive(self._jobs(session, rows), timeout=session.timeout)
            # Each reply is turned into an update, and forgotten, before the next one is fetched.
            answers = session.answers(rows, arriving)
            updates = {row: self._read(session, row, answer, contents) for row, answer in answers}
            first_replies = None
            return [updates[row] for row in rows]

        def losses(rows: Sequence[int]) -> Iterable[float]:
            record = RecordDict({self.arrayrecord_key: session.arrays})
            answers = session.ask(messages.LOSS, rows, record)
            values = {row: math.nan if isinstance(a, str) else messages.read_loss(a) for row, a in answers.items()}
            for row in (row for row, loss in values.items() if not math.isfinite(loss)):
                reason = answer if isinstance(answer := answers[row], str) else "the loss is not finite"
                name = session.name(row)
                _log.warning("%s sends no loss; its share of AFL's mixture stays the same (%s)", name, reason)
            return [values[row] for row in rows]

        try:
            compare = partial(heldout.compare, session)
            result = session.server.advance(session.participants, train, losses, compare)
        except DivergedError as error:
            raise DivergedError(f"{error}; {reporting.remedy(session, self.checkpoint)}") from None
        self.rounds.append(result)
        average = self.train_metrics_aggr_fn if self._averages_metrics else None
        metrics = reporting.report(session, result, contents, self.weighted_by_key, average)
        if not self.protection.private:  # tallies carry no noise, and the best round follows from them
            metrics.update(heldout.estimate(session, result.participants.tolist(), self.arrayrecord_key))
        session.state.line = None if self.record is None else round_line(session, result, metrics)
        if self.checkpoint is not None:  # first, so that no round is lost whose line cannot be written
            session.state.members = session.roster.members
            session.state.save(self.checkpoint)
        if self.record is not None:
            record_round(self.record, session, self.method)
        return session.layout.record(session.state.vector), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Wait for enough nodes, and draw those to evaluate at with a generator of seed and round."""
        if self.fraction_evaluate == 0.0 or self._session is None:
            return []
        number = self._session.state.round if self._session.state.round else server_round
        stage = f"evaluation of round {number}"
        self._session.grid = PatientGrid.over(grid, self._session.grid)
        self._wait_for_nodes(self._session, stage)
        nodes = np.array([self._session.node(row) for row in self._session.roster.present.tolist()], dtype=object)
        count = min(len(nodes), max(self.min_evaluate_nodes, int(self.fraction_evaluate * len(nodes))))
        indices = np.sort(generator(self.seed, "evaluated", number).choice(len(nodes), count, replace=False))
        record = RecordDict(
            {
                self.arrayrecord_key: self._session.evaluated(arrays),
                self.configrecord_key: ConfigRecord({**config, "server-round": number}),
            }
        )
        return [_message(record, MessageType.EVALUATE, node) for node in nodes[indices]]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics; only warn if the replies are inconsistent."""
        try:
            valid = reporting.with_valid_weights(replies, self.weighted_by_key, server_round)
            return super().aggregate_evaluate(server_round, valid)
        except reporting.AVERAGING_ERRORS as error:
            _log.warning("round %d: the evaluation metrics cannot be averaged: %s", server_round, error)
            return None

    def _wait_for_nodes(self, session: Session, stage: str) -> None:
        attendance.wait_for_nodes(session, stage, self.min_available_nodes, self.wait, self.patience)

    def _build(self, counts: LabelCounts) -> Server:
        assert self._session is not None
        return Server(
            self.method,
            counts,
            self._target(counts),
            self._session.state,
            participation=self.fraction_train,
            minimum=self.min_train_nodes,
            momentum=self.server_momentum,
            averaging=self.averaging,
            protection=self.protection,
            seed=self.seed,
        )

    def _target(self, counts: LabelCounts) -> Vector:
        """Return T; without a target, the clients' pooled marginal."""
        return np.asarray(counts.sizes @ counts.marginals / counts.total) if self.target is None else self.target

    def _begin(self, arrays: ArrayRecord, timeout: float | None, grid: Grid) -> Session:
        layout = Layout.of(arrays)
        self.method = self._given
        settings = {
            "method": self.method.name,
            "options": all_options(self.method),
            "target": None if self.target is None else self.target.tolist(),
            "seed": self.seed,
            "fraction_train": self.fraction_train,
            "server_momentum": self.server_momentum,
            "averaging": self.averaging,
            "protection": self.protection.keys(),
            "arrays": layout.facts(),
        }
        if self.checkpoint is not None and self.checkpoint.is_file():
            state = FlowerState.load(self.checkpoint)
            if self._if_held_out is not None and state.settings.get("options") == all_options(self._if_held_out):
                self.method = self._if_held_out  # as it was decided when the run began
                settings["options"] = all_options(self.method)
            if differences := [key for key, value in settings.items() if state.settings.get(key) != value]:
                raise InputError(
                    f"{self.checkpoint}: belongs to a run with another {differences[0]} "
                    f"({state.settings.get(differences[0])}); choose another file, or delete it to start again"
                )
        else:
            state = FlowerState(0, layout.vector(arrays), settings=settings)
        labels = None if self.target is None else self.target.size
        roster = Roster(labels, self.max_samples, state.members)
        return Session(layout, state, roster, timeout, PatientGrid.over(grid))

    def _jobs(self, session: Session, rows: Iterable[int]) -> list[Message]:
        return session.jobs(self.method.rule, rows, self.arrayrecord_key, self.configrecord_key)

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
        except Refused as refusal:
            return str(refusal)
        contents[row] = answer if self._averages_metrics else RecordDict(dict(answer.metric_records))
        return update

    def _started_session(self, caller: str) -> Session:
        if self._session is None or not self._session.state.round:
            raise InputError(f"{caller} is available after the first round; call start first")
        return self._session

    def _names(self) -> tuple[str, str, str]:
        return self.method.title, self.method.rule.name, self.method.weighting.name


def _message(record: RecordDict, kind: str, node: int) -> Message:
    return Message(content=record, message_type=kind, dst_node_id=node)
