"""How much our strategy adds to a round of Flower: FedPALS beside Flower's own FedAvg.

Both run in one of Flower's simulations (Ray), a round of one after a round of the other. A round is
configuring, the clients' work and aggregating; its first and last part are the strategy's. Clients
only add a number to a softmax regression, so with any real training the strategy's share is smaller.

    python benchmarks/flower.py
    python benchmarks/flower.py --clients 10 100 --rounds 30
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from fedpals.flower import FedPALS, add_labelcounts
from fedpals.rng import generator
from simulation_rounds.flower_simulation import run_simulation

LABELS, INPUTS = 10, 64
WANTED = 0.05
"""Share of a round that the strategy may add."""
LIMIT_SECONDS = 900.0
_OUTPUT = "FEDPALS_BENCHMARK_OUT"
"""Environment variable that tells the server where to write its times."""


def counts_of(number: int) -> npt.NDArray[np.int64]:
    """Return the label counts of a client, more or less skewed."""
    rng = generator(0, "counts", number)
    return rng.multinomial(60, rng.dirichlet(np.full(LABELS, 0.5)))


def make_client() -> ClientApp:
    """Return clients that add a number to a softmax regression."""
    app = ClientApp()
    add_labelcounts(app, lambda context: counts_of(int(context.node_config["partition-id"])))

    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        values = {key: array.numpy() for key, array in message.content.array_records["arrays"].items()}
        arrays = ArrayRecord({key: Array(value + np.float32(number)) for key, value in values.items()})
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": int(counts_of(number).sum())})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    app.train()(train)
    return app


def make_server() -> ServerApp:
    """Return a server that runs both strategies in turn and writes down their times."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        logging.getLogger("flwr").setLevel(logging.WARNING)
        config = context.run_config
        settings: dict[str, Any] = {"fraction_train": config["participation"], "fraction_evaluate": 0.0}
        settings["min_available_nodes"] = config["clients"]
        target = np.arange(1, LABELS + 1) / (LABELS * (LABELS + 1) / 2)
        theirs = rounds_of(FedAvg(**settings), grid)
        # λ that leaves every client some weight, so that both strategies train as many.
        ours = rounds_of(FedPALS(target, lam=1e5, **settings), grid)
        rows = [(theirs(), ours()) for _ in range(int(config["rounds"]) + 1)]
        Path(os.environ[_OUTPUT]).write_text(json.dumps(rows[1:]))

    app.main()(main)
    return app


def rounds_of(strategy: Strategy, grid: Grid) -> Callable[[], tuple[float, float]]:
    """Return a function that computes the next round: its seconds in all, and those of the strategy."""
    number = 0
    arrays = ArrayRecord(
        {"weight": Array(np.zeros((LABELS, INPUTS), np.float32)), "bias": Array(np.zeros(LABELS, np.float32))}
    )

    def advance() -> tuple[float, float]:
        nonlocal arrays, number
        number += 1
        began = time.perf_counter()
        messages = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        configured = time.perf_counter()
        replies = list(grid.send_and_receive(messages))
        received = time.perf_counter()
        aggregated, _ = strategy.aggregate_train(number, replies)
        ended = time.perf_counter()
        assert aggregated is not None
        arrays = aggregated
        return ended - began, ended - received + configured - began

    return advance


def measure(clients: int, rounds: int, participation: float) -> npt.NDArray[np.float64]:
    """Return (rounds, 2 strategies, seconds in all and of the strategy), from one simulation."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "seconds.json"
        run_simulation(
            "flower",
            output,
            {"num-supernodes": clients, "client-resources-num-cpus": 1},
            {_OUTPUT: str(output)},
            config={"clients": clients, "rounds": rounds, "participation": participation},
            limit=LIMIT_SECONDS,
        )
        return np.array(json.loads(output.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--rounds", type=int, help="rounds of each strategy; fewer the more clients unless given")
    parser.add_argument("--participation", type=float, default=1.0)
    settings = parser.parse_args()
    print(f"{'clients':>8} {'round':>10} {'FedAvg':>10} {'FedPALS':>10} {'added':>8}   wanted below {WANTED:.0%}")
    for clients in settings.clients:
        rounds = settings.rounds or max(3, min(30, 600 // clients))
        times = measure(clients, rounds, settings.participation).min(axis=0)
        (whole, theirs), (_, ours) = times
        added = (ours - theirs) / whole
        print(f"{clients:8} {whole * 1e3:7.0f} ms {theirs * 1e3:7.1f} ms {ours * 1e3:7.1f} ms {added:8.2%}", flush=True)


if __name__ == "__main__":
    main()
