"""`train`: one call from a federation to a study."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedpals.config import did_you_mean
from fedpals.data import Federation, Task
from fedpals.errors import InputError
from fedpals.methods import Method, method_of, option_keys, options_of
from fedpals.simulation.run import Network, Run, run_keys
from fedpals.simulation.settings import SweepSettings
from fedpals.simulation.sweep import sweep
from fedpals.study.progress import SweepProgress
from fedpals.study.study import Study


def train(
    federation: Federation,
    *,
    model: Callable[..., Any] | str | None = None,
    methods: Iterable[Any] = ("fedavg", "fedpals"),
    rounds: int = 50,
    seeds: int | Sequence[int] = 1,
    out: Path | str = "runs",
    workers: int = 1,
    progress: bool = True,
    **settings: Any,
) -> Study:
    """Train every method on a federation, and return the study of them.

    A run that is finished is not computed again: the same call after an interruption continues, and returns at once
    when all is done. Changed data, network, method or settings are other runs.

    Parameters
    ----------
    federation
        Clients and target: `fedpals.Federation.of`.
    model
        The network: a class or function that takes ``(shape, classes)`` or nothing and returns a ``torch.nn.Module``;
        or a name, as "linear" or "mlp". Unless given: the paper's CNN for images, logistic regression for tables.
    methods
        Names, as "fedprox+fedpals"; objects of `fedpals.ClientRule` or `fedpals.Weighting` subclasses; or pairs of
        them, as ``(MyRule(), "fedpals")``.
    rounds
        Rounds of training.
    seeds
        How many, counting from 0, or which.
    out
        Folder of records.
    workers
        Processes: over runs, or over clients if there is one run.
    progress
        Whether to show progress, in a terminal or notebook.
    settings
        Any other key of `fedpals run`: ``learning_rate``, ``batch_size``, ``epochs``, ``held_out``, ``momentum``, …;
        and options of methods, as ``ess`` or ``lam``, which go to those that take them.

    Raises
    ------
    InputError
        Naming argument, value and remedy.
    """
    if not isinstance(federation, Federation):
        raise InputError(f"federation is a {type(federation).__name__}; make one with fedpals.Federation.of(…)")
    listed = [methods] if isinstance(methods, str) or not isinstance(methods, Iterable) else list(methods)
    if not listed:
        raise InputError('methods is empty; name at least one, as ["fedavg", "fedpals"]')
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers:
        raise InputError(f"seeds is {seeds}; give at least one")
    keys = {**{key: value for key, value in settings.items() if key not in option_keys()}, "rounds": rounds}
    ess = _default_ess(federation, keys, settings)
    runs = [
        _run(federation, method, model, {**keys, "seed": seed})
        for method in _methods(listed, settings, ess)
        for seed in numbers
    ]
    console = Console()
    with SweepProgress(runs, console) if progress else nullcontext(lambda _: None) as show:
        outcome = sweep(runs, SweepSettings(Path(out), workers), show)
    if outcome.stopped:
        signal.raise_signal(outcome.stopped)  # ends the script as it would have without us
        raise KeyboardInterrupt
    if outcome.failed:
        raise outcome.failed[min(outcome.failed)]
    return Study(outcome.records, federation, model if callable(model) else None)


def _default_ess(federation: Federation, keys: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ESS of methods that have one, as `Run.of` has it: auto where clients hold samples out."""
    run = _run(federation, method_of("fedavg"), None, {**keys, "seed": 0})
    held_out = run.knowledge.held_out is not None and not run.protection.private
    return {"ess": "auto"} if held_out and settings.get("ess") is None and settings.get("lam") is None else {}


def _methods(given: Sequence[Any], settings: Mapping[str, Any], ess: Mapping[str, Any]) -> list[Method]:
    """Build the methods; an option goes to those that take it, and one that none takes is an error.

    ``ess`` is the one of methods that have an ESS, where the settings give none.
    """
    options = {key: value for key, value in settings.items() if key in option_keys() and value is not None}
    names = [name for method in given for name in (method if isinstance(method, tuple) else (method,))]
    taken = {key for name in names if isinstance(name, str) for key in options_of(name)}
    if unused := sorted(options.keys() - taken):
        raise InputError(f"{unused[0]} is {options[unused[0]]!r}, but none of the methods takes it; leave it out")
    built = []
    for method in given:
        own = {key for name in (method if isinstance(method, tuple) else (method,)) if isinstance(name, str)
               for key in options_of(name)}  # fmt: skip
        built.append(method_of(method, {key: value for key, value in {**ess, **options}.items() if key in own}))
    if twice := [method.full_name for method in built if [m.full_name for m in built].count(method.full_name) > 1]:
        raise InputError(
            f"methods: {twice[0]!r} appears twice; give the objects other names (their class attribute name)"
        )
    return built


def _run(federation: Federation, method: Method, model: Any, keys: dict[str, Any]) -> Run:
    task = Task.of_federation(federation)
    every = {key.name for key in run_keys()} - Task.model_fields.keys() - {"method", "model", "method_source"}
    if unknown := [key for key in keys if key not in every]:
        hint = did_you_mean(unknown[0], every) or "; see fedpals run --help for those there are"
        raise InputError(f"{unknown[0]!r} is not a setting of train{hint}")
    base = Run.of({**keys, "task": task.task, "content": task.content, "method": "fedavg"})
    network = {key: keys[key] for key in ("backbone", "image_size") if keys.get(key) is not None}
    if isinstance(model, str) or model is None:
        images = "head" if "backbone" in network else "cnn"
        default = images if federation.images else "linear"
        return replace(
            base, data=task, method=method, network=Network.for_task(task.task, {"model": model or default, **network})
        )
    if not callable(model):
        raise InputError(f"model is {model!r}; give a class, a function, or a name such as 'mlp'")
    return replace(base, data=task, method=method, network=Network.of_builder(model, **network))
