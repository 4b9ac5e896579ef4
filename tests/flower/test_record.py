"""`record=`: a deployment writes the simulator's line of every round, which `fedpals watch` shows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message

from fedpals.engine.recorded import RoundLine
from fedpals.errors import InputError
from fedpals.flower import LabelAware, strategy
from fedpals.report.overview import overview
from fedpals.report.watched import watched
from tests.flower.grids import flat, grid_of, initial, worker


def test_a_deployment_can_be_watched_and_continues_its_record(tmp_path: Path) -> None:
    run = worker(method="fedpals", ess=0.5)
    shares = run.federation.table.sum(axis=0) + 10.0  # so that clients hold out labels of the target
    target = shares / shares.sum()
    settings = {"fraction_evaluate": 0.0, "wait": 0.05, "record": tmp_path / "record", "checkpoint": tmp_path / "state"}
    grid = grid_of(run, held_out=0.2)
    grid.spoil[grid.node(0)] = lambda reply: None if reply.metadata.message_type == "train" else reply
    first = strategy("fedpals", target, ess=0.5, **settings)
    first.start(grid, initial(run), num_rounds=2)
    with (tmp_path / "record" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "lo')  # as a power failure leaves it
    second = strategy("fedpals", target, ess=0.5, **settings)
    result = second.start(grid, initial(run), num_rounds=3)
    (seen,) = watched([tmp_path])
    assert [line.round for line in seen.lines] == [1, 2, 3]
    assert (seen.method, seen.planned, seen.finished) == ("FedPALS (ESS 0.5)", 3, True)
    last = seen.lines[-1]
    assert last.weights.alpha == tuple(second.rounds[-1].alpha.tolist())
    assert last.raw.clients is not None
    assert last.raw.clients.target_accuracy == result.train_metrics_clientapp[3]["target_accuracy_estimate"]
    assert seen.view is not None
    assert np.allclose(seen.view.target, target)
    assert seen.refused == 3
    assert seen.ess()[-1] == pytest.approx(result.train_metrics_clientapp[3]["ess"])
    (page,) = overview([seen], "T")["federations"]
    assert page["refused"]
    assert all(
        math.isfinite(point[1]) for chart in page["charts"] for line in chart["lines"] for point in line["points"]
    )


def test_the_record_has_far_updates_and_what_privacy_costs_and_is_its_owners_alone(tmp_path: Path) -> None:
    run = worker(method="fedavg")
    grid = grid_of(run)

    def lie(reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            for key, array in reply.content.array_records["arrays"].items():
                reply.content.array_records["arrays"][key] = Array(-1e6 * array.numpy() - np.float32(1e6))
        return reply

    grid.spoil[grid.node(2)] = lie
    settings: dict[str, Any] = {"fraction_evaluate": 0.0, "wait": 0.05}
    strategy("fedavg", record=tmp_path / "lie", **settings).start(grid, initial(run), num_rounds=1)
    (seen,) = watched([tmp_path / "lie"])
    assert [outlier.client for outlier in seen.lines[0].outliers] == [2]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "lie").iterdir()} == {0o600}
    pytest.importorskip("dp_accounting")
    private = strategy("fedavg", record=tmp_path / "dp", clip_update=1.0, noise_multiplier=1.0, **settings)
    private.start(grid_of(run), initial(run), num_rounds=1)
    (seen,) = watched([tmp_path / "dp"])
    assert seen.lines[0].privacy is not None
    assert seen.lines[0].privacy == private.rounds[0].privacy


@pytest.mark.parametrize("rounds", [2, 4])
def test_a_line_that_could_not_be_written_costs_no_round_and_is_written_later(rounds: int, tmp_path: Path) -> None:
    run = worker(method="fedpals", ess=0.5)

    def server(folder: Path) -> LabelAware:
        settings = {"fraction_evaluate": 0.0, "wait": 0.05, "record": folder / "record", "checkpoint": folder / "state"}
        return strategy("fedpals", run.federation.target, ess=0.5, **settings)

    def lines(folder: Path) -> list[RoundLine]:
        return [replace(line, seconds=0.0) for line in watched([folder / "record"])[0].lines]

    whole = server(tmp_path / "whole").start(grid_of(run), initial(run), num_rounds=rounds)
    broken, kept, grid = tmp_path / "broken" / "record" / "metrics.jsonl", tmp_path / "kept", grid_of(run)

    def damage(number: int, _: ArrayRecord) -> None:
        if number == 1:
            broken.rename(kept)
            broken.mkdir()

    with pytest.raises(InputError, match=r"metrics.jsonl: cannot be written .*it is a folder"):
        server(tmp_path / "broken").start(grid, initial(run), num_rounds=rounds, evaluate_fn=damage)
    broken.rmdir()
    kept.rename(broken)
    result = server(tmp_path / "broken").start(grid, initial(run), num_rounds=rounds)
    assert all(grid.kinds("train").count(node) <= rounds for node in grid.contexts), "no round is computed twice"
    assert torch.equal(flat(result.arrays, run), flat(whole.arrays, run))
    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")
    assert [line.round for line in lines(tmp_path / "broken")] == list(range(1, rounds + 1))


def test_a_record_that_cannot_be_written_is_refused_before_any_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = worker(method="fedavg")
    for name in ("file", "file/record"):
        grid = grid_of(run)
        server = strategy("fedavg", fraction_evaluate=0.0, wait=0.05, record=tmp_path / name)
        with pytest.raises(InputError, match=f"{name}: cannot be written .*choose another folder"):
            server.start(grid, initial(run), num_rounds=1)
        assert not grid.sent


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = worker(method="fedavg")
    strategy("fedavg", None, fraction_evaluate=0.0, wait=0.05).start(grid_of(run), initial(run), num_rounds=1)
    assert list(tmp_path.iterdir()) == []
