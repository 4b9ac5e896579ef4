"""The loop that most research code has: a DataLoader, a model and an optimiser per client."""

from __future__ import annotations

import copy
import time

import torch

from fedpals.simulation.run import Run
from simulation_rounds.ours import Ours
from simulation_rounds.peers.usual_training import accuracy, build_network, fit, load_samples
from simulation_rounds.timing import RoundPair


def plain_loop(run: Run, *, pool_first: bool = False) -> list[RoundPair]:
    """Measure the plain loop."""
    torch.set_num_threads(1)
    ours, (clients, evaluation) = Ours(run), load_samples(run)
    model = build_network(run.seed, pool_first=pool_first)
    total = sum(len(y) for _, y in clients)
    pairs = []
    for _ in range(run.server.rounds):
        start = time.process_time()
        states = []
        for samples in clients:
            local = copy.deepcopy(model)
            fit(local, samples, run.plan)
            states.append({key: value * (len(samples[1]) / total) for key, value in local.state_dict().items()})
        model.load_state_dict({key: torch.stack([s[key] for s in states]).sum(0) for key in states[0]})
        trained = time.process_time()
        accuracy(model, evaluation)
        pairs.append(RoundPair((trained - start, time.process_time() - trained), ours.round()))
    return pairs


def plain_loop_pooling_first(run: Run) -> list[RoundPair]:
    """Measure the plain loop with our order of layers."""
    return plain_loop(run, pool_first=True)
