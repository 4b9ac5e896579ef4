"""The run that both apps read from Flower's run config."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from fedpals.run import Run
from fedpals.worker import Worker


def given(config: Mapping[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
    """Return the keys that are set."""
    return {key: value for key, value in config.items() if value != ""}


def worker(config: Mapping[str, bool | int | float | str]) -> Worker:
    """Return data, network and training plan of the configured run; built once per process.

    Samples are held out by the clients themselves, so that is not part of it.
    """
    keys = Run.model_fields.keys() - {"held_out"}
    run = Run.model_validate({key: value for key, value in given(config).items() if key in keys})
    return _build(run.model_dump_json(exclude_none=True))


@lru_cache(maxsize=1)
def _build(run: str) -> Worker:
    return Worker(Run.model_validate_json(run))
