"""Rounds on one machine: fedpals against a plain loop, Flower's Ray simulation and pfl, side by side in one run.

    pip install -c constraints.txt -e '.[learn,bench]'
    python benchmarks/simulator.py [--quick] [--only rounds,command,workers,scale,ess] [--json FILE]

Everybody trains the paper's small CNN on the same clients of Fashion-MNIST, one epoch of plain SGD in
batches of 50, with one thread, and evaluates the same samples. Figures are ratios (their time / ours:
larger is better for us), to be trusted to ±10 % on a machine that does nothing else.

rounds
    Time per round. One of our rounds follows each of theirs in the same process (Flower: in the
    server's, while its actors wait); the ratio is the median over rounds, the first left out.
    Peers apply ReLU before pooling, as everyone writes it; "our layers" pools first, like ours,
    which is the same function. pfl does not shuffle, so its data are shuffled when they are handed out.
command
    A whole run from the command line, start-up included: `fedpals run` and `flwr run`.
workers
    `fedpals run` with two workers and with one: on a sweep over seeds, and on a single run.
scale
    From 10 to 10,000 clients, of which 10 take part in a round: time and peak memory must not grow.
ess
    FedPALS at a low effective sample size leaves clients with α = 0 out, FedAvg trains everybody.

A peer that is not installed is reported as such. Flower runs in a folder and on ports of its own, and
all its processes are ended afterwards (Linux).
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing as mp
import os
import platform
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fedpals.models import build
from fedpals.record import to_toml
from fedpals.run import Run
from fedpals.simulator import Simulation, simulate
from fedpals.worker import SerialPool, Worker

LIMIT_SECONDS = 3600.0
FLAT = {"time": 1.25, "memory": 1.15}
"""What counts as flat: at most so many times the figure of the smallest federation."""
_SETTINGS = "FEDPALS_BENCHMARK"
"""Environment variable that tells Flower's processes what to compute."""

Timing = tuple[float, float]
"""Seconds of a round: training and aggregation, evaluation."""
Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Size:
    """How much to compute."""

    samples: int = 5400
    """Per client, for time per round and for workers."""
    batch: int = 50
    rounds: int = 6
    """Of each contender; the first is left out."""
    run_samples: int = 1000
    """Per client, for the run from the command line."""
    run_rounds: int = 20
    sweep_rounds: int = 30
    seeds: int = 4
    repeats: int = 2
    """Of commands that are compared with each other."""
    populations: tuple[int, ...] = (10, 100, 1000, 10_000)
    scale_rounds: int = 40
    ess_samples: int = 1500
    ess_rounds: int = 6
    untargeted: bool = True
    """Whether to measure what has no target, too."""

    def run(self, **settings: Any) -> Run:
        """Return FedAvg with 9 clients that have all labels, the tenth being the target."""
        common = {
            "task": "fashion-mnist", "clients": 10, "labels_per_client": 10, "samples_per_client": self.samples,
            "validation_samples": 1000, "test_samples": 2000, "model": "cnn", "method": "fedavg",
            "batch_size": self.batch, "learning_rate": 0.05, "rounds": self.rounds,
        }  # fmt: skip
        return Run(**{**common, **settings})


QUICK = Size(
    samples=200, rounds=3, run_samples=200, run_rounds=3, sweep_rounds=2, seeds=2, repeats=1,
    populations=(10, 1000), scale_rounds=10, ess_samples=150, ess_rounds=4, untargeted=False,
)  # fmt: skip


# Ours


class Timed(Simulation):
    """Our simulator, whose evaluation is timed on its own."""

    evaluating = 0.0

    def _evaluate(self) -> dict[str, Any]:
        start = time.perf_counter()
        lines = super()._evaluate()
        self.evaluating = time.perf_counter() - start
        return lines


class Ours:
    """Our rounds, one at a time."""

    def __init__(self, run: Run) -> None:
        worker = Worker(run)
        self.simulation = Timed(worker, SerialPool(worker))
        self.trained = 0

    def round(self) -> Timing:
        """Compute the next round."""
        start = time.perf_counter()
        self.trained = int(self.simulation.advance()["trained"])
        whole = time.perf_counter() - start
        return whole - self.simulation.evaluating, self.simulation.evaluating


