"""The client side: label counts for any ClientApp, and a ready-made ClientApp for every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor

from fedpals.engine.roster import Introduction
from fedpals.engine.trainee import Trainee
from fedpals.errors import InputError
from fedpals.flower import messages
from fedpals.labels.private import secure_counts

_NOISY_COUNTS = "fedpals.noisycounts"
"""Key of the noisy counts in a node's state."""


def add_labelcounts(app: ClientApp, counts: Callable[[Context], npt.ArrayLike]) -> None:
    """Let ``app`` send the server its number of training samples of each label.

    ``counts`` returns K whole numbers, in the order of the target's labels, such as
    ``np.bincount(labels, minlength=K)``.
    """

    def introduce(context: Context) -> Introduction:
        values = np.asarray(counts(context))
        if values.ndim != 1 or values.dtype.kind not in "bui":
            raise InputError(f"label counts must be whole numbers, one per label, not {values.dtype} {values.shape}")
        return Introduction(values.tolist(), _number(context))

    _answer(app, messages.LABELCOUNTS, lambda _, context: messages.labelcounts(introduce(context)))


def client_app(load: Callable[[Context], Trainee], *, mods: Sequence[Mod] = ()) -> ClientApp:
    """Return a ClientApp that trains as the server's method requires; ``load`` returns this node's client.

    The messages carry everything that a rule needs from earlier rounds, so a node can be restarted at any time.
    ``mods`` are Flower's modifiers of training messages, as ``LocalDpMod``.
    """
    app = ClientApp(mods=[_addressed, *mods] if mods else [])

    def load_with_arrays(content: RecordDict, context: Context) -> Trainee:
        trainee = load(context)
        trainee.load(_state(content))
        return trainee

    def introduce(_: RecordDict, context: Context) -> RecordDict:
        trainee = load(context)
        samples = trainee.client.held_out
        held_out = len(samples[1]) if samples else 0
        counts, number = _reported_counts(trainee, context), _number(context)
        return messages.labelcounts(Introduction(counts, number, held_out, trainee.count_epsilon))

    def loss(content: RecordDict, context: Context) -> RecordDict:
        trainee = load_with_arrays(content, context)
        return messages.loss(trainee.client.loss(trainee.model, trainee.model.vector.clone()))

    def tally(content: RecordDict, context: Context) -> RecordDict:
        trainee = load_with_arrays(content, context)
        return messages.sums(trainee.client.tally(trainee.model))

    def compare(content: RecordDict, context: Context) -> RecordDict:
        trainee = load(context)
        vectors = [trainee.load(arrays.to_torch_state_dict()) for arrays in messages.read_candidates(content)]
        return messages.sums(trainee.client.compare(trainee.model, vectors))

    def feature_sums(content: RecordDict, context: Context) -> RecordDict:
        return messages.sums(load_with_arrays(content, context).feature_sums())

    def held_out_features(content: RecordDict, context: Context) -> RecordDict:
        trainee = load_with_arrays(content, context)
        return messages.sums(trainee.client.held_out_features(trainee.model))

    _answer(app, messages.LABELCOUNTS, introduce)
    _answer(app, messages.LOSS, loss)
    _answer(app, messages.TALLY, tally)
    _answer(app, messages.COMPARISON, compare)
    _answer(app, messages.FEATURESUMS, feature_sums)
    _answer(app, messages.FEATURES, held_out_features)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        trainee, content = load(context), message.content
        rule, server, state = messages.read_job(content)
        start, number = trainee.load(_state(content)), messages.read_round(content)
        plan = trainee.plan.at(number, trainee.rounds)
        update = trainee.client.train(trainee.model, start, rule, plan, number, server=server, state=state)
        # With noise a change of the counts would not be seen, and a restarted node would spend ε again to repeat them.
        counts = trainee.counts if trainee.count_epsilon is None else None
        metrics: dict[str, float] = {"num-examples": max(0, sum(_reported_counts(trainee, context)))}
        if update.loss is not None:
            metrics["train_loss"] = update.loss
        arrays = ArrayRecord(dict(trainee.model.network.state_dict()))
        return Message(messages.answer(arrays, metrics, rule, update.state, counts), reply_to=message)

    return app


def _addressed(message: Message, context: Context, proceed: ClientAppCallable) -> Message:
    """Address an error to the question: Flower's modifiers address some to the app's answer, and nobody gets them."""
    reply = proceed(message, context)
    return Message(reply.error, reply_to=message) if reply.has_error() else reply


def _answer(app: ClientApp, question: str, answer: Callable[[RecordDict, Context], RecordDict]) -> None:
    """Register the app's answer to a question of the server, which no modifier of the app touches.

    Flower's modifiers are for training: they refuse every message without arrays, hence the question for counts.
    """

    def reply(message: Message, context: Context) -> Message:
        return Message(answer(message.content, context), reply_to=message)

    mods, app._mods = app._mods, []  # noqa: SLF001 -- Flower has no other way to leave them out
    try:
        app.query(question.removeprefix("query."))(reply)
    finally:
        app._mods = mods  # noqa: SLF001


def _reported_counts(trainee: Trainee, context: Context) -> list[int]:
    """Return the counts to report; noise is drawn once and stored for the run, because every draw spends ε."""
    if trainee.count_epsilon is None:
        return list(trainee.counts)
    if _NOISY_COUNTS not in context.state:
        counts = secure_counts(trainee.counts, trainee.count_epsilon).tolist()
        context.state[_NOISY_COUNTS] = MetricRecord({"counts": counts})
    return context.state.metric_records[_NOISY_COUNTS]["counts"]  # type: ignore[return-value]


def _number(context: Context) -> int | None:
    number = context.node_config.get("partition-id")
    return number if isinstance(number, int) else None


def _state(content: RecordDict) -> dict[str, Tensor]:
    return dict(next(iter(messages.own(content.array_records).values())).to_torch_state_dict())
