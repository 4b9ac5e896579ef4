"""The run that both apps read from Flower's run config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from fedpals.simulation.run import Run, run_keys
from fedpals.simulation.worker import Worker


def given(config: Mapping[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
    """Return the keys that are set."""
    return {key: value for key, value in config.items() if value != ""}


def held_out(config: Mapping[str, bool | int | float | str]) -> float | None:
    """Return the share of its samples that every client holds out."""
    return _run(config).knowledge.held_out


def worker(config: Mapping[str, bool | int | float | str]) -> Worker:
    """Return data, network and training plan of the configured run; built once per process.

    Samples are held out by the clients themselves, so that is not part of it.
    """
    return _build(json.dumps(_run(config).keys()))


def _run(config: Mapping[str, bool | int | float | str]) -> Run:
    names = {key.name for key in run_keys()}
    return Run.of({key: value for key, value in given(config).items() if key in names})


@lru_cache(maxsize=1)
def _build(keys: str) -> Worker:
    run = Run.of(json.loads(keys))
    return Worker(replace(run, knowledge=run.knowledge.model_copy(update={"held_out": None})))
