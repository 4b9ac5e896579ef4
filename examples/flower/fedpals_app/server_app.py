"""The server: the configured method, evaluated on the target's test set after every round."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from fedpals.evaluation import metrics
from fedpals.flower import strategy
from fedpals_app.config import given, worker

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, or those that are left."""
    config = given(context.run_config)
    w = worker(config)
    run, federation = w.run, w.federation
    x, y = w.samples(federation.test)

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        del number
        w.model.network.load_state_dict(arrays.to_torch_state_dict())
        told = metrics(y.numpy(), w.model.logits(x).argmax(dim=1).numpy(), len(federation.dataset.labels))
        return MetricRecord({"accuracy": told.accuracy, "macro_f1": told.macro_f1})

    method = strategy(
        run.method,
        federation.target,
        seed=run.seed,
        fraction_train=run.participation,
        fraction_evaluate=0.0,
        min_available_nodes=int(config.get("nodes", len(federation.clients))),
        wait=float(config["wait"]),
        checkpoint=config.get("checkpoint"),
        **run.options,
    )
    initial = ArrayRecord(dict(w.model.network.state_dict()))
    result = method.start(grid, initial, run.rounds, float(config["timeout"]), evaluate_fn=evaluate)
    if "out" in config:
        save_file(dict(result.arrays.to_torch_state_dict()), Path(str(config["out"])))
