"""Compute a run, or what is left of it, and record it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from fedpals.engine.server import DivergedError
from fedpals.engine.target_model import ModelFacts, TargetModel, with_last_layer
from fedpals.errors import InputError
from fedpals.shift import Head
from fedpals.shift.calibration import Calibration
from fedpals.shift.evaluation import Correction
from fedpals.simulation.pools import Pool, SerialPool
from fedpals.simulation.record import Record, Result, RoundLine, SelectedRound
from fedpals.simulation.rounds import LastModel, Simulation
from fedpals.simulation.run import Run
from fedpals.simulation.server_view import first_view, learned_prior, server_view
from fedpals.simulation.state import SimulationState
from fedpals.simulation.worker import Worker

Callback = Callable[[RoundLine], None]
"""Called with the recorded line of every round: progress bars, TensorBoard, MLflow."""


def simulate(
    run: Run,
    runs: Path,
    *,
    data_folder: Path | None = None,
    device: str = "cpu",
    resume: bool = True,
    checkpoint_every: int = 1,
    make_pool: Callable[[Worker], Pool] = SerialPool,
    callbacks: Sequence[Callback] = (),
    note: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Record:
    """Compute a run, or what is left of it, and return its record.

    A finished run is not computed again, unless its files are damaged, of which ``note`` is told. ``stop`` is asked
    after every round; when it says so, the run ends with its state on disk. A run that diverges is finished with what
    was selected before: the same seed would diverge again. Whoever calls it holds the lock of the run's folder.

    Raises
    ------
    DivergedError
        Where it diverges in the first round, so that there is nothing to select.
    """
    record = Record(run, runs)
    if (damage := record.damage()) is not None:
        note(f"{run.name} is computed again: {damage}")
    elif record.finished:
        return record
    worker = Worker(run, data_folder, device)
    state = _last_state(record, worker, note) if resume and record.checkpoint.is_file() else None
    if state is None:
        record.begin()
    simulation = Simulation(worker, make_pool(worker), state)
    record.write_server_view(first_view(simulation.server, worker.federation))
    diverged = False
    while not simulation.finished and not stop():
        try:
            line = simulation.advance()
        except DivergedError:
            if simulation.state.round == 0:
                raise
            diverged = True
            break
        record.append(line)
        if simulation.state.round % checkpoint_every == 0 or simulation.finished:
            simulation.state.save(record.checkpoint)
        for callback in callbacks:
            callback(line)
    if simulation.finished or diverged:
        _finish(record, simulation, diverged=diverged)
    return record


def _last_state(record: Record, worker: Worker, note: Callable[[str], None]) -> SimulationState | None:
    """Return the last state that the checkpoint and the record both have, and take the record back to it; None: begin.

    What is damaged, or belongs to another run, is as good as missing: the same bits are computed again.
    """
    try:
        state = SimulationState.load(record.checkpoint)
        state.check_run(record.checkpoint, record.run.digest, worker.model.vector.numel())
        record.continue_after(state.round)
    except InputError as error:
        note(f"{record.run.name} starts over: {error}")
        return None
    return state


def _finish(record: Record, simulation: Simulation, *, diverged: bool) -> None:
    """Write the server's view, selected models and the result; the result comes last and marks the run finished."""
    state, federation = simulation.state, simulation.federation
    record.write_server_view(server_view(simulation.server, federation, simulation.run.knowledge, record.weights()))
    last = LastModel() if diverged else simulation.last_model()
    _save_models(record, simulation, last)
    best = {name: SelectedRound(b.round, b.score, b.scores.test, b.scores.clients) for name, b in state.best.items()}
    coverage = federation.coverage
    record.write_result(
        Result(
            rounds=state.round,
            selected={**best, **last.selected},
            projection_distance=coverage.squared_distance,
            covered=coverage.covered,
            clients=len(federation.clients),
            samples=federation.counts.total,
            validation_samples=len(federation.validation),
            test_samples=len(federation.test),
            parameters=simulation.worker.model.trained,
            diverged=diverged,
        )
    )


def _save_models(record: Record, simulation: Simulation, last: LastModel) -> None:
    """Save the last model with its heads, the selected models with their corrections, and the clients' tallies."""
    state, run, dataset = simulation.state, simulation.run, simulation.federation.dataset
    lines, server, model = record.lines(), simulation.server, simulation.worker.model

    def save(correction: Correction, vector: Tensor, use: Head | Calibration | None, number: int) -> None:
        facts = ModelFacts(
            labels=dataset.labels,
            target=tuple(server.target.tolist()),
            correction=correction,
            round=number,
            prior=tuple(learned_prior(run, lines[:number], server.counts, server.target).tolist()),
            samples=server.counts.total,
            shape=simulation.worker.shape,
            model=run.network.model or "cnn",
            backbone=run.network.backbone,
            image_size=run.network.image_size,
            columns=dataset.columns,
        )
        TargetModel(with_last_layer(model, vector, use), facts, use, dataset.scaling).save(record.model(correction))

    if last.gaussian is not None:
        save(Correction.GAUSSIAN, state.model, last.gaussian, state.round)
    if (best_use := last.recommended) is not None:
        save(Correction.RECOMMENDED, best_use.vector, best_use.use, best_use.round)
    for evaluation, best in state.best.items():
        if best.vector is None or best.correction is None:
            continue
        raw = evaluation.correction is Correction.RAW
        save(evaluation.correction, best.vector, None if raw else best.correction, best.round)
        if raw and simulation.federation.held_out:
            record.write_tallies(simulation.tallies(best.vector))
