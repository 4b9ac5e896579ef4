"""A client: its partition of the task, trained as the server's method says."""

from __future__ import annotations

from flwr.app import Context

from fedpals.errors import InputError
from fedpals.flower import Trainee, client_app
from fedpals_app.config import held_out, worker


def load(context: Context) -> Trainee:
    """Return the client of this node's partition."""
    if "partition-id" not in context.node_config:
        raise InputError(
            "this node has no partition-id, which says which client's samples are its own; start flower-supernode with "
            "--node-config 'partition-id=0 num-partitions=2', counting from 0"
        )
    w = worker(context.run_config)
    number = int(context.node_config["partition-id"])
    client = w.client(number)
    # Where it is set, the server estimates after every round what the model is worth in the target.
    share = held_out(context.run_config)
    return Trainee(w.model, client.x, client.y, client.labels, w.run.plan, number, w.run.seed, share)


app = client_app(load)
