"""Runs with noise for privacy, and with robust aggregation: records, resumed runs, and what the command line says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedpals.errors import InputError
from fedpals.shift.evaluation import Correction
from fedpals.simulation.run import Run
from fedpals.simulation.simulator import simulate
from fedpals.study.train import train
from tests.cli.test_weights import refused, run
from tests.runs import SMALL, final_vector, lines_of

pytest.importorskip("dp_accounting", reason="needs the extra privacy")

PRIVATE: dict[str, Any] = {**SMALL, "method": "fedpals", "clip_update": 0.5, "noise_multiplier": 2.0}


def test_the_record_says_what_is_spent_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    own = Run.of(PRIVATE)
    unbroken = simulate(own, tmp_path / "a")
    rounds = iter([False, False, True, True, True])
    simulate(own, tmp_path / "b", stop=lambda: next(rounds))
    resumed = simulate(own, tmp_path / "b")
    lines = lines_of(unbroken)
    assert [line["privacy"] for line in lines] == [line["privacy"] for line in lines_of(resumed)]
    assert torch.equal(final_vector(unbroken), final_vector(resumed))
    spent = [line["privacy"]["epsilon"] for line in lines]
    assert spent == sorted(spent)
    assert lines[0]["privacy"]["sigma"] == pytest.approx(2.0 * 0.5 * max(lines[0]["weights"]["alpha"]))
    read = unbroken.lines()[-1].privacy
    assert read is not None
    assert read.epsilon == spent[-1]


def test_no_head_is_made_of_exact_sums(tmp_path: Path) -> None:
    record = simulate(Run.of(PRIVATE), tmp_path)
    assert not record.model(Correction.GAUSSIAN).exists()
    assert not [name for name in record.result().selected if "gaussian" in name]


def test_other_noise_is_another_run_and_none_keeps_the_digest() -> None:
    plain, private = Run.of(SMALL), Run.of(PRIVATE)
    assert not {"clip_update", "outliers", "aggregation"} & plain.keys().keys()
    assert Run.of(private.keys()).digest == private.digest
    assert Run.of({**PRIVATE, "noise_multiplier": 3.0}).digest != private.digest


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"held_out": 0.2}, "held_out is 0.2, but with clip_update nothing may be selected"),
        ({"heads": "fedcgs"}, "heads is 'fedcgs', but with clip_update nothing may be"),
        ({"method": "scaffold"}, "control variates"),
        ({"method": "afl"}, "exact losses"),
        ({"ess": "auto"}, "ess is 'auto'"),
    ],
)
def test_what_noise_does_not_cover_is_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Run.of({**PRIVATE, **keys})


def test_own_clients_are_refused(tmp_path: Path) -> None:
    import numpy as np

    from fedpals import Federation

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 3)), np.arange(60) % 2
    federation = Federation.of(x, y, client=np.arange(60) % 3, target=[0.5, 0.5])
    with pytest.raises(InputError, match=r"with your own clients.*fedpals\.flower"):
        train(federation, methods=["fedavg"], out=tmp_path, clip_update=1.0, noise_multiplier=1.0, progress=False)


def test_the_command_line_says_what_is_spent(tmp_path: Path) -> None:
    flags = ("--task", "digits", "--model", "logistic", "--clients", "5", "--rounds", "2", "--method", "fedavg")
    done = run("run", *flags, "--clip-update", "1", "--noise-multiplier", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ε = 6.57 at δ = 1e-05 after 2 rounds" in " ".join(done.stdout.split())
    assert "give clip_update" not in done.stdout
    error = refused("run", *flags, "--clip-update", "1", cwd=tmp_path)
    assert "noise_multiplier is not given" in error


def test_geometric_median_of_honest_clients_learns_too(tmp_path: Path) -> None:
    keys = {**SMALL, "method": "fedavg", "rounds": 3}
    median = simulate(Run.of({**keys, "aggregation": "geometric_median"}), tmp_path)
    mean = simulate(Run.of(keys), tmp_path)
    assert lines_of(median)[-1]["loss"] < lines_of(median)[0]["loss"]
    assert lines_of(median)[0]["weights"]["alpha"] != lines_of(mean)[0]["weights"]["alpha"]
    assert sum(lines_of(median)[0]["weights"]["alpha"]) == pytest.approx(1.0)
    assert not any("outliers" in line for line in lines_of(mean))
