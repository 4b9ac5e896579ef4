"""Images changed at random: what may happen to a pixel, and that it can be repeated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedpals.engine.augmentation import augmented
from fedpals.errors import InputError
from fedpals.rng import generator
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.simulation.worker import Worker
from tests.runs import lines_of


def images(n: int, channels: int = 3) -> torch.Tensor:
    values = torch.arange(n * channels * 9 * 8, dtype=torch.float32).reshape(n, channels, 9, 8)
    return values.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_is_moved_by_at_most_two_pixels_and_may_be_mirrored(channels: int) -> None:
    x = images(300, channels)
    seen = set()
    for before, after in zip(x, augmented(x, "flip", generator(0, "a")), strict=True):
        for mirrored in (False, True):
            source = np.pad(before.numpy(), ((0, 0), (2, 2), (2, 2)), mode="reflect")
            source = source[:, :, ::-1] if mirrored else source
            matches = [
                (mirrored, down, right)
                for down in range(5)
                for right in range(5)
                if np.array_equal(source[:, down : down + 9, right : right + 8], after.numpy())
            ]
            seen.update(matches)
            if matches:
                break
        else:
            pytest.fail("neither moved nor mirrored")
    assert len(seen) == 50  # everything that can happen does


def test_shift_never_mirrors_and_leaves_the_original_alone() -> None:
    x = images(50)
    kept = x.clone()
    moved = augmented(x, "shift", generator(1, "a"))
    assert torch.equal(x, kept)
    assert bool((moved.diff(dim=3).sum(dim=(1, 2, 3)) > 0).all())
    assert not torch.equal(moved, x)
    assert torch.equal(moved, augmented(x, "shift", generator(1, "a")))
    assert moved.is_contiguous(memory_format=torch.channels_last)


def test_what_is_no_image_cannot_be_augmented() -> None:
    with pytest.raises(InputError, match="augment is 'flip', but the samples are no images"):
        Worker(Run.of(task="synthetic", augment="flip"))


@pytest.mark.parametrize("method", ["fedavg", "fedsgd"])
def test_every_rule_trains_on_what_was_moved(method: str, tmp_path: Path) -> None:
    """FedSGD's one step on all samples is no exception."""
    run = Run.of(task="digits", method=method, model="logistic", rounds=1, labels_per_client=3)
    moved = Run.of({**run.keys(), "augment": "shift"})
    # The loss that FedSGD reports is of the start, which is the same for both, on other images.
    assert lines_of(simulate(run, tmp_path))[0]["loss"] != lines_of(simulate(moved, tmp_path))[0]["loss"]
