"""The site's side: what a script of one's own adds, and what the ready-made loop refuses."""

from __future__ import annotations

import nvflare.client as flare
import pytest
import torch
from nvflare.app_common.abstract.fl_model import FLModel

from fedpals.engine.flat_model import FlatModel
from fedpals.engine.roster import Introduction
from fedpals.errors import InputError
from fedpals.nvflare import Trainee, messages, send_label_counts
from fedpals.nvflare.client import Answers


def test_a_script_sends_its_counts_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[FLModel] = []
    task = messages.TRAIN
    monkeypatch.setattr(flare, "get_task_name", lambda: task)
    monkeypatch.setattr(flare, "send", sent.append)
    counts = torch.bincount(torch.tensor([0, 2, 2]), minlength=4)
    assert not send_label_counts(counts)
    assert sent == []
    task = messages.LABEL_COUNTS
    assert send_label_counts(counts)
    assert messages.read_label_counts(sent[0]) == Introduction([1.0, 0.0, 2.0, 0.0])


@pytest.mark.parametrize("counts", [[0.5, 0.5], [[1, 2]], 3, ["1", "2"]])
def test_other_than_whole_numbers_are_refused_at_the_site(counts: object) -> None:
    with pytest.raises(InputError, match="whole numbers, one per label"):
        send_label_counts(counts)  # type: ignore[arg-type]


def test_samples_that_nobody_asks_for_are_not_held_out() -> None:
    trainee = Trainee(
        FlatModel(torch.nn.Linear(2, 2)), torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), 2, held_out=0.1
    )
    with pytest.raises(InputError, match="leave it out"):
        Answers(trainee)