# What the peers share


@lru_cache(maxsize=1)
def staged(run: Run) -> tuple[list[Samples], Samples]:
    """Return the clients' samples and those to evaluate on, scaled, in torch's usual layout."""
    worker = Worker(run)
    federation = worker.federation

    def usual(indices: Any) -> Samples:
        x, y = worker.samples(indices)
        return torch.empty(x.shape).copy_(x), y

    parts = [usual(federation.validation), usual(federation.test)]
    evaluation = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    return [usual(indices) for indices in federation.clients], evaluation


def network(run: Run, *, pool_first: bool = False) -> nn.Module:
    """Return the paper's CNN with our initial values, in the order that everyone writes: ReLU, then pooling."""
    after: list[nn.Module] = [nn.MaxPool2d(2), nn.ReLU()] if pool_first else [nn.ReLU(), nn.MaxPool2d(2)]
    layers = nn.Sequential(
        nn.Conv2d(1, 6, 5), *after, nn.Conv2d(6, 16, 5), *after, nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    ours = build("cnn", shape=(1, 28, 28), classes=10, seed=run.seed)
    with torch.no_grad():
        for theirs, initial in zip(layers.parameters(), ours.parameters(), strict=True):
            theirs.copy_(initial)
    return layers


def fit(model: nn.Module, samples: Samples, run: Run) -> None:
    """Train for one epoch, as most research code does."""
    loader = DataLoader(TensorDataset(*samples), batch_size=run.batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=run.learning_rate)
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def accuracy(model: nn.Module, samples: Samples) -> float:
    """Evaluate in batches of 512, as ours does."""
    model.eval()
    with torch.inference_mode():
        right = [model(x).argmax(1) == y for x, y in zip(*(torch.split(t, 512) for t in samples), strict=True)]
    return float(torch.cat(right).float().mean())


# Time per round


@dataclass(frozen=True)
class Row:
    """A round of theirs and the round of ours that came next."""

    theirs: Timing
    ours: Timing


def plain(run: Run, *, pool_first: bool = False) -> list[Row]:
    """Measure the loop that most research code has: a DataLoader, a model and an optimiser per client."""
    torch.set_num_threads(1)
    ours, (clients, evaluation) = Ours(run), staged(run)
    model = network(run, pool_first=pool_first)
    total = sum(len(y) for _, y in clients)
    rows = []
    for _ in range(run.rounds):
        start = time.perf_counter()
        states = []
        for samples in clients:
            local = copy.deepcopy(model)
            fit(local, samples, run)
            states.append({key: value * (len(samples[1]) / total) for key, value in local.state_dict().items()})
        model.load_state_dict({key: torch.stack([s[key] for s in states]).sum(0) for key in states[0]})
        trained = time.perf_counter()
        accuracy(model, evaluation)
        rows.append(Row((trained - start, time.perf_counter() - trained), ours.round()))
    return rows


def plain_pool_first(run: Run) -> list[Row]:
    """Measure the plain loop with our order of layers."""
    return plain(run, pool_first=True)


class _ForPfl(nn.Module):
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
        self.resumed.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
        from pfl.metrics import Metrics

        del metrics, model, central_iteration
        self.times.append(time.perf_counter())
        if self.ours:
            self.our_rounds.append(self.ours.round())
        self.resumed.append(time.perf_counter())
        return False, Metrics()

    def on_train_end(self, *, model: Any) -> None:
        del model


def pfl(run: Run) -> list[Row]:
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
    clients, evaluation = staged(run)

    def shuffled(user: int) -> Any:
        x, y = clients[user]
        order = torch.randperm(len(y))
        return Dataset((x[order], y[order]), user_id=str(user))

    federated = FederatedDataset(shuffled, get_user_sampler("minimize_reuse", list(range(len(clients)))))
    layers = _ForPfl(network(run))
    central = torch.optim.SGD(layers.parameters(), lr=1.0)
    first, last = _Stopwatch(), _Stopwatch(Ours(run))
    every = NNEvalHyperParams(local_batch_size=512)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            # One more: pfl evaluates the users in its first round, and centrally only from its second.
            central_num_iterations=run.rounds + 1, evaluation_frequency=10**9,
            train_cohort_size=len(clients), val_cohort_size=0,
        ),
        backend=SimulatedBackend(federated, federated, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(layers, torch.optim.SGD, central),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=run.learning_rate, local_batch_size=run.batch_size
        ),
        model_eval_params=every,
        callbacks=[first, CentralEvaluationCallback(Dataset(evaluation), every), last],
        send_metrics_to_platform=False,
    )  # fmt: skip
    return [
        Row((first.times[r] - last.resumed[r - 1], last.times[r] - first.resumed[r]), last.our_rounds[r])
        for r in range(2, run.rounds + 2)
    ]


