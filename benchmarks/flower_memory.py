"""Peak memory of a server's round on Flower, in multiples of all replies together: FedPALS beside Flower's FedAvg.

Nodes live in this process and compute a reply when it is fetched, so that what a strategy keeps is all that counts.
Each strategy runs in a process of its own.

    python benchmarks/flower_memory.py
    python benchmarks/flower_memory.py --nodes 1000 --parameters 1000000     # as in a large deployment: 8 GB
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from fedpals.flower import FedPALS, add_labelcounts

LABELS = 10


class InProcessGrid(Grid):
    """Nodes 1 … n that answer when they are asked for it."""

    def __init__(self, app: ClientApp, nodes: int) -> None:
        self.app, self.nodes = app, nodes
        self.sent: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes."""
        return range(1, self.nodes + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep messages until their replies are fetched."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"{message.metadata.message_type} {message.metadata.dst_node_id}"
            self.sent[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Compute replies."""
        messages = [self.sent.pop(one) for one in message_ids]
        return [self.app(m, Context(1, m.metadata.dst_node_id, {}, RecordDict(), {})) for m in messages]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return all replies, as Flower's grids do."""
        del timeout
        return self.pull_messages(self.push_messages(messages))

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Not used."""
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        """Not used."""

    @property
    def run(self) -> Any:
        """Not used."""
        raise NotImplementedError


def make_app() -> ClientApp:
    """Return clients that add a number of their own to the arrays."""
    app = ClientApp()
    add_labelcounts(app, lambda context: np.roll(np.arange(1, LABELS + 1), context.node_id))

    def train(message: Message, context: Context) -> Message:
        value = message.content.array_records["arrays"]["weight"].numpy() + np.float32(context.node_id)
        content = {"arrays": ArrayRecord({"weight": Array(value)}), "metrics": MetricRecord({"num-examples": 55})}
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    app.train()(train)
    return app


def peak(name: str, nodes: int, parameters: int) -> float:
    """Return by how much a round raises this process's largest memory, in multiples of all replies together."""
    for identity in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, identity, 1)
    settings: dict[str, Any] = {"fraction_evaluate": 0.0, "min_available_nodes": nodes}
    # λ that leaves every client some weight, so that both strategies train all.
    uniform = np.full(LABELS, 1 / LABELS)
    strategy = FedAvg(**settings) if name == "Flower's FedAvg" else FedPALS(uniform, lam=1e5, **settings)
    arrays = ArrayRecord({"weight": Array(np.zeros(parameters, np.float32))})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    strategy.start(InProcessGrid(make_app(), nodes), arrays, num_rounds=1)
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / (4 * nodes * parameters)


def main() -> None:
    """Print the peak of each strategy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--parameters", type=int, default=250_000)
    parser.add_argument("--strategy", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.strategy:
        sys.stdout.write(f"{peak(arguments.strategy, arguments.nodes, arguments.parameters):.2f}")
        return
    for name in ("Flower's FedAvg", "FedPALS"):
        command = [sys.executable, __file__, "--strategy", name]
        command += ["--nodes", str(arguments.nodes), "--parameters", str(arguments.parameters)]
        output = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ).stdout
        sys.stdout.write(f"{name:16}{output.split()[-1]} × the replies\n")


if __name__ == "__main__":
    main()
