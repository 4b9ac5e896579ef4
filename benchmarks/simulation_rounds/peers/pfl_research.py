"""The peer pfl-research, in its own simulation."""

from __future__ import annotations

import multiprocessing as mp
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpals.simulation.run import Run
from simulation_rounds.ours import Ours
from simulation_rounds.peers.usual_training import build_network, load_samples
from simulation_rounds.timing import RoundPair


class _Network(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return cross_entropy(self.layers(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        from pfl.metrics import Weighted

        self.eval()
        return {"accuracy": Weighted(int((self.layers(x).argmax(1) == y).sum()), len(y))}


class _Stopwatch:
    """A callback of pfl that notes when a round's training ended; the second one, when its evaluation did."""

    def __init__(self, ours: Ours | None = None) -> None:
        self.ours, self.times, self.our_rounds = ours, [0.0], [(0.0, 0.0)]
        self.resumed: list[float] = []

    def on_train_begin(self, *, model: Any) -> Any:
        from pfl.metrics import Metrics

        del model
        self.resumed.append(time.process_time())
        return Metrics()

    def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
        from pfl.metrics import Metrics

        del metrics, model, central_iteration
        self.times.append(time.process_time())
        if self.ours:
            self.our_rounds.append(self.ours.round())
        self.resumed.append(time.process_time())
        return False, Metrics()

    def on_train_end(self, *, model: Any) -> None:
        del model


def pfl_research(run: Run) -> list[RoundPair]:
    """Measure pfl's FederatedAveraging with its simulated backend."""
    mp.current_process().name = "MainProcess"  # pfl does nothing in a process of another name
    import numpy as np
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    np.random.seed(run.seed)  # noqa: NPY002  (pfl draws from the global generator)
    clients, evaluation = load_samples(run)
    rounds, plan = run.server.rounds, run.plan

    def shuffled(user: int) -> Any:
        x, y = clients[user]
        order = torch.randperm(len(y))
        return Dataset((x[order], y[order]), user_id=str(user))

    federated = FederatedDataset(shuffled, get_user_sampler("minimize_reuse", list(range(len(clients)))))
    network = _Network(build_network(run.seed))
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    first, last = _Stopwatch(), _Stopwatch(Ours(run))
    evaluating = NNEvalHyperParams(local_batch_size=512)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            # One more: pfl evaluates the users in its first round, and centrally only from its second.
            central_num_iterations=rounds + 1, evaluation_frequency=10**9,
            train_cohort_size=len(clients), val_cohort_size=0,
        ),
        backend=SimulatedBackend(federated, federated, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(network, torch.optim.SGD, central),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=plan.learning_rate, local_batch_size=plan.batch_size
        ),
        model_eval_params=evaluating,
        callbacks=[first, CentralEvaluationCallback(Dataset(evaluation), evaluating), last],
        send_metrics_to_platform=False,
    )  # fmt: skip
    return [
        RoundPair((first.times[r] - last.resumed[r - 1], last.times[r] - first.resumed[r]), last.our_rounds[r])
        for r in range(2, rounds + 2)
    ]