# Flower


@dataclass(frozen=True)
class _Flower:
    """What Flower's processes compute, and where its server notes times."""

    run: str
    out: str
    interleave: bool
    """Whether one of our rounds follows each of theirs."""

    @classmethod
    def here(cls) -> _Flower:
        return cls(**json.loads(os.environ[_SETTINGS]))


def flower_client() -> Any:
    """Return the ClientApp: torch, as in Flower's own examples; the data are read once per process."""
    from flwr.app import ArrayRecord, MetricRecord, RecordDict
    from flwr.app import Message as Reply
    from flwr.clientapp import ClientApp

    def train(message: Any, context: Any) -> Any:
        torch.set_num_threads(1)
        run = Run.model_validate_json(_Flower.here().run)
        samples = staged(run)[0][int(context.node_config["partition-id"])]
        model = network(run)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        fit(model, samples, run)
        metrics = MetricRecord({"num-examples": len(samples[1])})
        return Reply(
            content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
        )

    app = ClientApp()
    app.train()(train)
    return app


def flower_server() -> Any:
    """Return the ServerApp: FedAvg, with the times of its rounds noted."""
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    def main(grid: Any, context: Any) -> None:
        del context
        torch.set_num_threads(1)
        settings = _Flower.here()
        run = Run.model_validate_json(settings.run)
        evaluation = staged(run)[1]
        ours = Ours(run) if settings.interleave else None
        strategy = FedAvg(fraction_evaluate=0.0)
        configure, aggregate = strategy.configure_train, strategy.aggregate_train
        started, trained, rows = [0.0], [0.0], []

        def configure_train(*arguments: Any) -> Any:
            started.append(time.perf_counter())
            return configure(*arguments)

        def aggregate_train(*arguments: Any) -> Any:
            result = aggregate(*arguments)
            trained.append(time.perf_counter())
            return result

        def evaluate(number: int, arrays: Any) -> Any:
            start = time.perf_counter()
            model = network(run)
            model.load_state_dict(arrays.to_torch_state_dict())
            metrics = MetricRecord({"accuracy": accuracy(model, evaluation)})
            if number:
                timing = trained[-1] - started[-1], time.perf_counter() - start
                rows.append(Row(timing, ours.round() if ours else (0.0, 0.0)))
            return metrics

        strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train  # type: ignore[assignment, method-assign]
        strategy.start(
            grid=grid, initial_arrays=ArrayRecord(network(run).state_dict()), num_rounds=run.rounds,
            evaluate_fn=evaluate,
        )  # fmt: skip
        Path(settings.out).write_text(json.dumps([asdict(row) for row in rows]))

    app = ServerApp()
    app.main()(main)
    return app


_APP = """
[project]
name = "bench"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "bench.app:server"
clientapp = "bench.app:client"
[tool.flwr.app.config]
"""
_MODULE = """
from simulator import flower_client, flower_server

server = flower_server()
client = flower_client()
"""


