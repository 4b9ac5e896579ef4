"""The apps of the peer Flower, which only its own processes import: torch, as in Flower's own examples."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedpals.simulation.run import Run
from simulation_rounds.ours import Ours
from simulation_rounds.peers.flower_rounds import FlowerSettings
from simulation_rounds.peers.usual_training import Samples, accuracy, build_network, fit, load_samples
from simulation_rounds.timing import RoundPair


def make_client() -> ClientApp:
    """Return the ClientApp; the data are read once per process."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        run, clients = _load(FlowerSettings.from_environment().run)
        samples = clients[int(context.node_config["partition-id"])]
        model = build_network(run.seed)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        fit(model, samples, run.plan)
        arrays = ArrayRecord(dict(model.state_dict()))
        metrics = MetricRecord({"num-examples": len(samples[1])})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


@lru_cache(maxsize=1)
def _load(keys: str) -> tuple[Run, list[Samples]]:
    run = Run.of(json.loads(keys))
    return run, load_samples(run)[0]


def make_server() -> ServerApp:
    """Return the ServerApp: FedAvg, with the times of its rounds noted."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        torch.set_num_threads(1)
        settings = FlowerSettings.from_environment()
        run = Run.of(json.loads(settings.run))
        _, evaluation = load_samples(run)
        ours = Ours(run, time.perf_counter) if settings.interleave else None
        strategy = _TimedFedAvg(fraction_evaluate=0.0)
        pairs: list[RoundPair] = []

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
            start = time.perf_counter()
            model = build_network(run.seed)
            model.load_state_dict(arrays.to_torch_state_dict())
            metrics = MetricRecord({"accuracy": accuracy(model, evaluation)})
            if number:
                timing = strategy.trained - strategy.started, time.perf_counter() - start
                pairs.append(RoundPair(timing, ours.round() if ours else (0.0, 0.0)))
            return metrics

        initial = ArrayRecord(dict(build_network(run.seed).state_dict()))
        strategy.start(grid=grid, initial_arrays=initial, num_rounds=run.server.rounds, evaluate_fn=evaluate)
        Path(settings.output).write_text(json.dumps([asdict(pair) for pair in pairs]))

    return app


class _TimedFedAvg(FedAvg):
    """Flower's FedAvg, which notes when the training of a round started and when it was aggregated."""

    started = trained = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.started = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        aggregated = super().aggregate_train(server_round, replies)
        self.trained = time.perf_counter()
        return aggregated
