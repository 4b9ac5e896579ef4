"""The server: the configured method, evaluated on the target's test set after every round."""

from __future__ import annotations

from logging import INFO
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from fedpals.engine.metrics import metrics
from fedpals.flower import strategy
from fedpals.shift import Head
from fedpals_app.config import given, held_out, worker

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, or those that are left."""
    config = given(context.run_config)
    w = worker(config)
    run, federation = w.run, w.federation
    x, y = w.samples(federation.test)

    def evaluate(number: int, arrays: ArrayRecord, layer: Head | None = None) -> MetricRecord:
        del number
        w.model.network.load_state_dict(arrays.to_torch_state_dict())
        logits = w.model.logits(x).double().numpy()
        if layer is not None and (features := w.model.features(x)) is not None:
            logits = layer(features.double().numpy())  # unlike arrays it can recognise a label that no client has
        scores = metrics(y.numpy(), logits)
        return MetricRecord({"accuracy": scores.accuracy, "macro_f1": scores.macro_f1})

    method = strategy(
        run.method.name,
        federation.target,
        seed=run.seed,
        fraction_train=run.server.participation,
        fraction_evaluate=0.0,
        min_available_nodes=int(config.get("nodes", len(federation.clients))),
        wait=float(config["wait"]),
        checkpoint=config.get("checkpoint"),
        record=config.get("record"),
        **run.method.options,
    )
    initial = ArrayRecord(dict(w.model.network.state_dict()))
    result = method.start(grid, initial, run.server.rounds, float(config["timeout"]), evaluate_fn=evaluate)
    arrays = result.arrays
    if held_out(config) is not None:
        arrays, layer = method.with_recommended_layer()
        log(INFO, "With the recommended layer: accuracy %.4f", evaluate(run.server.rounds, arrays, layer)["accuracy"])
    if "out" in config:
        save_file(dict(arrays.to_torch_state_dict()), Path(str(config["out"])))