@lru_cache
def flower(run: Run, *, interleave: bool) -> tuple[float, list[Row]]:
    """Run Flower's simulation with one actor by its own command; return its seconds in all, and its rounds."""
    clients = (run.clients or 10) - 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home, out = folder / "home", folder / "rows.json"
        (folder / "app" / "bench").mkdir(parents=True)
        home.mkdir()
        (folder / "app" / "pyproject.toml").write_text(_APP)
        (folder / "app" / "bench" / "__init__.py").write_text("")
        (folder / "app" / "bench" / "app.py").write_text(_MODULE)
        (home / "config.toml").write_text('[superlink]\ndefault = "local"\n[superlink.local]\naddress = ":local:"\n')
        ports = _free_ports(2)
        environment = {
            **os.environ,
            _SETTINGS: json.dumps(asdict(_Flower(run.model_dump_json(exclude_none=True), str(out), interleave))),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONPATH": str(Path(__file__).resolve().parent),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(ports[0]),
            "FLWR_LOCAL_CONTROL_API_PORT": str(ports[1]),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        command = [
            "flwr", "run", ".", "local", "--stream", "--federation-config",
            f"num-supernodes={clients} client-resources-num-cpus=1 init-args-num-cpus=1",
        ]  # fmt: skip
        try:
            seconds = _command(command, environment, folder / "app", folder / "log.txt", until=out)
        finally:
            _end_all(str(home))
        return seconds, [Row(tuple(row["theirs"]), tuple(row["ours"])) for row in json.loads(out.read_text())]


def flower_rounds(run: Run) -> list[Row]:
    """Measure Flower's rounds."""
    return flower(run, interleave=True)[1]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _command(
    command: Sequence[str], environment: dict[str, str], folder: Path, log: Path, until: Path | None = None
) -> float:
    """Run a command to its end; return how long it took. It must leave the file ``until``."""
    start = time.perf_counter()
    with log.open("w") as file:
        try:
            done = subprocess.run(
                command, env=environment, cwd=folder, stdout=file, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, timeout=LIMIT_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{command[0]} took more than {LIMIT_SECONDS:.0f} s") from None
    seconds = time.perf_counter() - start
    if done.returncode or (until and not until.exists()):
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise RuntimeError(f"{command[0]} ended with code {done.returncode}:\n{tail}")
    return seconds


def _end_all(mark: str) -> None:
    """End every process whose environment has ``mark``: SuperLink and Ray detach themselves from their parents."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for pid in _marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        deadline = time.monotonic() + 5
        while _marked(mark) and time.monotonic() < deadline:
            time.sleep(0.1)


def _marked(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


# Whole runs from the command line


def ours_from_command_line(run: Run, *, workers: int = 1, seeds: int = 1) -> float:
    """Return the seconds that `fedpals run` takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.toml").write_text(to_toml(run.model_dump(exclude_none=True)))
        command = [
            sys.executable, "-c", "from fedpals.cli import main; main()", "run", "run.toml", "--out", "runs",
            "--workers", str(workers), "--seeds", str(seeds),
        ]  # fmt: skip
        return _command(command, dict(os.environ), folder, folder / "log.txt")


# Many clients


def many(run: Run) -> dict[str, float]:
    """Compute a run with records and checkpoints; return the median seconds of a round, and peak memory."""
    times = []
    folder = Path(tempfile.mkdtemp())
    try:
        simulate(run, folder, callbacks=[lambda _: times.append(time.perf_counter())])
    finally:
        shutil.rmtree(folder)
    return {
        "seconds": statistics.median(b - a for a, b in pairwise(times)),
        "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def populations(size: Size) -> dict[str, dict[str, float]]:
    """Measure federations of every size, all with clients of 4 samples: more do not fit for the largest."""
    results: dict[str, dict[str, float]] = {}
    for _ in range(size.repeats):
        for clients in size.populations:
            run = size.run(
                clients=clients + 1, labels_per_client=2, samples_per_client=4, participation=10 / clients,
                validation_samples=200, test_samples=200, rounds=size.scale_rounds,
            )  # fmt: skip
            new = in_child(many, run)
            old = results.get(str(clients), new)
            results[str(clients)] = {key: min(new[key], old[key]) for key in new}
    return results


# Clients without weight


def low_ess(size: Size, ess: Sequence[float]) -> dict[str, dict[str, float]]:
    """Take rounds of FedAvg and FedPALS in turn, on clients of three labels each."""
    common: dict[str, Any] = {
        "labels_per_client": 3, "samples_per_client": size.ess_samples, "rounds": size.ess_rounds,
        "validation_samples": None, "test_samples": None,
    }  # fmt: skip
    avg = Ours(size.run(**common))
    pals = {f"{e:g}": Ours(size.run(**common, method="fedpals", ess=e)) for e in ess}
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in pals}
    for _ in range(size.ess_rounds):
        for name, ours in pals.items():
            rows[name].append((sum(ours.round()), sum(avg.round())))
    clients = len(avg.simulation.federation.clients)
    return {
        name: {
            "ratio": statistics.median(theirs / mine for mine, theirs in rows[name][1:]),
            "trained": ours.trained,
            "clients": clients,
        }
        for name, ours in pals.items()
    }


# One process each, and the report


def _there(connection: Any, call: Callable[..., Any], arguments: Sequence[Any]) -> None:
    connection.send(call(*arguments))


def in_child(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call in a process of its own, which is ended when it takes too long."""
    context = mp.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_there, args=(there, call, arguments))
    child.start()
    there.close()
    try:
        if not here.poll(LIMIT_SECONDS):
            raise RuntimeError(f"{call.__name__} took more than {LIMIT_SECONDS:.0f} s")
        return here.recv()
    except EOFError:
        raise RuntimeError(f"{call.__name__} failed; its message stands above") from None
    finally:
        child.join(5)
        if child.is_alive():
            child.kill()
            child.join()


class Report:
    """Prints figures as they come, and all targets at the end."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}
        self.targets: list[tuple[str, float, str, float]] = []

    def target(self, name: str, value: float, relation: str, wanted: float) -> None:
        """Note a figure that must be ``relation`` (≥ or ≤) ``wanted``."""
        self.targets.append((name, value, relation, wanted))

    def print_targets(self) -> None:
        """Print which targets are met."""
        print("\ntarget" + " " * 50 + "wanted   found")
        for name, value, relation, wanted in self.targets:
            met = value >= wanted if relation == "≥" else value <= wanted
            print(f"{name:54s} {relation} {wanted:5.2f}  {value:6.2f}  {'met' if met else 'NOT MET'}")
        self.results["targets"] = [
            {"name": n, "value": v, "wanted": f"{r} {w}", "met": v >= w if r == "≥" else v <= w}
            for n, v, r, w in self.targets
        ]


def _installed(*modules: str) -> bool:
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        print(f"  skipped: {', '.join(missing)} is not installed (extra bench)")
    return not missing


CONTENDERS: dict[str, tuple[Callable[[Run], list[Row]], tuple[str, ...], float | None]] = {
    "plain loop": (plain, (), 1.35),
    "plain loop, our layers": (plain_pool_first, (), None),
    "pfl": (pfl, ("pfl",), 1.4),
    "Flower + Ray": (flower_rounds, ("flwr", "ray"), 1.4),
}


def rounds(size: Size, report: Report) -> None:
    print(f"\nrounds: 9 clients × {size.samples} samples, batch {size.batch}, {size.rounds} rounds")
    run = size.run()
    found = report.results.setdefault("rounds", {})
    for name, (call, modules, wanted) in CONTENDERS.items():
        if wanted is None and not size.untargeted:
            continue
        print(f"  {name}")
        if not _installed(*modules):
            found[name] = "not installed"
            continue
        try:
            # Flower starts processes of its own.
            rows = (call(run) if call is flower_rounds else in_child(call, run))[1:]
        except RuntimeError as error:
            print(f"    failed: {error}")
            found[name] = "failed"
            continue
        ratio = statistics.median(row.theirs[0] / row.ours[0] for row in rows)
        whole = statistics.median(sum(row.theirs) / sum(row.ours) for row in rows)
        theirs, ours = (statistics.median(getattr(row, who)[0] for row in rows) for who in ("theirs", "ours"))
        print(f"    {theirs:.3f} s, ours {ours:.3f} s: ratio {ratio:.2f}; with evaluation {whole:.2f}")
        found[name] = {"ratio": ratio, "with_evaluation": whole, "rows": [asdict(row) for row in rows]}
        if wanted is not None:
            report.target(f"round: {name} / ours", ratio, "≥", wanted)


def command(size: Size, report: Report) -> None:
    print(f"\ncommand: {size.run_rounds} rounds, 9 clients × {size.run_samples} samples, start-up included")
    run = size.run(samples_per_client=size.run_samples, rounds=size.run_rounds)
    if not _installed("flwr", "ray"):
        report.results["command"] = "not installed"
        return
    pairs = []
    for _ in range(size.repeats):
        if size.untargeted:  # a quick run is content with the time that `rounds` may have seen
            flower.cache_clear()
        pairs.append((flower(run, interleave=not size.untargeted)[0], ours_from_command_line(run)))
    ratio = statistics.median(theirs / ours for theirs, ours in pairs)
    for theirs, ours in pairs:
        print(f"  Flower {theirs:.1f} s, ours {ours:.1f} s: ratio {theirs / ours:.2f}")
    report.results["command"] = {"seconds": pairs, "ratio": ratio}
    report.target(f"{size.run_rounds}-round command: Flower / ours", ratio, "≥", 2.0)


def workers(size: Size, report: Report) -> None:
    print(f"\nworkers: 9 clients × {size.samples} samples, by command, start-up included")
    found = report.results.setdefault("workers", {})
    cases = {
        f"sweep of {size.seeds} seeds, {size.sweep_rounds} rounds": (size.seeds, size.sweep_rounds, 1.7),
        f"single run, {2 * size.sweep_rounds} rounds": (1, 2 * size.sweep_rounds, None),
    }
    for name, (seeds, count, wanted) in cases.items():
        if wanted is None and not size.untargeted:
            continue
        run = size.run(rounds=count)
        pairs = [
            (ours_from_command_line(run, seeds=seeds), ours_from_command_line(run, seeds=seeds, workers=2))
            for _ in range(size.repeats)
        ]
        ratio = statistics.median(one / two for one, two in pairs)
        print(f"  {name}: " + ", ".join(f"{a:.1f} / {b:.1f} s" for a, b in pairs) + f": ratio {ratio:.2f}")
        found[name] = {"seconds": pairs, "ratio": ratio}
        if wanted is not None:
            report.target("sweep: one worker / two workers", ratio, "≥", wanted)


def scale(size: Size, report: Report) -> None:
    print(f"\nscale: 10 participants of 4 samples, {size.scale_rounds} rounds with records and checkpoints")
    found = report.results["scale"] = populations(size)
    for clients, row in found.items():
        print(f"  {int(clients):6,} clients: {1 / row['seconds']:.1f} rounds/s, {row['bytes'] / 2**20:.0f} MiB")
    smallest, *_, largest = found
    for what, key in (("time", "seconds"), ("memory", "bytes")):
        grown = found[largest][key] / found[smallest][key]
        report.target(f"{what}: {int(largest):,} clients / {int(smallest):,}", grown, "≤", FLAT[what])


def ess(size: Size, report: Report) -> None:
    print(f"\ness: FedAvg's time / FedPALS's, 9 clients × {size.ess_samples} samples of 3 labels")
    found = report.results["ess"] = in_child(low_ess, size, (0.1, 0.5))
    for name, row in found.items():
        print(f"  ESS {name}: ratio {row['ratio']:.2f}, {row['trained']} of {row['clients']} clients trained")
    report.target("ESS 0.1: FedAvg / FedPALS", found["0.1"]["ratio"], "≥", 1.0)


SECTIONS: dict[str, Callable[[Size, Report], None]] = {
    "rounds": rounds, "command": command, "workers": workers, "scale": scale, "ess": ess,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything works")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--samples", type=int, help="per client, for rounds and workers")
    parser.add_argument("--batch", type=int, help="batch size")
    parser.add_argument("--rounds", type=int, help="of each contender in `rounds`; the first is left out")
    parser.add_argument("--run-samples", type=int, help="per client, for the run from the command line")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    given = {key: getattr(options, key) for key in ("samples", "batch", "rounds", "run_samples")}
    size = replace(QUICK if options.quick else Size(), **{k: v for k, v in given.items() if v is not None})
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(SECTIONS):
        parser.error(f"--only: {', '.join(sorted(unknown))} unknown; sections are {', '.join(SECTIONS)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    report = Report()
    report.results |= {
        "size": asdict(size), "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "torch": torch.__version__, "load": [os.getloadavg()],
    }  # fmt: skip
    print(f"load when started: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name in chosen:
        SECTIONS[name](size, report)
    report.results["load"].append(os.getloadavg())
    report.print_targets()
    if options.json:
        options.json.write_text(json.dumps(report.results, indent=1))


if __name__ == "__main__":
    main()
