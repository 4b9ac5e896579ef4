"""The site's side: label counts for any training script, and a ready-made loop for every method."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel

from fedpals.engine.roster import Introduction
from fedpals.engine.trainee import Trainee
from fedpals.errors import InputError
from fedpals.labels.private import secure_counts
from fedpals.nvflare import messages


def send_label_counts(counts: npt.ArrayLike) -> bool:
    """Answer the server if it asks for label counts; return whether it did.

    ``counts`` are K whole numbers, in the order of the target's labels, such as ``np.bincount(y, minlength=K)``. Call
    it in the loop of a script after ``flare.receive()``, and continue if it returns True:

        model = flare.receive()
        if send_label_counts(counts):
            continue
    """
    values = np.asarray(counts)
    if values.ndim != 1 or values.dtype.kind not in "bui":
        raise InputError(f"label counts must be whole numbers, one per label, not {values.dtype} {values.shape}")
    if flare.get_task_name() != messages.LABEL_COUNTS:
        return False
    flare.send(messages.label_counts(Introduction(values.tolist())))
    return True


def run_client(load: Callable[[str], Trainee]) -> None:
    """Answer the server until the job ends, and train as its method requires; ``load`` gets the name of this site.

    The messages carry everything that a rule needs from earlier rounds, so a script keeps nothing from round to round.
    """
    flare.init()
    answers = Answers(load(flare.get_site_name()))
    while flare.is_running():
        message = flare.receive()
        if message is not None:
            flare.send(answers.to(flare.get_task_name(), message))


class Answers:
    """A client's answers to the server's messages."""

    def __init__(self, trainee: Trainee) -> None:
        if trainee.held_out is not None:
            raise InputError(
                f"held_out is {trainee.held_out}, but on FLARE nobody asks for held-out samples; leave it out"
            )
        self._trainee = trainee
        counts, epsilon = list(trainee.counts), trainee.count_epsilon
        # Noise is drawn once for the job, because every draw spends ε.
        self._reported = counts if epsilon is None else secure_counts(counts, epsilon).tolist()

    def to(self, task: str, message: FLModel) -> FLModel:
        """Return the answer to a message."""
        if task == messages.LABEL_COUNTS:
            return messages.label_counts(Introduction(self._reported, epsilon=self._trainee.count_epsilon))
        if task == messages.LOSS:
            return messages.loss(self._loss(message))
        return self._train(message)

    def _loss(self, message: FLModel) -> float:
        trainee = self._trainee
        return trainee.client.loss(trainee.model, self._load(message))

    def _train(self, message: FLModel) -> FLModel:
        trainee = self._trainee
        rule, number, server, state = messages.read_job(message)
        start, plan = self._load(message), trainee.plan.at(number, trainee.rounds or message.total_rounds)
        update = trainee.client.train(trainee.model, start, rule, plan, number, server=server, state=state)
        # With noise a change of the counts would not be seen, and their sum would reveal what the noise hides.
        counts = self._reported if trainee.count_epsilon is None else None
        state_dict = {key: value.detach().clone() for key, value in trainee.model.network.state_dict().items()}
        return messages.answer(state_dict, update, rule, counts)

    def _load(self, message: FLModel) -> torch.Tensor:
        return self._trainee.load({key: torch.as_tensor(value) for key, value in message.params.items()})
